"""Real tokenizers that several rooms' tests use, loaded once a process: each takes seconds."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any

import assets

from retok_dask.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@cache
def tokenizer(name: str, engine: str = "reference") -> Tokenizer:
    """A real or tiny tokenizer by its name in :mod:`assets`."""
    spec = assets.tiny_tokenizer(name) if name in assets.TINY else assets.tokenizer_spec(name)
    return Tokenizer.load(spec, engine=engine)


def reference(definition_json: str, **more: Any) -> PreTrainedTokenizerFast:
    """What transformers makes of a definition; from a file, because an object is copied, which builds it twice more."""
    from transformers import PreTrainedTokenizerFast

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        file.write(definition_json)
        file.flush()
        return PreTrainedTokenizerFast(tokenizer_file=file.name, **more)
