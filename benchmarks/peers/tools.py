"""One function a tool: JSONL in, what the tool leaves behind out, measured."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from array import array
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarks.child import measured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast


def datasets_map(tokenizer: str, source: str) -> dict[str, Any]:
    """What most people run: `datasets.map` over `apply_chat_template` with its mask, and `to_parquet`."""
    loaded = _tokenizer(tokenizer)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        tools = json.loads(row["tools"]) if row.get("tools") else None
        found = loaded.apply_chat_template(
            row["messages"], tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": found["input_ids"], "loss_mask": found["assistant_masks"]}

    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        with measured(answer):
            rows = _load(source, scratch)
            done = rows.map(encode, remove_columns=rows.column_names)
            done.to_parquet(Path(scratch) / "out.parquet")
        return answer | _facts(done["input_ids"], done["loss_mask"])


def trl_prepare(tokenizer: str, source: str) -> dict[str, Any]:
    """TRL's own `SFTTrainer._prepare_dataset`, on a stand-in for the trainer, which would want a model."""
    from trl import SFTConfig, SFTTrainer

    loaded = _tokenizer(tokenizer)
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        args = SFTConfig(output_dir=scratch, use_cpu=True, bf16=False, assistant_only_loss=True, max_length=None)
        trainer = SimpleNamespace(_tokenizer=loaded, chat_template=loaded.chat_template, completion_only_loss=False)
        with measured(answer):
            rows = _load(source, scratch)
            done = SFTTrainer._prepare_dataset(trainer, rows, loaded, args, False, None, "train")
        return answer | _facts(done["input_ids"], _from_labels(done["labels"]))


def axolotl_strategy(tokenizer: str, source: str) -> dict[str, Any]:
    """Axolotl's own `chat_template` strategy and its own mapping over the data set."""
    from axolotl.datasets import wrap_dataset_for_tokenized_prompt
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault

    logging.disable(logging.WARNING)
    loaded = _tokenizer(tokenizer)
    settings = {
        "sequence_len": 1_000_000,
        "train_on_inputs": False,
        "chat_template": "jinja",
        "chat_template_jinja": loaded.chat_template,
    }
    strategy = load(loaded, DictDefault(settings), ds_cfg={"field_messages": "messages"})
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        with measured(answer):
            done = wrap_dataset_for_tokenized_prompt(strategy, _load(source, scratch))
        return answer | _facts(done["input_ids"], _from_labels(done["labels"]))


def encode_batch(tokenizer: str, source: str, rows: int = 32) -> dict[str, Any]:
    """The floor of everything built on `tokenizers`: nothing but `encode_batch` over rendered texts."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    render = partial(_tokenizer(tokenizer).apply_chat_template, tokenize=False)
    with Path(source).open() as lines:
        records = [json.loads(line) for line in lines]
    texts = [render(r["messages"], tools=json.loads(r["tools"]) if "tools" in r else None) for r in records]
    answer: dict[str, Any] = {}
    tokens = 0
    with measured(answer):
        for start in range(0, len(texts), rows):
            found = loaded.encode_batch(texts[start : start + rows], add_special_tokens=False)
            tokens += sum(len(encoding.ids) for encoding in found)
    return answer | {"rows": len(texts), "tokens": tokens}


def _tokenizer(folder: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def _load(source: str, scratch: str) -> Dataset:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset("json", data_files=source, split="train", cache_dir=scratch)


def _from_labels(rows: Iterable[list[int]]) -> list[list[int]]:
    return [[int(label != -100) for label in row] for row in rows]


def _facts(ids: Iterable[list[int]], masks: Iterable[list[int]]) -> dict[str, Any]:
    """Counts, and digests by which ids and masks of two tools are compared."""
    ids, masks = list(ids), list(masks)
    return {
        "rows": len(ids),
        "tokens": sum(map(len, ids)),
        "trained": sum(map(sum, masks)),
        "ids_digest": _digest("i", ids),
        "mask_digest": _digest("b", masks),
    }


def _digest(code: str, rows: list[list[int]]) -> str:
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(array(code, row).tobytes())
    return hasher.hexdigest()
