"""A small tokenizer, small data and recipes for the cluster's tests: nothing is fetched."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from retok_dask.demo import chat_template
from retok_dask.recipe import Recipe

WORDS = [
    "the",
    "model",
    "writes",
    "an",
    "answer",
    "of",
    "some",
    "words",
    "about",
    "weather",
    "trains",
    "music",
    "and",
    "numbers",
    "été",
    "東京",
    "🙂",
]


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 50, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def conversation(number: int, rng: random.Random, turns: int = 2) -> dict:
    messages = []
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(3, 30)))})
        messages.append({"role": "assistant", "content": " ".join(rng.choices(WORDS, k=rng.randint(3, 60)))})
    return {"id": f"c{number}", "messages": messages}


def write_data(folder: Path, files: int = 4, records: int = 50, *, bad: int = 0, seed: int = 0) -> Path:
    """JSONL files of conversations; `bad` lines in each that are no JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for file in range(files):
        lines = [json.dumps(conversation(file * records + n, rng), ensure_ascii=False) for n in range(records)]
        for n in range(bad):
            lines.insert(n * 7 % len(lines), '{"messages": [')
        (folder / f"part-{file:02d}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def make_recipe(tmp_path, tokenizer_path):
    """A recipe over data of the test; keyword arguments are changed or added keys."""

    def make(data: Path | None = None, **changes) -> Recipe:
        data = data if data is not None else write_data(tmp_path / "in")
        template = tmp_path / "template.jinja"
        template.write_text(chat_template())
        given = {
            "tokenizer": {"path": tokenizer_path, "eos_token": "<|im_end|>"},
            "template": {"path": str(template)},
            "engine": "reference",
            "datasets": [{"name": "chat", "input": str(data / "*.jsonl")}],
            "units": {"bytes": 4096},
            "output": str(tmp_path / "out"),
            "cluster": {"workers": 2, "dashboard": None},
        }
        return Recipe.from_dict(given | changes)

    return make
