"""A run's whole life on a real S3 server."""

from __future__ import annotations

import errno

import pytest
from factory import FakeUnit, make_batch, make_run, write_unit

from retok_dask.checks import validate
from retok_dask.datasets import (
    OutputFolder,
    OutputLock,
    diff,
    export,
    open_dataset,
    read_receipts,
    remask,
    scan_receipts,
    write_manifest,
)
from retok_dask.errors import OutputLocked, StorageError, UnfinishedOutput
from retok_dask.recipe import StorageSpec

pytestmark = pytest.mark.s3


@pytest.fixture
def folder(s3):
    return OutputFolder(s3.url("runs/one"), StorageSpec(**s3.storage))


def test_write_resume_read_remask_export_and_validate(s3, folder):
    make_run(folder.url, folder=folder, names=("a", "b"), units=2, rejects=1, manifest=False, max_reject_share=0.5)
    with pytest.raises(UnfinishedOutput):
        open_dataset(folder.url, storage=folder.storage)
    assert len(read_receipts(folder, verify="sha256")) == 4
    damaged = s3.folder / "runs/one/data/a/a-00001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert set(scan_receipts(folder).refused) == {"a-00001"}
    receipt = folder.read_json(folder.receipt("a-00001"))
    args = {"file": "a/1.jsonl", "dataset": "a"}
    batches = [make_batch(10, seed=10, rejects=1, **args), make_batch(10, seed=11, first=10, **args)]
    write_unit(folder, FakeUnit("a-00001", "a"), batches, fingerprint=receipt["fingerprint"])
    assert folder.read_json(folder.receipt("a-00001"))["outputs"] == receipt["outputs"]
    write_manifest(folder, read_receipts(folder))
    data = open_dataset(folder.url, storage=folder.storage)
    assert len(data) == len(list(data)) == 80
    assert data.to_dask().compute(scheduler="sync").shape[0] == 80
    report = validate(folder.url, storage=folder.storage)
    assert {check.name for check in report.failed} <= {"trained_tokens"}
    remask(folder.url, "all", s3.url("runs/two"), storage=folder.storage)
    assert diff(folder.url, s3.url("runs/two"), storage=folder.storage).changed == 80
    result = export(folder.url, "npy", s3.url("export"), storage=folder.storage)
    assert result.documents == 80
    assert (s3.folder / "export/input_ids-00000.npy").exists()
    assert not [path for path in s3.folder.rglob("*") if "tmp" in path.name]


def test_two_clients_do_not_share_a_folder(folder):
    first, second = OutputLock(folder), OutputLock(folder)
    first.acquire()
    with pytest.raises(OutputLocked):
        second.acquire()
    first.refresh()
    first.release()
    second.acquire()


def test_a_failed_upload_leaves_no_object_and_no_local_file(s3, folder, monkeypatch, tmp_path):
    import tempfile

    from retok_dask.completions import open_fs

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "the store is full")

    monkeypatch.setattr(open_fs(folder.url, folder.storage)[0], "put_file", fail)
    with pytest.raises(StorageError, match="the store is full"):
        write_unit(folder, FakeUnit("u"), [make_batch(3)])
    assert not list(s3.folder.rglob("*.parquet"))
    assert not list(tmp_path.iterdir())
    assert read_receipts(folder) == {}


def test_what_a_killed_process_left_in_the_temporary_folder_goes(folder, monkeypatch, tmp_path):
    import socket
    import tempfile

    from retok_dask.datasets.files import forget_the_dead

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    forget_the_dead.cache_clear()
    dead, other = tmp_path / f"retok-{socket.gethostname()}-{2**22 + 1}-x.tmp", tmp_path / "retok-elsewhere-1-x.tmp"
    dead.touch()
    other.touch()
    mine = folder.local_temporary("u")
    assert set(tmp_path.iterdir()) == {mine, other}


def test_a_large_unit_is_one_completed_multipart_upload(s3, folder, monkeypatch):
    from s3fs import core

    monkeypatch.setattr(core, "calculate_chunksize", lambda *_, **__: 5 * 2**20)
    local = folder.local_temporary("big")
    local.write_bytes(bytes(range(256)) * 50_000)
    size = local.stat().st_size
    assert size > 2 * 5 * 2**20
    published = folder.publish(local, "data/big.bin")
    assert published.size == size
    assert (s3.folder / "runs/one/data/big.bin").stat().st_size == size


def test_clear_removes_the_run_and_nothing_beside_it(s3, folder):
    make_run(folder.url, folder=folder, units=1)
    s3.put("runs/one-more/keep.txt", b"mine")
    s3.put("runs/one/notes.txt", b"mine")
    folder.clear()
    left = {str(path.relative_to(s3.folder)) for path in s3.folder.rglob("*") if path.is_file()}
    assert left == {"runs/one-more/keep.txt", "runs/one/notes.txt"}
    assert folder.clean_temporary() == 0
