"""A mixture is exported in its own order, whatever the shards, the format, the workers, and what came between."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client
from factory import make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import in_process, refused

from retok_dask.datasets import OutputFolder, export, mix_runs, open_mixture
from retok_dask.datasets import writer as writer_module
from retok_dask.datasets.exits import EXITS
from retok_dask.datasets.exits.base import IGNORED
from retok_dask.errors import OutputError

drawn = importlib.import_module("retok_dask.datasets.drawn")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_BYTES", 4000)
        make_run(path / "one", names=("a", "b"), units=3, rows=23)
        # the same file names, and so the same sample ids
        make_run(path / "two", names=("b", "c"), units=2, rows=30)
    return [str(path / "one"), str(path / "two")]


@pytest.fixture(scope="module")
def mixture(runs, tmp_path_factory):
    """Some rows come several times, some never."""
    file = str(tmp_path_factory.mktemp("mixture") / "mixture.parquet")
    mix_runs(runs, {"a": 1, "b": 4, "c": 0.3}, epochs=1.7, seed=5, to=file)
    return file


@pytest.fixture(scope="module")
def truth(mixture):
    rows = [
        (row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()) for row in open_mixture(mixture).iterate()
    ]
    assert len({tuple(ids) for ids, _ in rows}) < len(rows)
    return rows


def rows_of(folder) -> list[tuple[list[int], list[int]]]:
    found = pq.read_table(f"{folder}/data").to_pydict()
    return list(zip(found["input_ids"], found["assistant_masks"], strict=True))


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "_retok" not in str(path)
    }


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 99),
    epochs=st.floats(0.05, 3),
    shards=st.one_of(st.none(), st.integers(1, 30)),
    small=st.booleans(),
)
def test_the_order_is_the_mixtures_for_any_shards(runs, tmp_path_factory, seed, epochs, shards, small):
    folder = tmp_path_factory.mktemp("law")
    file = str(folder / "mixture.parquet")
    mixture = mix_runs(runs, {"a": 1, "b": 2, "c": 1}, epochs=epochs, seed=seed, to=file).mixture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn, "PART_TOKENS", 500 if small else drawn.PART_TOKENS)
        result = export(file, "trl-assistant", str(folder / "out"), shards=shards)
    assert result.documents == result.rows == len(mixture)
    assert result.shards == min(shards or 1, len(mixture))
    rows = [(row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()) for row in mixture.iterate()]
    assert rows_of(folder / "out") == rows


@pytest.mark.parametrize("to", EXITS)
def test_every_exit_takes_a_mixture(mixture, truth, tmp_path, to):
    result = export(mixture, to, str(tmp_path), shards=3)
    assert (result.documents, result.shards) == (len(truth), 3)
    assert result.tokens == sum(len(ids) for ids, _ in truth)
    assert result.loss_tokens == sum(sum(mask) for _, mask in truth)
    about = json.loads((tmp_path / "_retok_export/export.json").read_text())
    assert about["source"] == mixture
    assert about["mixture"]["settings"]["weights"] == {"a": 1, "b": 4, "c": 0.3}
    assert [len(run["content_digest"]) for run in about["mixture"]["runs"]] == [64, 64]
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("*.arrow")) or to in {"hf-arrow", "specforge", "speculators"}
    assert not list((tmp_path / "_retok_export").rglob("*.npy"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert export(mixture, to, str(tmp_path), shards=3) == result
    kept = [path for path in before if "shards" in str(path)]
    assert kept
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)


def test_each_row_has_a_name_of_its_own(mixture, truth, tmp_path):
    import webdataset

    export(mixture, "webdataset", str(tmp_path), shards=2)
    urls = sorted(str(path) for path in tmp_path.glob("*.tar"))
    rows = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert [(row["input_ids.npy"].tolist(), row["loss_mask.npy"].astype(int).tolist()) for row in rows] == truth
    names = [row["__key__"] for row in rows]
    assert len(set(names)) == len(names)
    assert any(name.endswith("-d2") for name in names)
    assert any("-run1" in name for name in names)
    # the first part of each is the sample's own id
    ids = [row["sample_id"] for row in open_mixture(mixture).select(["sample_id"]).iterate()]
    assert all(name.startswith(sample) for name, sample in zip(names, ids, strict=True))


def test_packed_rows_keep_every_token_and_document(mixture, truth, tmp_path):
    result = export(mixture, "trl", str(tmp_path / "trl"), pack=64, shards=2)
    assert (result.documents, result.tokens) == (len(truth), sum(len(ids) for ids, _ in truth))
    found = pq.read_table(f"{tmp_path}/trl/data").to_pydict()
    labels = [[t if m and i else IGNORED for i, (t, m) in enumerate(zip(*row, strict=True))] for row in truth]
    packed = [
        (part.tolist(), label.tolist())
        for ids, ls, sizes in zip(found["input_ids"], found["labels"], found["seq_lengths"], strict=True)
        for part, label in zip(np.split(ids, np.cumsum(sizes)[:-1]), np.split(ls, np.cumsum(sizes)[:-1]), strict=True)
    ]
    assert sorted(packed) == sorted((ids, label) for (ids, _), label in zip(truth, labels, strict=True))


@pytest.mark.parametrize("where", ["the first pass", "the second pass"])
def test_what_fails_midway_is_gone_on_with(mixture, truth, tmp_path, monkeypatch, where):
    export(mixture, "hf-arrow", str(tmp_path / "calm"), shards=3)
    fails = [True]
    if where == "the first pass":
        read = drawn.read_batches

        def broken(folder, path, schema):
            for number, batch in enumerate(read(folder, path, schema)):
                if number == 1 and path.endswith("c-00001.parquet") and fails:
                    raise OSError(5, "the disk went away")
                yield batch

        monkeypatch.setattr(drawn, "read_batches", broken)
    else:
        one_batch = drawn._one_batch

        def broken(table, rows):
            if fails and "place" in table.column_names and (tmp_path / "out/data-00000-of-00003.arrow").exists():
                raise OSError(5, "the disk went away")
            return one_batch(table, rows)

        monkeypatch.setattr(drawn, "_one_batch", broken)
    with pytest.raises(OSError, match="disk went away"):
        export(mixture, "hf-arrow", str(tmp_path / "out"), shards=3)
    left = files_of(tmp_path / "out")
    assert set(left) == ({"data-00000-of-00003.arrow"} if where == "the second pass" else set())
    sorted_ones = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/_retok_export/sorted").glob("*.arrow")}
    assert sorted_ones
    fails.clear()
    done = []
    publish = OutputFolder.publish

    def counted(folder, local, relative):
        done.append(relative)
        return publish(folder, local, relative)

    monkeypatch.setattr(OutputFolder, "publish", counted)
    assert export(mixture, "hf-arrow", str(tmp_path / "out"), shards=3).documents == len(truth)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "calm")
    again = {path.name for path in sorted_ones} & {Path(relative).name for relative in done}
    assert not again, "a unit that was put in order is not read again"


def test_a_process_that_is_killed_again_and_again(tmp_path):
    make_run(tmp_path / "run", names=("a", "b"), units=20, rows=20)
    file = str(tmp_path / "mixture.parquet")
    mix_runs([str(tmp_path / "run")], epochs=3, to=file)
    export(file, "npy", str(tmp_path / "calm"), shards=20)
    command = [sys.executable, "-m", "retok_dask.cli", "export", file, "--to", "npy", "-o", str(tmp_path / "out")]
    killed = 0
    for wanted, pattern in ((15, "sorted/*.arrow"), (5, "shards/*.json")):
        process = subprocess.Popen([*command, "--shards", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 150
        while process.poll() is None and time.monotonic() < end:
            if len(list((tmp_path / "out/_retok_export").glob(pattern))) >= wanted:
                process.kill()
                killed += 1
                break
            time.sleep(0.002)
        process.wait(60)
    assert killed
    done = subprocess.run([*command, "--shards", "20"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out") == files_of(tmp_path / "calm")
    left = sorted(path.name for path in (tmp_path / "out/_retok_export").iterdir())
    assert left == ["export.json", "key.json", "shards"], "what killed attempts leave is gone with the last shard"


def test_workers_of_a_cluster_write_it_too(mixture, tmp_path):
    export(mixture, "trl", str(tmp_path / "here"), shards=4)
    with Client(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, set_as_default=False
    ) as client:
        export(mixture, "trl", str(tmp_path / "there"), shards=4, client=client)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


def test_to_an_object_store(mixture, truth, tmp_path):
    url = f"memory://{tmp_path.name}/export"
    export(mixture, "npy", url, shards=1)
    import io

    found = np.load(io.BytesIO(OutputFolder(url).read_bytes("input_ids-00000.npy")))
    assert found.tolist() == [token for ids, _ in truth for token in ids]
    assert not OutputFolder(url).sizes("_retok_export/sorted")


def test_the_command(mixture, truth, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(mixture).parent)
    done = in_process("export", "mixture.parquet", "--to", "trl-assistant", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"{len(truth):,} documents" in done.stdout
    assert rows_of(tmp_path / "out") == truth


def test_what_is_refused(mixture, runs, tmp_path):
    refused(in_process("export", mixture, "--to", "trl", "-o", tmp_path / "a", "--dataset", "a"), "weight 0")
    refused(in_process("export", tmp_path / "none.parquet", "--to", "trl", "-o", tmp_path / "a"), "none.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    refused(in_process("export", tmp_path / "text.parquet", "--to", "trl", "-o", tmp_path / "a"), "retok mix")
    assert in_process("export", mixture, "--to", "trl", "-o", tmp_path / "a").returncode == 0
    refused(in_process("export", runs[0], "--to", "trl", "-o", tmp_path / "a"), "another export")
    other = str(tmp_path / "other.parquet")
    mix_runs(runs, seed=77, to=other)
    refused(in_process("export", other, "--to", "trl", "-o", tmp_path / "a"), "another export")
    make_run(tmp_path / "run", rows=10)
    file = str(tmp_path / "changed.parquet")
    mix_runs([str(tmp_path / "run")], to=file)
    make_run(tmp_path / "run", rows=12)
    with pytest.raises(OutputError, match="mix it again"):
        export(file, "trl", str(tmp_path / "b"))
