"""Re-tokenizing as whole runs on Dask: ids and text corpora, refusals before the run, workers killed in the middle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retok_dask.checks import validate
from retok_dask.cluster import plan, run
from retok_dask.datasets import open_dataset
from retok_dask.errors import RecipeError
from retok_dask.recipe import Recipe
from tests.retokenize.common import plain_ids, tokenizer
from tests.retokenize.test_from_runs import spec

ROOT = Path(__file__).parents[2]
TEXTS = [f"Document {n}: naïve 日本語 text, number {n * 7919}." for n in range(60)]


@pytest.fixture
def old_ids(tmp_path):
    """Parquet of GPT-2 ids with a mask that leaves out the first token, one row cut inside a character."""
    ids = [[*plain_ids("gpt2", text), 50256] for text in TEXTS]
    ids[-1] = plain_ids("gpt2", "日本語")[:-1]
    masks = [[False] + [True] * (len(row) - 1) for row in ids]
    table = pa.table(
        {"input_ids": pa.array(ids, pa.list_(pa.int32())), "loss_mask": pa.array(masks, pa.list_(pa.bool_()))}
    )
    pq.write_table(table, tmp_path / "ids.parquet", row_group_size=10)
    return tmp_path / "ids.parquet"


def ids_recipe(path, output, **dataset):
    return Recipe.from_dict(
        {
            "tokenizer": spec("llama3_1"),
            "engine": "reference",
            "output": str(output),
            "max_reject_share": 0.05,
            "cluster": {"workers": 1, "dashboard": None},
            "datasets": [{"input": str(path), "mode": "tokens", "source_tokenizer": spec("gpt2")} | dataset],
        }
    )


def test_ids_move_by_a_run(old_ids, tmp_path):
    recipe = ids_recipe(old_ids, tmp_path / "out", token_map={"<|endoftext|>": "<|eot_id|>"})
    planned = plan(recipe)
    (row,) = planned.datasets[0].token_table
    assert (row["token"], row["becomes"]) == ("<|endoftext|>", "<|eot_id|>")
    assert planned.datasets[0].source_tokens > planned.datasets[0].tokens
    assert "<|endoftext|> -> <|eot_id|>" in planned.to_text()
    result = run(recipe, progress="none")
    assert result.exit_code == 0
    data = open_dataset(recipe.output)
    end = tokenizer("llama3_1").added_tokens["<|eot_id|>"]
    assert [row["input_ids"].tolist() for row in data] == [[*plain_ids("llama3_1", text), end] for text in TEXTS[:-1]]
    assert result.stats.rejected == {"lossy_decode": 1}
    assert all(not row["loss_mask"][0] and row["loss_mask"][-1] for row in data)
    report = validate(recipe.output)
    assert report.passed, report.to_text()


def test_an_incomplete_table_ends_before_anything_is_written(old_ids, tmp_path):
    with pytest.raises(RecipeError, match="no counterpart"):
        run(ids_recipe(old_ids, tmp_path / "out"), progress="none")
    assert not (tmp_path / "out").exists()


@pytest.mark.faults
def test_a_corpus_with_workers_killed_has_every_document_once(tmp_path):
    texts = {f"{n}": f"{n} " + f"some words of document {n} " * 40 for n in range(2000)}
    lines = [orjson.dumps({"id": name, "text": text}) for name, text in texts.items()]
    (tmp_path / "in").mkdir()
    for part in range(4):
        (tmp_path / "in" / f"{part}.jsonl").write_bytes(b"\n".join(lines[part::4]))
    recipe = Recipe.from_dict(
        {
            "tokenizer": spec("gpt2"),
            "engine": "reference",
            "output": str(tmp_path / "out"),
            "documents": {"shuffle": True},
            "units": {"bytes": "150KB"},
            "cluster": {"workers": 2, "dashboard": None},
            "datasets": [{"input": str(tmp_path / "in/*.jsonl"), "mode": "text", "keep": ["id"]}],
        }
    )
    assert _run_with_kills(recipe, tmp_path, kills=2) == 2
    data = open_dataset(recipe.output)
    found = {row["id"]: row["input_ids"].tolist() for row in data}
    assert len(data) == len(found) == len(texts)
    for name in random.Random(0).sample(sorted(texts), 100):
        assert found[name] == [*plain_ids("gpt2", texts[name]), 50256]


def _run_with_kills(recipe, folder, kills):
    path = folder / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "retok_dask.cli", "run", str(path), "--progress", "lines"]
    rng, killed = random.Random(3), 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        try:
            while process.poll() is None:
                time.sleep(0.2)
                done = len(list(Path(recipe.output, "_retok/receipts").glob("*.json")))
                if killed < kills and done > killed:
                    children = psutil.Process(process.pid).children(recursive=True)
                    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
                    if workers:
                        rng.choice(workers).send_signal(signal.SIGKILL)
                        killed += 1
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == 0, (folder / "log").read_text()
    return killed
