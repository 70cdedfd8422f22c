"""A real run without a cluster: our demo's conversations, a tokenizer trained on the spot, the real kernel."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from pipelines import proved_once
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import Fingerprint, OutputFolder, UnitWriter, read_receipts, start_run, write_manifest
from retok_dask.demo import chat_template, write_demo
from retok_dask.kernel import Kernel
from retok_dask.recipe import Recipe
from retok_dask.schema import kept_columns
from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers import Tokenizer

DAY = dt.date(2026, 1, 2)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train_tokenizer(folder: Path, texts: list[str], *, size: int = 600, specials: list[str] = SPECIAL) -> str:
    """A small byte-level BPE tokenizer as a folder."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def demo_recipe(folder: Path, conversations: int = 90, **changes: Any) -> Recipe:
    """Input, tokenizer and recipe of a small run below a folder."""
    write_demo(folder / "in", conversations=conversations, seed=1)
    texts = [path.read_text(errors="ignore") for path in sorted((folder / "in").rglob("*.jsonl"))]
    names = sorted({path.parent.name for path in (folder / "in").rglob("*.jsonl")})
    return Recipe.from_dict(
        {
            "tokenizer": train_tokenizer(folder / "tokenizer", texts),
            "template": {"text": chat_template()},
            "datasets": [{"name": name, "input": str(folder / "in" / name / "*.jsonl")} for name in names],
            "output": str(folder / "out"),
            "units": {"bytes": 20_000, "batch_bytes": 10_000},
            "max_reject_share": 0.1,
            "engine": "reference",
            "date": DAY.isoformat(),
        }
        | changes
    )


def run_recipe(recipe: Recipe) -> OutputFolder:
    """Do what a run does, in this process."""
    tokenizer = Tokenizer.load(recipe.tokenizer, engine=recipe.engine)
    template = proved_once(
        recipe,
        tokenizer,
        lambda: ChatTemplate.load(recipe.template, tokenizer=tokenizer, recipe=recipe, date=DAY),
    )
    listing = list_inputs(recipe)
    folder = OutputFolder(recipe.output, recipe.storage)
    fingerprint = Fingerprint.of(recipe, listing, tokenizer, template, date=DAY)
    start_run(folder, fingerprint, recipe)
    specs = {spec.name: spec for spec in recipe.datasets}
    for unit in listing.units:
        kernel = Kernel(recipe, specs[unit.dataset], tokenizer, template)
        with UnitWriter(folder, unit, kept_columns(recipe), "1", fingerprint=fingerprint.digest) as writer:
            for batch in kernel.process(read_records(unit, specs[unit.dataset], recipe)):
                writer.write(batch)
    write_manifest(folder, read_receipts(folder), expected=[unit.id for unit in listing.units])
    return folder
