"""Units appear whole or not at all, row groups are bounded, receipts are believed only while files agree."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import assets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factory import FakeBatch, FakeUnit, make_batch, make_run, write_unit
from hypothesis import given, settings
from hypothesis import strategies as st

from retok_dask.datasets import (
    ContentDigest,
    OutputFolder,
    Receipt,
    UnitWriter,
    discard_unit,
    read_receipts,
    scan_receipts,
)
from retok_dask.datasets import writer as writer_module
from retok_dask.datasets.digest import flat_values, row_digests
from retok_dask.errors import OutputError
from retok_dask.kernel import UnitStats
from retok_dask.schema import REJECT_SCHEMA, bits, numbers, sample_schema, texts


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    if request.param == "local":
        return OutputFolder(str(tmp_path / "out"))
    return OutputFolder(f"memory://{tmp_path.name}/out")


def test_a_unit_is_readable_and_its_receipt_tells_the_truth(folder):
    batches = [make_batch(5, seed=1, rejects=2), make_batch(7, seed=2, first=7)]
    receipt = write_unit(
        folder, FakeUnit("u1", "chat", ({"url": "a", "start": 0, "end": 9},)), batches, fingerprint="f"
    )
    table = pq.read_table(folder.open_input("data/chat/u1.parquet"))
    assert table.schema.equals(sample_schema(), check_metadata=False)
    assert table.schema.metadata[b"retok.schema_version"] == b"1"
    assert table.to_pylist() == pa.Table.from_batches([b.samples for b in batches]).to_pylist()
    assert receipt.summary["rows"] == 12
    assert receipt.summary["tokens"] == sum(len(r["input_ids"]) for r in table.to_pylist())
    assert receipt.summary["max_num_tokens"] == max(r["num_tokens"] for r in table.to_pylist())
    assert UnitStats.from_dict(receipt.stats).rejected == {"bad_json": 2}
    assert receipt.source["parts"] == [{"url": "a", "start": 0, "end": 9}]
    assert pq.read_table(folder.open_input("rejects/chat/u1.parquet")).num_rows == 2
    assert read_receipts(folder, fingerprint="f", verify="sha256") == {"u1": receipt}
    assert Receipt.from_dict(receipt.to_dict()) == receipt


@pytest.mark.parametrize("batches", [[], [make_batch(0, rejects=3)]], ids=["no batch", "only rejects"])
def test_a_unit_without_rows_writes_a_valid_file(folder, batches):
    write_unit(folder, FakeUnit("u"), batches)
    table = pq.read_table(folder.open_input("data/data/u.parquet"))
    assert table.num_rows == 0
    assert table.schema.equals(sample_schema())
    assert list(read_receipts(folder)) == ["u"]


def test_nothing_appears_when_a_unit_fails(tmp_path):
    folder = OutputFolder(str(tmp_path))

    def fail() -> None:
        with UnitWriter(folder, FakeUnit("u"), (), "1") as writer:
            writer.write(make_batch(5))
            assert not (tmp_path / "data").exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert files(tmp_path) == set()


def test_the_receipt_comes_after_the_file(tmp_path, monkeypatch):
    folder = OutputFolder(str(tmp_path))
    monkeypatch.setattr(writer_module, "write_receipt", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_unit(folder, FakeUnit("u"), [make_batch(3)])
    assert files(tmp_path) == {"data/data/u.parquet", "_retok/vocabulary/data/u.parquet"}
    assert read_receipts(folder) == {}


def test_a_batch_of_another_schema_is_refused(tmp_path):
    folder = OutputFolder(str(tmp_path))
    with pytest.raises(OutputError, match="schema"):
        write_unit(folder, FakeUnit("u"), [make_batch(3, keep=("lang",))], keep=())


def test_kept_columns_are_in_every_file_of_a_run(tmp_path):
    """Loaders stop at the first file that differs: https://github.com/huggingface/datasets/issues/6039"""
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), [make_batch(3, keep=("lang",))], keep=("lang",))
    assert pq.read_schema(tmp_path / "data/data/u.parquet").equals(sample_schema(("lang",)))


def test_the_file_is_the_same_whichever_attempt_writes_it(tmp_path):
    first = write_unit(OutputFolder(str(tmp_path / "a")), FakeUnit("u"), [make_batch(30)])
    second = write_unit(OutputFolder(str(tmp_path / "b")), FakeUnit("u"), [make_batch(30)])
    assert first.outputs == second.outputs


def test_two_attempts_at_once_are_harmless(tmp_path):
    folder = OutputFolder(str(tmp_path))
    threads = [
        threading.Thread(target=write_unit, args=(folder, FakeUnit("u"), [make_batch(50, rejects=1)])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(read_receipts(folder, verify="sha256")) == ["u"]
    assert files(tmp_path) == {
        "data/data/u.parquet",
        "rejects/data/u.parquet",
        "_retok/receipts/u.json",
        "_retok/vocabulary/data/u.parquet",
    }


def test_row_groups_are_bounded_by_tokens_too(tmp_path, monkeypatch):
    """List offsets count to 2^31: https://github.com/apache/arrow/issues/47169"""
    monkeypatch.setattr(writer_module, "ROW_GROUP_ELEMENTS", 1000)
    batches = [make_batch(200, seed=1, length=(5, 20)), make_batch(1, seed=2, first=200, length=(3000, 3001))]
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), batches)
    file = pq.ParquetFile(tmp_path / "data/data/u.parquet")
    groups = [file.read_row_group(g) for g in range(file.num_row_groups)]
    assert len(groups) > 2
    assert all(sum(g.column("num_tokens").to_pylist()) <= 1000 or g.num_rows == 1 for g in groups)
    assert pq.read_table(tmp_path / "data/data/u.parquet").num_rows == 201


def test_row_groups_are_bounded_by_bytes_whatever_the_rows(tmp_path, monkeypatch):
    """Groups of gigabytes exhaust readers: https://github.com/pola-rs/polars/issues/25307"""
    monkeypatch.setattr(writer_module, "ROW_GROUP_BYTES", 64 * 1024)
    batches = [
        make_batch(300, seed=1, length=(5, 20)),
        make_batch(40, seed=2, first=300, length=(900, 1100)),
        make_batch(2, seed=3, first=340, length=(20_000, 20_001)),
    ]
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), batches)
    file = pq.ParquetFile(tmp_path / "data/data/u.parquet")
    groups = [file.read_row_group(g) for g in range(file.num_row_groups)]
    assert len(groups) > 5
    assert all(g.nbytes <= 64 * 1024 or g.num_rows == 1 for g in groups)
    assert [r for g in groups for r in g.column("sample_id").to_pylist()] == [
        r for b in batches for r in b.samples.column("sample_id").to_pylist()
    ]


def test_row_groups_stay_below_the_list_offset_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "ROW_GROUP_ELEMENTS", 1000)
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), [make_batch(200, length=(20, 90))])
    file = pq.ParquetFile(tmp_path / "data/data/u.parquet")
    counts = [sum(file.read_row_group(g).column("num_tokens").to_pylist()) for g in range(file.num_row_groups)]
    assert len(counts) > 5
    assert max(counts) <= 1000


def test_encodings_are_the_ones_agreed(tmp_path):
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), [make_batch(100)])
    group = pq.ParquetFile(tmp_path / "data/data/u.parquet").metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "RLE_DICTIONARY" not in columns["input_ids.list.element"].encodings
    assert "RLE_DICTIONARY" in columns["segments.list.element.kind"].encodings
    assert columns["loss_mask.list.element"].physical_type == "BOOLEAN"
    assert {column.compression for column in columns.values()} == {"ZSTD"}


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from factory import FakeUnit, make_batch
from retok_dask.datasets import OutputFolder, UnitWriter
with UnitWriter(OutputFolder({url!r}), FakeUnit("u"), (), "1") as writer:
    writer.write(make_batch(2000, length=(500, 600)))
    writer.write(make_batch(2000, first=2000, length=(500, 600)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_attempt_leaves_only_what_cleaning_removes(tmp_path):
    code = KILLED.format(here=str(Path(__file__).parent), url=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    folder = OutputFolder(str(tmp_path))
    assert all(name.startswith("_retok/tmp/") for name in files(tmp_path))
    assert files(tmp_path)
    assert read_receipts(folder) == {}
    assert folder.clean_temporary() == 2
    assert files(tmp_path) == set()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def fewer_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 3), path)


@pytest.mark.parametrize("damage", [empty, cut, fewer_rows, Path.unlink])
@pytest.mark.parametrize("verify", ["size", "footer", "sha256"])
def test_a_receipt_whose_file_disagrees_is_not_believed(tmp_path, damage, verify):
    folder = make_run(tmp_path, units=3, manifest=False)
    damage(tmp_path / "data/data/data-00001.parquet")
    scan = scan_receipts(folder, verify=verify)
    assert set(scan.committed) == {"data-00000", "data-00002"}
    assert "data/data/data-00001.parquet" in scan.refused["data-00001"]
    discard_unit(folder, "data", "data-00001")
    assert scan_receipts(folder).refused == {}
    assert not (tmp_path / "data/data/data-00001.parquet").exists()


def test_rows_are_compared_even_where_sizes_agree(tmp_path):
    folder = make_run(tmp_path, units=1, manifest=False)
    path = tmp_path / "data/data/data-00000.parquet"
    fewer_rows(path)
    receipt = folder.read_json("_retok/receipts/data-00000.json")
    receipt["outputs"][0]["size"] = path.stat().st_size
    folder.write_json("_retok/receipts/data-00000.json", receipt)
    assert "3 rows, its receipt says 20" in scan_receipts(folder).refused["data-00000"]


def test_a_flipped_byte_is_found_by_its_digest(tmp_path):
    folder = make_run(tmp_path, units=2, manifest=False)
    path = tmp_path / "data/data/data-00000.parquet"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert set(scan_receipts(folder, verify="sha256").refused) == {"data-00000"}


def test_receipts_of_another_run_or_damaged_ones_are_not_believed(tmp_path):
    folder = make_run(tmp_path, units=3, manifest=False)
    receipts = tmp_path / "_retok/receipts"
    (receipts / "data-00000.json").write_bytes(b'{"unit": "data-0')
    (receipts / "data-00001.json").write_bytes((receipts / "data-00002.json").read_bytes())
    scan = scan_receipts(folder)
    assert set(scan.refused) == {"data-00000", "data-00001"}
    assert set(scan_receipts(folder, fingerprint="0" * 64).refused) == {"data-00000", "data-00001", "data-00002"}


def test_only_wanted_receipts_are_read(tmp_path):
    folder = make_run(tmp_path, units=3, manifest=False)
    assert set(scan_receipts(folder, units=["data-00001", "data-77777"]).committed) == {"data-00001"}


def test_a_folder_travels_to_workers(folder):
    write_unit(folder, FakeUnit("u"), [make_batch(3)])
    assert list(read_receipts(pickle.loads(pickle.dumps(folder)))) == ["u"]


@pytest.mark.parametrize("unit", ["../x", "a/b", "", ".hidden"])
def test_unit_ids_cannot_leave_the_folder(tmp_path, unit):
    with pytest.raises(OutputError, match="name a file"):
        OutputFolder(str(tmp_path)).data("data", unit)


def test_clear_deletes_what_a_run_wrote_and_nothing_else(tmp_path):
    folder = make_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    folder.clear()
    assert files(tmp_path) == {"notes.txt"}


# the content digest


def digest_of(*batches: pa.RecordBatch) -> str:
    digest = ContentDigest()
    for batch in batches:
        digest.update(batch)
    return digest.hex


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 12), cut=st.integers(0, 12), seed=st.integers(0, 5))
def test_the_content_digest_knows_neither_order_nor_cuts(rows, cut, seed):
    batch = make_batch(rows, seed=seed).samples
    order = np.random.default_rng(seed).permutation(rows)
    assert digest_of(batch) == digest_of(batch.take(pa.array(order)))
    assert digest_of(batch) == digest_of(batch.slice(0, cut), batch.slice(cut))


def test_the_content_digest_survives_the_file(tmp_path):
    receipt = write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), [make_batch(40)])
    table = pq.read_table(tmp_path / "data/data/u.parquet")
    assert digest_of(*table.to_batches(max_chunksize=7)) == receipt.content_digest


def change(column: str, row: dict) -> dict:
    row = dict(row)
    if column == "sample_id":
        row["sample_id"] += "x"
    elif column == "input_ids":
        row["input_ids"] = [*row["input_ids"][:-1], row["input_ids"][-1] + 1]
    elif column == "loss_mask":
        row["loss_mask"] = [not row["loss_mask"][0], *row["loss_mask"][1:]]
    elif column == "segments":
        row["segments"] = [{**row["segments"][0], "message": 5}, *row["segments"][1:]]
    elif column == "kind":
        row["segments"] = [{**row["segments"][0], "kind": "user"}, *row["segments"][1:]]
    elif column == "message_flags":
        row["message_flags"] = "[true]"
    elif column == "truncated":
        row["truncated"] = True
    return row


@pytest.mark.parametrize(
    "column", ["sample_id", "input_ids", "loss_mask", "segments", "kind", "message_flags", "truncated"]
)
def test_the_content_digest_sees_every_part_of_a_row(column):
    batch = make_batch(3).samples
    rows = batch.to_pylist()
    rows[1] = change(column, rows[1])
    changed = pa.RecordBatch.from_pylist(rows, schema=batch.schema)
    before, after = row_digests(batch), row_digests(changed)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


def test_a_rows_digest_is_the_same_wherever_it_stands():
    """Masks are stored a bit a token, and a slice may begin within a byte."""
    batch = make_batch(12).samples
    digests = row_digests(batch)
    assert [row_digests(batch.slice(row, 1))[0] for row in range(12)] == digests
    assert row_digests(batch.slice(5, 0)) == []


def test_a_doubled_row_changes_the_content_digest():
    batch = make_batch(3).samples
    assert digest_of(batch) != digest_of(batch, batch.slice(0, 1))
    assert digest_of(batch) != digest_of(batch, batch.slice(0, 1), batch.slice(0, 1))


def test_rejects_have_their_schema(tmp_path):
    batch = make_batch(1, rejects=1)
    assert batch.rejects.schema.equals(REJECT_SCHEMA)
    write_unit(OutputFolder(str(tmp_path)), FakeUnit("u"), [FakeBatch(batch.samples, batch.rejects, batch.stats)])
    assert pq.read_schema(tmp_path / "rejects/data/u.parquet").equals(REJECT_SCHEMA)


def test_a_retried_unit_without_rejects_removes_the_old_ones(tmp_path):
    folder = OutputFolder(str(tmp_path))
    write_unit(folder, FakeUnit("u"), [make_batch(3, rejects=1)])
    write_unit(folder, FakeUnit("u"), [make_batch(3)])
    assert not (tmp_path / "rejects/data/u.parquet").exists()
    assert list(read_receipts(folder)) == ["u"]


WRITES = """
import sys
from retok_dask import Recipe, Tokenizer
from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import OutputFolder, UnitWriter
from retok_dask.kernel import Kernel

source, output, tokenizer = sys.argv[1:]
recipe = Recipe.from_dict({
    "tokenizer": {"path": tokenizer}, "output": output, "engine": "reference",
    "documents": {"separator": ""}, "datasets": [{"input": source, "mode": "text"}],
})
kernel = Kernel(recipe, recipe.datasets[0], Tokenizer.load(recipe.tokenizer, engine="reference"), None)
(unit,) = list_inputs(recipe).units
with UnitWriter(OutputFolder(output), unit) as writer:
    for batch in kernel.process(read_records(unit, recipe.datasets[0], recipe)):
        writer.write(batch)
print(writer.receipt.summary["rows"], "pandas" in sys.modules)
"""


def test_a_worker_writes_units_without_pandas(tmp_path):
    """Arrow imports pandas for the first array that is made of a list: a third of a second and 50 MiB a process."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "one \u00e9 \u4e2d"}\n{"text": ""}\n')
    arguments = [str(source), str(tmp_path / "out"), assets.tiny_tokenizer("byte_level").path]
    done = subprocess.run([sys.executable, "-c", WRITES, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_columns_of_texts_and_numbers_are_arrows_own():
    values = ["a", None, "", "\u00e9\U0001f600"]
    assert texts(values).equals(pa.array(values, pa.string()))
    assert texts([]).equals(pa.array([], pa.string()))
    assert texts([b"\xff", None], pa.binary()).equals(pa.array([b"\xff", None], pa.binary()))
    for kind in (np.int8, np.int32, np.int64):
        given = np.arange(10).astype(kind)[::3]
        assert numbers(given).equals(pa.array(given))
        assert flat_values(numbers(given)[1:]).tolist() == [3, 6, 9]
    assert bits(np.zeros(0, np.bool_)).equals(pa.array([], pa.bool_()))
    for column in (texts(values), numbers(np.arange(3)), bits(np.array([True, False]))):
        column.validate(full=True)
