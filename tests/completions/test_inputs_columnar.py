"""Parquet, Arrow and CSV: any row-group size, each row by itself, broken files said to be broken."""

from __future__ import annotations

import csv
import datetime as dt
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import item_of, items_of, read_all, recipe_for, rejects, values

from retok_dask.completions import list_inputs, read_records
from retok_dask.types import TokenRow

CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())]))


def chats(count: int) -> pa.Table:
    rows = [
        [
            {"role": "user", "content": f"q{n}", "name": None},
            {"role": "assistant", "content": "a" * (n % 7), "name": None},
        ]
        for n in range(count)
    ]
    return pa.table({"id": pa.array(range(count)), "messages": pa.array(rows, CHAT)})


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 60), group=st.integers(1, 70), unit_bytes=st.integers(400, 6000))
def test_any_split_reads_each_row_exactly_once(tmp_path_factory, rows, group, unit_bytes):
    path = tmp_path_factory.mktemp("pq") / "a.parquet"
    pq.write_table(chats(rows), path, row_group_size=group)
    found = read_all(recipe_for(path, units={"bytes": unit_bytes}))
    assert [v["id"] for v in values(found)] == list(range(rows))
    assert [r.row for r in found] == list(range(rows))
    assert values(found) == chats(rows).to_pylist()


def test_a_row_group_larger_than_a_batch_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "a.parquet"
    text = ["z" * 30_000 + str(n) for n in range(2_000)]
    pq.write_table(pa.table({"text": text}), path, row_group_size=2_000, compression="zstd", use_dictionary=False)
    recipe = recipe_for(path, mode="text")
    (unit,) = list_inputs(recipe).units
    base = pa.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for number, record in enumerate(read_records(unit, recipe.datasets[0], recipe)):
        assert record.value["text"].endswith(f"z{number}")
        peak = max(peak, pa.total_allocated_bytes() - base)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
    assert python_peak < 40 << 20


def test_rows_larger_than_the_limit_are_rejected_one_by_one(tmp_path):
    texts = ["a", "b" * 5000, "c", "d" * 5000, "e"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    for name in ("a.parquet", "b.arrow"):
        found = read_all(recipe_for(tmp_path / name, mode="text", units={"record_bytes": 1000}))
        assert [v["text"] for v in values(found)] == ["a", "c", "e"]
        assert [(r.row, r.reason.value) for r in rejects(found)] == [(1, "too_large"), (3, "too_large")]


def test_nested_values_are_of_their_row_alone_and_null_padding_does_no_harm(tmp_path):
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": "z"}]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    items, refused = items_of(recipe_for(tmp_path / "a.parquet"))
    assert not refused
    assert items[0].messages[1]["tool_calls"] == [call]
    assert items[1].messages[1] == {"role": "assistant", "content": "z", "tool_calls": None}


def test_only_columns_that_matter_are_read_and_types_are_not_guessed(tmp_path):
    when = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table = pa.table({"text": ["a"], "big": [2**62], "when": [when], "unused": ["x"], "source": ["s"]})
    pq.write_table(table, tmp_path / "a.parquet")
    recipe = recipe_for(tmp_path / "a.parquet", mode="text", keep=["big", "when"])
    assert values(read_all(recipe)) == [{"text": "a", "big": 2**62, "when": when}]
    everything = recipe_for(tmp_path / "a.parquet", mode="text", filters={"function": "builtins:bool"})
    assert set(values(read_all(everything))[0]) == {"text", "big", "when", "unused", "source"}


def test_ids_come_as_arrays_with_mask_and_segments(tmp_path):
    segment = {"start": 0, "end": 3, "kind": "content", "message": 1}
    rows = {"input_ids": [[1, 2, 3], [4], None], "loss_mask": [[True, False, True], [True], None]}
    table = pa.table(rows | {"segments": [[segment], None, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    items, refused = items_of(recipe_for(tmp_path / "a.parquet", mode="tokens"))
    assert [item.input_ids.tolist() for item in items] == [[1, 2, 3], [4]]
    assert isinstance(items[0], TokenRow)
    assert items[0].loss_mask.tolist() == [True, False, True]
    assert items[0].segments == [(0, 3, "content", 1)]
    assert [reason for reason, _ in refused] == ["bad_tokens"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"input_ids": [1, 2.5]}, "something else than integers"),
        ({"input_ids": [True]}, "something else than integers"),
        ({"input_ids": []}, "no ids"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "1 entry for 2 ids"),
        ({"input_ids": [1, 2], "loss_mask": [1, 7]}, "something else than 0, 1"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "shifted labels"),
        ({"input_ids": [1, 2], "labels": [1]}, "1 entry for 2 ids"),
        ({"input_ids": [1], "segments": [{"start": 0, "end": 2, "kind": "content", "message": 0}]}, "end at id 2"),
        ({"input_ids": [1], "segments": [{"start": 0, "end": 1, "kind": "odd", "message": 0}]}, "unknown kind"),
        ({"input_ids": [1], "segments": [1]}, "no list of objects"),
        ({"input_ids": [2**70]}, "64 bits"),
    ],
)
def test_rows_of_ids_that_contradict_themselves_are_rejected(row, why):
    from retok_dask.types import RecordRejected

    with pytest.raises(RecordRejected, match="bad_tokens") as caught:
        item_of(row, mode="tokens")
    assert why in caught.value.detail


def test_masks_and_labels_under_other_names():
    assert item_of({"tokens": [5, 6], "assistant_masks": [0, 1]}, mode="tokens").loss_mask.tolist() == [False, True]
    assert item_of({"input_ids": [5, 6], "labels": [-100, 6]}, mode="tokens").loss_mask.tolist() == [False, True]
    assert item_of({"input_ids": np.array([5, 6])}, mode="tokens").loss_mask is None


# F04 as input
@pytest.mark.parametrize("damage", ["empty", "cut", "text", "middle"])
@pytest.mark.parametrize("unit_bytes", [1 << 20, 600])
def test_a_broken_parquet_file_is_one_reject_and_the_others_are_read(tmp_path, damage, unit_bytes):
    for name in "abc":
        pq.write_table(chats(300), tmp_path / f"{name}.parquet", row_group_size=50)
    path = tmp_path / "b.parquet"
    data = bytearray(path.read_bytes())
    if damage == "middle":
        data[40:400] = b"\xff" * 360
    path.write_bytes({"empty": b"", "cut": bytes(data[:-10]), "text": b"no parquet", "middle": bytes(data)}[damage])
    found = read_all(recipe_for(tmp_path / "*.parquet", units={"bytes": unit_bytes}))
    (reject,) = rejects(found)
    assert reject.reason.value == "bad_file"
    assert reject.file == str(path)
    assert {r.file for r in found if r is not reject} >= {str(tmp_path / "a.parquet"), str(tmp_path / "c.parquet")}
    assert len(values(found)) >= 600


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_files_of_both_forms_and_any_batches(tmp_path, form):
    table = chats(500)
    make = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with make(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table.slice(0, 3))
        writer.write_table(table.slice(3, 490))
        writer.write_table(table.slice(493))
    found = read_all(recipe_for(tmp_path / "a.arrow"))
    assert values(found) == table.to_pylist()
    assert [r.row for r in found] == list(range(500))


def test_a_cut_arrow_stream_is_never_success_with_fewer_rows(tmp_path):
    table = chats(90)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        for start in range(0, 90, 30):
            writer.write_table(table.slice(start, 30))
    data = (tmp_path / "a.arrow").read_bytes()
    for cut in range(1, len(data), 97):
        (tmp_path / "a.arrow").write_bytes(data[:-cut])
        found = read_all(recipe_for(tmp_path / "a.arrow"))
        assert len(rejects(found)) == 1, cut
        assert len(values(found)) <= 90
    (tmp_path / "a.arrow").write_bytes(b"")
    assert len(rejects(read_all(recipe_for(tmp_path / "a.arrow")))) == 1


def test_a_folder_as_the_datasets_library_saves_it(tmp_path):
    for split, count in (("train", 40), ("test", 3)):
        folder = tmp_path / split
        folder.mkdir()
        half = count // 2
        for number, table in enumerate((chats(count).slice(0, half), chats(count).slice(half))):
            with pa.ipc.new_stream(str(folder / f"data-{number:05d}-of-00002.arrow"), table.schema) as writer:
                writer.write_table(table)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}))
        (folder / "dataset_info.json").write_text("{}")
        (folder / "cache-0123456789abcdef.arrow").write_bytes(b"left over")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(values(read_all(recipe_for(tmp_path)))) == 43
    assert len(values(read_all(recipe_for(tmp_path / "train")))) == 40


def test_csv_with_quotes_newlines_and_odd_rows(tmp_path):
    rows = [["q", "a"], ["x, y", 'say "hi"'], ["two\nlines", ""], ["12345678901234567890", "2024-01-01"]]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    (tmp_path / "b.tsv").write_bytes(b"q\ta\r\n1\t2\r\n1\r\n\r\n\xff\t3\r\n4\t5\r\n")
    good = values(read_all(recipe_for(tmp_path / "a.csv")))
    assert good == [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    found = read_all(recipe_for(tmp_path / "b.tsv"))
    assert [getattr(r, "reason", None) for r in found] == [None, "bad_layout", "bad_utf8", None]
    assert [r.row for r in found] == [0, 1, 2, 3]


def test_csv_whose_quote_never_ends_or_whose_header_repeats(tmp_path):
    (tmp_path / "a.csv").write_text('q,a\n1,2\n"3,4\n5,6\n')
    (tmp_path / "b.csv").write_text("q,q\n1,2\n")
    (tmp_path / "c.csv").write_text("q,a\n1,2\n" + "x" * 2000 + ",2\n")
    large = read_all(recipe_for(tmp_path / "c.csv", units={"record_bytes": 1000}))
    assert [getattr(r, "reason", None) for r in large] == [None, "too_large"]
    assert [getattr(r, "reason", None) for r in read_all(recipe_for(tmp_path / "a.csv"))] == [None, "bad_file"]
    assert [r.reason.value for r in rejects(read_all(recipe_for(tmp_path / "b.csv")))] == ["bad_file"]


def test_messages_as_json_text_in_a_column(tmp_path):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "messages"], ["7", json.dumps(messages)]])
    ((item,), refused) = items_of(recipe_for(tmp_path / "a.csv"))
    assert (item.id, item.messages, refused) == ("7", messages, [])
