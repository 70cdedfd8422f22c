"""Storage that is full, refuses, is slow, or cuts answers short."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from badproxy import BadProxy
from faultkit import check_whole, events_of, write_data

from retok_dask.cluster import run, status
from retok_dask.datasets import OutputFolder, read_manifest
from retok_dask.errors import RetokError, StorageError


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 600 KiB that this test alone fills."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(make_recipe, tiny_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("retok_dask.cluster.trouble.STORAGE_TRIES", 2)
    data = write_data(tmp_path / "in", files=10, records=150)
    recipe = make_recipe(data, output=str(tiny_disk / "out"), units={"bytes": 30_000})
    with pytest.raises(StorageError, match="No space left") as caught:
        run(recipe, progress="none")
    assert "start the same command again" in str(caught.value)
    folder = OutputFolder(recipe.output)
    committed = set(folder.sizes("_retok/receipts"))
    assert committed
    assert not folder.exists("_retok/manifest.json")
    subprocess.run(["mount", "-o", "remount,size=64m", str(tiny_disk)], check=True)
    before = {name: Path(folder.path(name)).stat().st_mtime_ns for name in committed}
    result = run(recipe, progress="none")
    assert result.exit_code == 0
    assert result.committed_before >= len(committed) - 2  # one whose receipt was cut is done again
    calm = run(recipe.with_changes(output=str(tmp_path / "calm")), progress="none")
    check_whole(recipe, calm.content_digest)
    assert sum(Path(folder.path(name)).stat().st_mtime_ns == at for name, at in before.items()) >= len(before) - 2


def test_s3_that_answers_badly(make_recipe, s3, tmp_path):
    data = write_data(tmp_path / "in", files=4, records=60)
    for path in data.glob("*.jsonl"):
        s3.put(f"in/{path.name}", path.read_bytes())
    calm = run(make_recipe(data, output=str(tmp_path / "calm"), units={"bytes": 8000}), progress="none")
    with BadProxy(s3.endpoint, share=0.04, seed=1) as proxy:
        recipe = make_recipe(
            data,
            datasets=[{"name": "chat", "input": s3.url("in/*.jsonl")}],
            output=s3.url("out"),
            storage={"endpoint_url": proxy.endpoint, "region": "us-east-1"},
            units={"bytes": 8000},
        )
        for _ in range(6):  # a refusal may come where nothing can be tried again: then a user starts again
            try:
                result = run(recipe, progress="none")
            except RetokError:
                continue
            if result.exit_code == 0:
                break
        proxy.share = 0
        assert result.exit_code == 0
        assert sum(proxy.seen[fault] for fault in ("500", "503", "slow", "cut", "403")) > 5
        check_whole(recipe)
        manifest = read_manifest(OutputFolder(recipe.output, recipe.storage))
        assert manifest.total.tokens == calm.stats.tokens
        assert manifest.total.records_in == calm.stats.records_in
        found = status(recipe.output, storage=recipe.storage).outputs[0]
        assert found.state == "finished"
        assert events_of(recipe, "unit")


def test_no_credentials_are_written_anywhere(make_recipe, s3, tmp_path):
    data = write_data(tmp_path / "in", files=1, records=20)
    recipe = make_recipe(data, output=s3.url("out"), storage=s3.storage)
    assert run(recipe, progress="none").exit_code == 0
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    written = [path for path in (s3.folder / "out").rglob("*") if path.is_file()]
    assert len(written) > 4
    assert not [path for path in written if secret in path.read_bytes()]


def test_a_folder_that_cannot_be_written(make_recipe, tmp_path):
    (tmp_path / "file").write_text("in the way")
    recipe = make_recipe(output=str(tmp_path / "file" / "out"))
    with pytest.raises(RetokError, match="file"):
        run(recipe, progress="none")
    assert Path(tmp_path / "file").read_text() == "in the way"
