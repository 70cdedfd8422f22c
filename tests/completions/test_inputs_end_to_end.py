"""Whole runs: ten data sets of four modes in one recipe, from disk and S3; many JSONL files on S3 in, Parquet out."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from assets import tiny_tokenizer

from retok_dask.cluster import run
from retok_dask.datasets import OutputFolder, open_dataset, read_manifest
from retok_dask.demo import chat_template
from retok_dask.recipe import Recipe

pytestmark = pytest.mark.s3

Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}


def chat(number: int) -> dict:
    return {"id": number, "messages": [{**Q, "content": f"question {number}"}, A]}


def jsonl(rows: list) -> bytes:
    return b"".join(row if isinstance(row, bytes) else orjson.dumps(row) + b"\n" for row in rows)


def fill(folder, s3) -> list[dict]:
    """Data sets of every kind; each with the counts that it must end in."""
    s3.put("openai/a.jsonl", jsonl([chat(n) for n in range(20)] + [b'{"messages": [\n']))
    s3.put("openai/b.jsonl", jsonl([chat(n) for n in range(20, 30)]))
    talk = [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]
    odd = [{"from": "robot9", "value": "r"}, {"from": "gpt", "value": "g"}]
    (folder / "sharegpt.json").write_text(json.dumps([{"conversations": talk}] * 7 + [{"conversations": odd}]))
    pair = {"chosen": "\n\nHuman: a\n\nAssistant: good", "rejected": "\n\nHuman: a\n\nAssistant: bad"}
    s3.put("pairs.jsonl.gz", gzip.compress(jsonl([pair] * 3)) + gzip.compress(jsonl([pair] * 2)))
    pq.write_table(pa.Table.from_pylist([chat(n) for n in range(40)]), folder / "rows.parquet", row_group_size=11)
    (folder / "saved").mkdir()
    table = pa.Table.from_pylist([{"instruction": "i", "input": "x", "output": "o"}] * 6)
    with pa.ipc.new_stream(str(folder / "saved" / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "saved" / "state.json").write_text("{}")
    with (folder / "qa.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], *[[f"q{n}", "a\nb"] for n in range(9)]])
    for number in range(12):
        value = {"history": [Q, A]} if number else {"history": [Q]}
        s3.put(f"trajectories/{number}.traj", orjson.dumps(value))
    (folder / "books").mkdir()
    for number in range(3):
        (folder / "books" / f"{number}.txt").write_text(f"A text.\n\nNumber {number}, été.\n")
    ids = {"input_ids": [[5, 6, 7]] * 4 + [[10**6]], "loss_mask": [[False, True, True]] * 4 + [[True]]}
    pq.write_table(pa.table(ids), s3.folder / "ids.parquet")
    s3.put("prompts.jsonl", jsonl([chat(n % 4) for n in range(8)]))
    local, far = str(folder), s3.url("")
    return [
        {"name": "openai", "input": f"{far}openai/*.jsonl"},
        {"name": "sharegpt", "input": f"{local}/sharegpt.json"},
        {"name": "pairs", "input": f"{far}pairs.jsonl.gz", "prefer": "both"},
        {"name": "rows", "input": f"{local}/*.parquet", "limit": 25, "keep": ["id"]},
        {"name": "saved", "input": f"{local}/saved"},
        {"name": "csv", "input": f"file://{local}/qa.csv"},
        {"name": "agents", "input": f"{far}trajectories"},
        {"name": "books", "input": f"{local}/books", "mode": "text"},
        {"name": "ids", "input": f"{far}ids.parquet", "mode": "tokens"},
        {"name": "prompts", "input": f"{far}prompts.jsonl", "mode": "prompts"},
    ]


EXPECTED = {
    "openai": (31, 30, {"bad_json": 1}),
    "sharegpt": (8, 7, {"unknown_role": 1}),
    "pairs": (5, 5, {}),
    "rows": (25, 25, {}),
    "saved": (6, 6, {}),
    "csv": (9, 9, {}),
    "agents": (12, 11, {"no_assistant": 1}),
    "books": (3, 3, {}),
    "ids": (5, 4, {"bad_tokens": 1}),
}


def recipe_of(s3, datasets, folder, **changes) -> Recipe:
    template = folder / "template.jinja"
    template.write_text(chat_template())
    spec = tiny_tokenizer("byte_level")
    return Recipe.from_dict(
        {
            "tokenizer": spec.model_dump() | {"eos_token": "</s>"},
            "template": {"path": str(template), "plain_markers": True},
            "engine": "reference",
            "datasets": datasets,
            "output": s3.url("out"),
            "storage": s3.storage,
            "cluster": {"workers": 2, "dashboard": None},
            "max_reject_share": 0.2,
        }
        | changes
    )


def test_ten_data_sets_of_four_modes_in_one_recipe(s3, tmp_path):
    recipe = recipe_of(s3, fill(tmp_path, s3), tmp_path)
    result = run(recipe, progress="none")
    assert result.exit_code == 0, result.to_text()
    manifest = read_manifest(OutputFolder(recipe.output, recipe.storage))
    found = {name: (s.records_in, s.records_out, dict(s.rejected)) for name, s in manifest.datasets.items()}
    prompts = found.pop("prompts")
    assert found == EXPECTED
    assert prompts[0] == 8
    assert all(stats.balanced for stats in manifest.datasets.values())
    assert manifest.datasets["pairs"].samples == 10
    data = open_dataset(recipe.output, storage=recipe.storage)
    assert len(data) == manifest.total.samples
    rejects = Counter()
    for path in (s3.folder / "out" / "rejects").rglob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            if row["outcome"] == "rejected":
                rejects[row["reason"]] += 1
                assert row["source_file"]
                assert row["detail"]
    assert rejects == Counter(manifest.total.rejected)


def test_the_drafters_shape_at_reduced_size(s3, tmp_path):
    count = 24
    for number in range(count):
        rows = [chat(number * 25 + n) for n in range(25)]
        s3.put(f"completions/part-{number:04d}.jsonl", jsonl(rows))
    datasets = [{"name": "completions", "input": s3.url("completions/*.jsonl")}]
    recipe = recipe_of(s3, datasets, tmp_path, units={"bytes": "20kB"})
    result = run(recipe, progress="none")
    assert result.exit_code == 0, result.to_text()
    assert result.stats.records_in == result.stats.samples == count * 25
    assert result.stats.loss_tokens > 0
    units = list((s3.folder / "out" / "data" / "completions").glob("*.parquet"))
    assert 2 < len(units) < count
    text = b"".join(path.read_bytes() for path in (s3.folder / "out" / "_retok").rglob("*") if path.is_file())
    assert b"retok-test-secret" not in text
    again = run(recipe, progress="none")
    assert again.did_nothing

    s3.put("completions/part-9999.jsonl", jsonl([chat(10**6)]))
    s3.settle()
    more = run(recipe, progress="none", extend=True)
    assert more.stats.records_in == count * 25 + 1
    s3.put("completions/part-0000.jsonl", jsonl([chat(1)]))
    s3.settle()
    with pytest.raises(Exception, match=r"part-0000\.jsonl"):
        run(recipe, progress="none")
