"""Mode text: one BOS, one separator, boundaries, chunks and order; ids equal to the reference's (D09)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import open_dataset, read_manifest, remask
from retok_dask.errors import RecipeError
from retok_dask.kernel import Kernel, UnitStats
from retok_dask.kernel.shuffle import shuffled
from retok_dask.types import Document
from tests.retokenize.common import kernel, outcome, plain_ids, recipe, tokenizer
from tests.retokenize.runs import write_run

DATA = Path(__file__).parents[3] / "shared" / "data" / "text"


def texts_kernel(name, **changes):
    return kernel(None, name, {"mode": "text"}, **changes)


def ordinary_ids(name, text):
    """What the library gives for a text if it knows no added tokens at all."""
    from tokenizers import Tokenizer

    definition = orjson.loads(tokenizer(name).definition.json)
    definition["added_tokens"] = []
    backend = Tokenizer.from_str(orjson.dumps(definition).decode())
    return list(backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", ["gpt2", "llama3_1", "llama2"])
def test_one_bos_and_one_separator_whatever_the_text_says(name):
    made = tokenizer(name)
    bos, eos = made.special_tokens_map["bos_token"], made.special_tokens_map["eos_token"]
    texts = ["plain", f"{bos}starts like one", f"ends like one{eos}", f"a {eos} in {bos} between", eos]
    rows, left_out, stats = outcome(texts_kernel(name, documents={"bos": True}), [Document(text) for text in texts])
    assert not left_out
    special = set(made.added_tokens.values())
    for row in rows:
        controls = [(place, index) for place, index in enumerate(row["input_ids"]) if index in special]
        assert controls == [(0, made.bos_id), (row["num_tokens"] - 1, made.eos_id)]
        assert [s["kind"] for s in row["segments"]] == ["bos", "content", "stop"]
        assert all(row["loss_mask"][1:])
    assert stats.bos_rows == stats.stop_rows == len(texts)
    assert stats.counts["control_tokens_in_documents"] == 5


@pytest.mark.parametrize("name", ["gpt2", "llama3_1"])
def test_control_token_text_is_ordinary_text(name):
    text = f"GPT uses {tokenizer(name).special_tokens_map['eos_token']} as separator."
    (row,), _, _ = outcome(texts_kernel(name, documents={"separator": "", "bos": False}), [Document(text)])
    assert row["input_ids"] == ordinary_ids(name, text)
    assert tokenizer(name).decode(row["input_ids"]) == text


def test_bos_follows_the_tokenizers_own_rule():
    for name, wanted in (("llama3_1", True), ("gpt2", False)):
        (row,), _, _ = outcome(texts_kernel(name), [Document("x")])
        assert (row["input_ids"][0] == tokenizer(name).bos_id) == wanted


@pytest.mark.parametrize(
    ("name", "documents", "said"),
    [
        ("llama3_1", {}, {"bos": "<|begin_of_text|>", "separator": "<|eot_id|>"}),
        ("llama3_1", {"bos": False, "separator": ""}, {"bos": "", "separator": ""}),
        ("gpt2", {}, {"bos": "", "separator": "<|endoftext|>"}),
    ],
)
def test_the_manifest_says_what_stands_around_a_document(name, documents, said, tmp_path):
    """B11: BOS by the tokenizer's own rule, which nobody should have to guess from the ids."""
    (tmp_path / "in.jsonl").write_text('{"text": "test"}\n')
    made = recipe(name, {"input": str(tmp_path / "in.jsonl"), "mode": "text"}, documents=documents)
    folder = write_run(made.with_changes(output=str(tmp_path / "out")), tokenizer(name))
    assert read_manifest(folder).run["tokenizer"]["documents"] == said
    (row,) = open_dataset(folder.url)
    wanted = [tokenizer(name).added_tokens[text] for text in said.values() if text]
    assert [one for one in row["input_ids"].tolist() if one in tokenizer(name).added_tokens.values()] == wanted


def test_separator_must_be_one_token():
    with pytest.raises(RecipeError, match="not one token"):
        texts_kernel("gpt2", documents={"separator": "<|eod|>"})


def test_chunks_overlap_and_lose_nothing():
    text = " ".join(map(str, range(200)))
    made = texts_kernel("gpt2", documents={"chunk_tokens": 50, "overlap_tokens": 7, "bos": False})
    rows, _, _ = outcome(made, [Document(text), Document("short")])
    whole = [*plain_ids("gpt2", text), 50256]
    pieces = [row["input_ids"] for row in rows if not row["sample_id"].startswith(rows[-1]["sample_id"][:-3])]
    assert all(len(piece) <= 50 for piece in pieces)
    joined = pieces[0] + [index for piece in pieces[1:] for index in piece[7:]]
    assert joined == whole
    assert rows[-1]["input_ids"] == [*plain_ids("gpt2", "short"), 50256]
    assert len({row["sample_id"] for row in rows}) == len(rows)


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared sample texts are not there")
@pytest.mark.parametrize("name", ["qwen2_5"])
def test_real_corpora_have_the_references_ids(name):
    wanted, found = Counter(), Counter()
    spec = {
        "mode": "text",
        "input": [str(DATA / "*.txt"), str(DATA / "xquad.zh.json"), str(DATA / "xquad.th.json")],
        "fields": {},
    }
    made = recipe(name, spec, documents={"bos": False, "separator": ""}, units={"bytes": "1MiB"})
    one = Kernel(made, made.datasets[0], tokenizer(name), None)
    stats = UnitStats()
    for unit in list_inputs(made).units:
        for batch in one.process(read_records(unit, made.datasets[0], made)):
            stats += batch.stats
            for row in batch.samples.to_pylist():
                found[hash(tuple(row["input_ids"]))] += 1
    for path in [*DATA.glob("*.txt"), DATA / "xquad.zh.json", DATA / "xquad.th.json"]:
        for text in documents_of(path):
            wanted[hash(tuple(plain_ids(name, text)))] += 1
    assert found == wanted
    assert stats.records_out == stats.records_in
    assert sum(wanted.values()) > 400


def documents_of(path):
    if path.suffix == ".txt":
        return [path.read_bytes().decode("utf-8-sig")]  # a byte order mark belongs to the file, not to the text
    return [p["context"] for article in orjson.loads(path.read_bytes())["data"] for p in article["paragraphs"]]


# --- order ---


def test_rows_of_a_unit_are_shuffled_by_seed():
    texts = [Document(f"document {n} " * (1 + n % 5)) for n in range(300)]
    plain, _, _ = outcome(texts_kernel("gpt2"), texts)
    one, _, stats = outcome(texts_kernel("gpt2", documents={"shuffle": True}), texts)
    again, _, _ = outcome(texts_kernel("gpt2", documents={"shuffle": True}, units={"batch_bytes": 500}), texts)
    other, _, _ = outcome(kernel(None, "gpt2", {"mode": "text", "seed": 7}, documents={"shuffle": True}), texts)
    ids = [row["sample_id"] for row in one]
    assert ids == [row["sample_id"] for row in again]
    assert ids not in ([row["sample_id"] for row in plain], [row["sample_id"] for row in other])
    assert sorted(map(str, one)) == sorted(map(str, plain)) == sorted(map(str, other))
    assert stats.records_out == 300
    moved = np.array([ids.index(row["sample_id"]) for row in plain])
    assert abs(np.corrcoef(moved, np.arange(300))[0, 1]) < 0.2


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 5))
def test_order_is_the_same_in_memory_and_over_files(sizes, seed):
    batches = [FakeBatch(sample_batch(n, size)) for n, size in enumerate(sizes)]
    held = pa.Table.from_batches([b.samples for b in shuffled(batches, seed)])
    spilled = pa.Table.from_batches([b.samples for b in shuffled(batches, seed, memory=600)])
    assert held.equals(spilled)
    assert held.num_rows == sum(sizes)
    assert sorted(held.column("sample_id").to_pylist()) == sorted(
        n for b in batches for n in b.samples.column(0).to_pylist()
    )


class FakeBatch:
    def __init__(self, samples, rejects=None, stats=None):
        self.samples = samples
        self.rejects = rejects if rejects is not None else pa.record_batch({"x": pa.array([], pa.int8())})
        self.stats = stats


def sample_batch(number, rows):
    return pa.record_batch(
        {
            "sample_id": [f"{number}-{row}" for row in range(rows)],
            "input_ids": pa.array([list(range(row % 7)) for row in range(rows)], pa.list_(pa.int32())),
        }
    )


def test_a_document_that_is_cut_to_its_bos_is_kept_or_left_out_alike_by_every_policy(tmp_path):
    """None chooses among the messages of a document; another mask for the run finds the same rows."""
    (tmp_path / "d.jsonl").write_bytes(orjson.dumps({"text": "Some words of a document."}))
    for least in (0, 1):
        data = {"input": str(tmp_path / "d.jsonl"), "mode": "text", "filters": {"min_trained_tokens": least}}
        made = recipe("gpt2", data, documents={"bos": True}, max_length=1, truncation="right")
        runs = {
            policy: write_run(
                made.with_changes(mask=policy, output=str(tmp_path / f"{policy}-{least}")), tokenizer("gpt2")
            )
            for policy in ("assistant", "last_assistant", "completion")
        }
        for policy, run in runs.items():
            fresh, derived = read_manifest(run), remask(runs["assistant"].url, policy, f"{run.url}-derived").manifest
            assert derived.content_digest == fresh.content_digest
            assert fresh.total.samples == derived.total.samples == 1 - least
            assert derived.total.filtered == fresh.total.filtered
