"""A small fault to practise on: a record that kills the worker which reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from retok_dask.demo import open_recipe

if TYPE_CHECKING:
    from retok_dask.recipe import Recipe

DEADLY = "chat-000005"
"""Id of the record that kills its worker, as one does that needs more memory than there is."""


def deadly(record: dict[str, Any]) -> bool:
    """A user's filter that takes its process down at one record; keeps all others."""
    if record.get("id") == DEADLY:
        os._exit(137)
    return True


def faulty_recipe(*, folder: str | Path = "demo-data", output: str | Path, conversations: int = 3000) -> Recipe:
    """The demo's chat data with a filter that kills the worker at one record.

    Args:
        folder, conversations: of the demo; see :func:`retok_dask.demo.open_recipe`.
        output: where the run writes.
    """
    recipe = open_recipe(folder=folder, conversations=conversations)
    chat = recipe.datasets[0].model_dump(mode="json", exclude_unset=True)
    chat |= {
        "input": str(Path(folder).resolve() / "chat" / "part-01.jsonl"),
        "filters": {"function": f"{__name__}:deadly"},
        "limit": 4,
    }
    tokenizer = Path(folder).resolve() / "bytes.json"
    _write_byte_tokenizer(tokenizer)
    return recipe.with_changes(
        tokenizer={"path": str(tokenizer), "eos_token": "<|im_end|>"},
        datasets=[chat],
        output=str(Path(output).resolve()),
        max_reject_share=0.5,
        engine="reference",
        cluster={"workers": 2},
    )


def _write_byte_tokenizer(path: Path) -> None:
    """A tokenizer with a token a byte: each worker that takes a dead one's place loads it in no time."""
    tokenizer = Tokenizer(
        models.BPE({sign: index for index, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("im_start", "im_end"), ("think", "/think", "tool_call", "/tool_call", "tool_response", "/tool_response")
    tokenizer.add_special_tokens([f"<|{name}|>" for name in names[0]] + [f"<{name}>" for name in names[1]])
    tokenizer.save(str(path))
