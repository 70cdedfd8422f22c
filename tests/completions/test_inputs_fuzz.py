"""Mutated files of every format: no crash, no hang, and every line accounted for."""

from __future__ import annotations

import gzip
import io
import json
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reading import read_all, recipe_for

from retok_dask.completions import content_key, layout_for, read_stream
from retok_dask.completions.layouts.table import RULES
from retok_dask.types import Record, RecordRejected, Reject

CONVERSATION = {
    "id": 1,
    "messages": [{"role": "user", "content": 'a "b" \\ {é} \u2028'}, {"role": "assistant", "content": "c\n\td"}],
    "tools": [{"name": "f", "parameters": {}}],
}
SHAREGPT = {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}], "tools": "[]"}
LINES = [json.dumps(CONVERSATION).encode(), json.dumps(SHAREGPT, ensure_ascii=False).encode()] * 3
PIECES = [b"\n", b"\r\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\0", b"\0\0\0", b"\xff", b"\xef\xbb\xbf", b"NaN"]
PIECES += [
    b"\\ud83d",
    b"\xed\xa0\x80",
    b"1" * 400,
    b"1e999",
    b"\xff\xfe",
    b"\x1f\x8b",
    b" ",
    b"\t",
    b"null",
    b":",
    b"\x85",
]

edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "cut", "repeat"]),
        st.floats(0, 1),
        st.sampled_from(PIECES) | st.binary(min_size=1, max_size=4),
    ),
    max_size=6,
)


def mutate(data: bytes, steps: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, piece in steps:
        at = int(where * len(data))
        if kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "replace":
            data = data[:at] + piece + data[at + len(piece) :]
        elif kind == "delete":
            data = data[:at] + data[at + 7 * len(piece) :]
        elif kind == "cut":
            data = data[:at] if where > 0.3 else data
        else:
            data = data[:at] + data[max(0, at - 50) : at] + data[at:]
    return data


def made(layout, record):
    """Items of a record, or why there are none."""
    try:
        return layout(record), ""
    except RecordRejected as problem:
        return [], problem.detail


def check_records(recipe) -> list[Record | Reject]:
    """Read all, and hold every record and reject to what it promises."""
    records = read_all(recipe)
    layout = layout_for(recipe.datasets[0])
    for record in records:
        if isinstance(record, Reject):
            assert record.detail
            continue
        assert type(record.value) is dict
        items, problem = made(layout, record)
        assert bool(items) != bool(problem)
        assert all(len(content_key(item)) == 16 for item in items)
    return records


@settings(max_examples=250, deadline=None)
@given(steps=edits, unit_bytes=st.integers(30, 3000))
@example(steps=[("insert", 0.0, b"\xef\xbb\xbf")], unit_bytes=30)
@example(steps=[("insert", 0.5, b"\0" * 5000)], unit_bytes=100)
def test_every_line_of_a_mutated_jsonl_file_is_a_record_or_a_reject(tmp_path_factory, steps, unit_bytes):
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    data = mutate(b"\n".join(LINES) + b"\n", steps)
    path.write_bytes(data)
    whole = check_records(recipe_for(path))
    if any(record.row == -1 and isinstance(record, Reject) for record in whole):
        assert data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[:4].count(0) >= 2
        return
    text = data.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in text.split(b"\n") if line.strip(b" \t\r\n")]
    assert len(whole) == len(lines)
    split = check_records(recipe_for(path, units={"bytes": unit_bytes}))
    assert [(r.offset, r.raw, type(r)) for r in split] == [(r.offset, r.raw, type(r)) for r in whole]
    for record in whole:
        assert data[record.offset :].startswith(record.raw)


@settings(max_examples=150, deadline=None)
@given(steps=edits)
@example(steps=[("insert", 0.0, b"\xff\xfe")])
@example(steps=[("replace", 0.001, b"\0" * 7)])
def test_whatever_comes_through_a_pipe_is_records_and_rejects(steps):
    """`retok encode` reads what it is given: UTF-16 and NUL bytes too are a reject with a reason, no traceback."""
    data = mutate(b"\n".join(LINES) + b"\n", steps)
    found = list(read_stream(io.BufferedReader(io.BytesIO(data)), "-", 1 << 20))
    assert all(isinstance(one, Record) or one.detail for one in found)
    lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip(b" \t\r\n")]
    whole = [one for one in found if isinstance(one, Reject) and one.row == -1]
    assert len(found) == len(lines) or [one.reason for one in whole] == ["bad_file"]


@settings(max_examples=150, deadline=None)
@given(steps=edits, indent=st.sampled_from([None, 1]))
def test_a_mutated_array_never_loses_elements_silently(tmp_path_factory, steps, indent):
    path = tmp_path_factory.mktemp("fuzz") / "a.json"
    rows = [CONVERSATION, SHAREGPT] * 3
    data = mutate(json.dumps(rows, indent=indent).encode(), steps)
    path.write_bytes(data)
    records = check_records(recipe_for(path))
    try:
        expected = json.loads(data.decode("utf-8-sig"))
    except ValueError:
        # the file is broken somewhere: some reject must say so, unless nothing is left of it
        assert any(isinstance(r, Reject) for r in records) or not data.strip() or len(records) < len(rows)
        return
    if isinstance(expected, list) and not any(isinstance(r, Reject) for r in records):
        assert [r.value for r in records] == expected


@cache
def packed() -> dict[str, bytes]:
    text = b"\n".join(LINES) + b"\n"
    table = pa.Table.from_pylist([{"id": str(n), "text": "t" * n, "n": n} for n in range(200)])
    parquet, stream = pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(table, parquet, row_group_size=30)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, 40)
    return {
        "a.jsonl.gz": gzip.compress(text) + gzip.compress(text),
        "a.jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress(text) * 2,
        "a.parquet": parquet.getvalue().to_pybytes(),
        "a.arrow": stream.getvalue().to_pybytes(),
        "a.csv": b"text,b\n" + b'"x, ""y""\nz",2\n' * 20,
        "a.traj": json.dumps(CONVERSATION).encode(),
        "a.txt": "Text in Zeilen\nübrig\n".encode() * 9,
    }


@pytest.mark.parametrize("name", sorted(packed()))
@settings(max_examples=60, deadline=None)
@given(steps=edits)
def test_mutated_files_of_other_formats_do_not_crash_the_reader(tmp_path_factory, name, steps):
    path = tmp_path_factory.mktemp("fuzz") / name
    original = packed()[name]
    data = mutate(original, steps)
    path.write_bytes(data)
    records = check_records(recipe_for(path, mode="text" if name[2:] in ("parquet", "arrow", "csv", "txt") else "chat"))
    if data != original and name.endswith(("gz", "zst")):
        checksummed = [r for r in records if isinstance(r, Record)]
        assert len(checksummed) % 6 == 0 or any(isinstance(r, Reject) for r in records)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=8,
)
names = sorted({"messages", "conversations", "prompt", "completion", "chosen", "rejected", "instruction", "output"})
names += ["question", "answer", "text", "paragraphs", "input_ids", "labels", "loss_mask", "segments", "replies"]
names += ["role", "tools", "system", "history", "id", "conversation"]


@settings(max_examples=200, deadline=None)
@given(
    value=st.dictionaries(st.sampled_from(names), json_values, max_size=5), prefer=st.sampled_from(["chosen", "both"])
)
def test_no_layout_breaks_on_odd_values(value, prefer):
    for rule in RULES:
        for mode in rule.modes:
            form = "retok" if rule.name == "retok" else "auto"
            spec = recipe_for("x", mode=mode, layout=rule.name, prefer=prefer, format=form).datasets[0]
            items, problem = made(layout_for(spec), Record("f", 0, 0, None, value))
            assert bool(items) != bool(problem)
            assert "cannot read it" not in problem, problem
