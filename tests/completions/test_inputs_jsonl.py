"""JSON lines: every line read exactly once, and what is no record comes out with its reason and place."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_all, recipe_for, rejects, values

from retok_dask.completions import list_inputs, read_records
from retok_dask.types import Record, RejectReason

GOOD = b'{"messages": [{"role": "user", "content": "x"}]}'


def write(path: Path, *lines: bytes, end: bytes = b"\n") -> Path:
    path.write_bytes(b"\n".join(lines) + end)
    return path


def one_reject(path: Path, **kwargs):
    (reject,) = rejects(read_all(recipe_for(path, **kwargs)))
    return reject


lines = st.lists(
    st.one_of(
        st.just(b""),
        st.just(b" \t\r"),
        st.builds(lambda n, t: orjson.dumps({"n": n, "t": t}), st.integers(0, 9), st.text(max_size=40)),
        st.builds(lambda t: orjson.dumps({"t": t}) + b"\r", st.text(alphabet="ab\u2028\u2029\x0b\x0c\x85", max_size=9)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(lines=lines, last=st.booleans(), unit_bytes=st.integers(1, 400), mark=st.booleans())
def test_any_split_reads_each_line_exactly_once(tmp_path_factory, lines, last, unit_bytes, mark):
    path = tmp_path_factory.mktemp("split") / "a.jsonl"
    data = b"\n".join(lines) + (b"\n" if last else b"")
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + data)
    whole = read_all(recipe_for(path))
    split = read_all(recipe_for(path, units={"bytes": unit_bytes}))
    expected = [json.loads(line) for line in lines if line.strip()]
    assert values(whole) == values(split) == expected
    assert [r.offset for r in whole] == [r.offset for r in split]
    assert not rejects(whole)
    for record in split:
        assert path.read_bytes()[record.offset :].startswith(record.raw)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_block_boundaries_fall_anywhere(tmp_path, monkeypatch, block):
    path = write(tmp_path / "a.jsonl", *[orjson.dumps({"n": n, "t": "é\u2028" * n}) for n in range(30)])
    expected = values(read_all(recipe_for(path)))
    monkeypatch.setattr("retok_dask.completions.blocks.LOCAL_BLOCK", block)
    records = read_all(recipe_for(path, units={"bytes": 100}))
    assert values(records) == expected
    assert [v["n"] for v in expected] == list(range(30))


def test_a_line_longer_than_several_units_belongs_to_the_first_of_them(tmp_path):
    long = orjson.dumps({"t": "y" * 1000})
    path = write(tmp_path / "a.jsonl", b'{"n":1}', long, b'{"n":2}')
    recipe = recipe_for(path, units={"bytes": 100})
    listing = list_inputs(recipe)
    counts = [len(list(read_records(unit, recipe.datasets[0], recipe))) for unit in listing.units]
    assert sum(counts) == 3
    assert counts.count(0) > 5


def test_rows_are_known_from_the_start_of_a_file_and_offsets_always(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"n":0}', b"", b'{"n":2}')
    assert [(r.row, r.offset) for r in read_all(recipe_for(path))] == [(0, 0), (2, 9)]
    rows = [r.row for r in read_all(recipe_for(path, units={"bytes": 8}))]
    assert rows == [0, -1]


# C06
def test_a_record_larger_than_the_limit_is_rejected_with_its_place_and_bounded_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(GOOD + b"\n")
        file.write(b'{"t":"' + b"x" * (48 << 20) + b'"}\n')
        file.write(b'{"t":"' + b"x" * (2 << 20) + b'"}\n' + GOOD + b"\n")
    read_all(recipe_for(write(tmp_path / "warm.jsonl", GOOD)))
    tracemalloc.start()
    found = [
        (type(r).__name__, r.row, r.offset, len(r.raw))
        for r in read_all(recipe_for(path, units={"record_bytes": "1MiB"}))
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(kind, row) for kind, row, _, _ in found] == [("Record", 0), ("Reject", 1), ("Reject", 2), ("Record", 3)]
    assert found[1][2] == len(GOOD) + 1
    assert found[1][3] <= 64 * 1024
    assert peak < 8 << 20
    default = read_all(recipe_for(path))
    assert [type(r) for r in default] == [Record] * 4


# C10
def test_a_byte_order_mark_is_no_text_at_the_start_of_any_file(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(b'\xef\xbb\xbf{"t":"\\ufeffx"}\n{"t":"\xef\xbb\xbfy"}\n')
    assert values(read_all(recipe_for(tmp_path / "*.jsonl"))) == [{"t": "\ufeffx"}, {"t": "\ufeffy"}] * 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("unit_bytes", [1 << 20, 64])
def test_utf16_is_one_clear_reject_for_the_file(tmp_path, encoding, unit_bytes):
    path = tmp_path / "a.jsonl"
    path.write_bytes("".join('{"messages": []}\n' for _ in range(20)).encode(encoding))
    reject = one_reject(path, units={"bytes": unit_bytes})
    assert reject.reason is RejectReason.bad_file
    assert "UTF-16" in reject.detail


# C12
@pytest.mark.parametrize("text", [rb'{"t":"x\ud83d y"}', rb'{"t\udc4d":"x"}', rb'{"t":["a",{"b":"\udc4d\ud83d"}]}'])
def test_half_a_surrogate_pair_is_rejected_or_replaced_and_counted(tmp_path, text):
    path = write(tmp_path / "a.jsonl", text, rb'{"t":"\ud83d\udc4d"}', '{"t":"👍"}'.encode())
    records = read_all(recipe_for(path))
    assert values(records) == [{"t": "👍"}] * 2
    (reject,) = rejects(records)
    assert reject.reason is RejectReason.lone_surrogate
    assert (reject.row, reject.offset, reject.raw) == (0, 0, text)
    first, *others = read_all(recipe_for(path, mend=["lone_surrogates"]))
    assert "\ufffd" in json.dumps(first.value, ensure_ascii=False)
    assert first.counts == {"lone_surrogates_mended": 1}
    assert [r.counts for r in others] == [None, None]


# C13
def test_control_characters_nul_runs_and_two_objects_on_a_line(tmp_path):
    bad = [b'{"t":"a\tb"}', b"\0" * 4096, b'{"t":1}{"t":2}', b'{"t":1} x', b'{"t":"' + b"\0" * 9 + b'"}']
    path = write(tmp_path / "a.jsonl", *bad, rb'{"t":"a\u0000b"}')
    records = read_all(recipe_for(path))
    assert values(records) == [{"t": "a\0b"}]
    found = rejects(records)
    assert [r.reason.value for r in found] == ["control_character", "nul_run", "bad_json", "bad_json", "nul_run"]
    assert "at byte 7 " in found[0].detail
    assert "'\\t'" in found[0].detail
    assert "second value" in found[2].detail
    assert [r.offset for r in found] == [0, 12, 12 + 4097, 12 + 4097 + 15, 12 + 4097 + 15 + 10]
    mended = read_all(recipe_for(path, mend=["control_characters"]))
    assert mended[0].value == {"t": "a\tb"}
    assert mended[0].counts == {"control_characters_mended": 1}
    assert len(rejects(mended)) == 4


# C14
def test_malformed_lines_neither_vanish_nor_take_their_neighbour(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD, b'{"a":', GOOD, b'{"messages": [{"role"', end=b"")
    records = read_all(recipe_for(path))
    assert [type(r).__name__ for r in records] == ["Record", "Reject", "Record", "Reject"]
    assert [(r.row, r.offset) for r in rejects(records)] == [(1, 49), (3, 104)]
    assert all(r.reason is RejectReason.bad_json and r.raw for r in rejects(records))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1, 2]", "not_an_object"),
        (b"null", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"12", "not_an_object"),
        (b'{"a": NaN}', "not_finite_number"),
        (b'{"a": -Infinity}', "not_finite_number"),
        (b'{"a": 1e999}', "not_finite_number"),
        (b'{"a": "\xff"}', "bad_utf8"),
        (b'{"a": "\xed\xa0\xbd"}', "bad_utf8"),
        (b'{"a": 01}', "bad_json"),
        (b"{'a': 1}", "bad_json"),
        (b'{"a":' * 100_000, "bad_json"),
        (b"\x0c", "bad_json"),
    ],
)
def test_each_kind_of_bad_line_has_its_reason(tmp_path, line, reason):
    records = read_all(recipe_for(write(tmp_path / "a.jsonl", GOOD, line, GOOD)))
    assert [getattr(r, "reason", None) for r in records] == [None, reason, None]


@pytest.mark.parametrize("colon", [": ", ":", "\t:"])
def test_numbers_stay_what_they_are(tmp_path, colon):
    texts = ["12345678901234567890", "99999999999999999999", "-99999999999999999999999999", "1e20", "0.1", "1e-400"]
    path = write(tmp_path / "a.jsonl", *[f'{{"id"{colon}{text}}}'.encode() for text in texts])
    found = [value["id"] for value in values(read_all(recipe_for(path)))]
    assert found == [json.loads(text) for text in texts]
    assert [type(number) for number in found] == [int, int, int, float, float, float]


# C07
def test_a_type_that_changes_late_in_the_file_changes_nothing_before(tmp_path):
    rows = [b'{"id":1,"x":null}'] * 20_000 + [b'{"id":"2024-01-01T00:00:00","x":"y"}', b'{"id":{"a":1},"x":[1]}']
    found = values(read_all(recipe_for(write(tmp_path / "a.jsonl", *rows))))
    assert found[:2] == [{"id": 1, "x": None}] * 2
    assert found[-2:] == [{"id": "2024-01-01T00:00:00", "x": "y"}, {"id": {"a": 1}, "x": [1]}]
    assert len(found) == len(rows)


# C08
def test_records_of_different_shape_are_each_parsed_as_if_alone(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "y"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}]},
    ]
    assert values(read_all(recipe_for(write(tmp_path / "a.jsonl", *map(orjson.dumps, rows))))) == rows


# E06
def test_a_large_file_is_read_in_bounded_memory_whatever_its_size(tmp_path):
    path = tmp_path / "a.jsonl"
    line = orjson.dumps({"t": "z" * 20_000}) + b"\n"
    with path.open("wb") as file:
        for _ in range(2_000):
            file.write(line)
    recipe = recipe_for(path, units={"bytes": "10MiB"})
    listing = list_inputs(recipe)
    assert len(listing.units) == 4
    tracemalloc.start()
    count = sum(1 for unit in listing.units for _ in read_records(unit, recipe.datasets[0], recipe))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_000
    assert peak < 8 << 20


def test_halves_of_a_unit_together_are_the_unit(tmp_path):
    path = write(tmp_path / "a.jsonl", *[b'{"n":%d}' % n for n in range(7)], b"broken")
    recipe = recipe_for(path)
    (unit,) = list_inputs(recipe).units

    def read(part):
        return [(r.offset, getattr(r, "value", None)) for r in read_records(part, recipe.datasets[0], recipe)]

    low, high = unit.halves(8)
    assert read(low) + read(high) == read(unit)
    quarters = [quarter for half in (low, high) for quarter in half.halves(8)]
    assert [record for q in quarters for record in read(q)] == read(unit)
    assert {q.base_id for q in quarters} == {unit.id}
    assert len({q.id for q in quarters}) == 4
