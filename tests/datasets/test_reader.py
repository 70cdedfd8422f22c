"""Reading back: only through the manifest, and the same rows by every way."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factory import make_batch, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from retok_dask.datasets import OutputFolder, open_dataset
from retok_dask.datasets import writer as writer_module
from retok_dask.errors import OutputError, UnfinishedOutput
from retok_dask.schema import sample_schema


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two data sets, three units each, several row groups a unit, one kept column."""
    path = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_BYTES", 4000)
        datasets = [{"name": "a", "input": "a", "keep": ["lang"]}, {"name": "b", "input": "b"}]
        make_run(path, names=("a", "b"), rows=31, rejects=1, datasets=datasets)
    return str(path)


@pytest.fixture(scope="module")
def truth(run):
    paths = [unit for name in "ab" for unit in (f"{run}/data/{name}/{name}-{u:05d}.parquet" for u in range(3))]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def plain(row: dict) -> dict:
    """A row of ours as Arrow's to_pylist gives it."""
    row = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
    keys = ("start", "end", "kind", "message")
    return row | {"segments": [dict(zip(keys, run, strict=True)) for run in row["segments"]]}


def test_every_way_gives_the_same_rows(run, truth):
    data = open_dataset(run)
    assert len(data) == len(truth) == 186
    assert [plain(row) for row in data] == truth
    assert [plain(data[i]) for i in range(len(data))] == truth
    assert data.to_arrow().to_pylist() == truth
    assert data.to_arrow().schema.equals(sample_schema(("lang",)), check_metadata=True)
    assert [r for b in data.batches() for r in b.to_pylist()] == truth
    assert [plain(row) for row in data.to_bag().compute(scheduler="sync")] == truth
    frame = data.to_dask().compute(scheduler="sync")
    assert frame["sample_id"].tolist() == [row["sample_id"] for row in truth]
    assert data.to_pandas()["input_ids"].map(list).tolist() == [row["input_ids"] for row in truth]
    assert len(pq.ParquetFile(f"{run}/data/a/a-00000.parquet").read_row_group(0)) < 31


def test_rows_by_number_from_the_end_and_beyond(run, truth):
    data = open_dataset(run)
    assert plain(data[-1]) == truth[-1]
    with pytest.raises(IndexError):
        data[len(truth)]
    assert [plain(row) for row in data.take([5, 180, 5, 0])] == [truth[i] for i in (5, 180, 5, 0)]


def test_columns_are_pruned(run, truth):
    data = open_dataset(run).select(["loss_mask", "input_ids"])
    assert list(data[3]) == ["loss_mask", "input_ids"]
    assert data.to_arrow().column_names == ["loss_mask", "input_ids"]
    assert data[3]["input_ids"].dtype == np.int32
    assert data[3]["loss_mask"].dtype == np.bool_
    with pytest.raises(OutputError, match="Did you mean 'input_ids'"):
        data.select(["input_idz"])


@settings(max_examples=20, deadline=None)
@given(low=st.integers(0, 70), high=st.integers(0, 70), share=st.sampled_from([None, 0.2, 0.5]))
def test_filters_keep_exactly_the_rows_within_bounds(run, truth, low, high, share):
    data = open_dataset(run).filter("b", min_tokens=low, max_tokens=high, min_trained_share=share)
    wanted = [
        row
        for row in truth[93:]
        if low <= row["num_tokens"] <= high and row["num_loss_tokens"] >= (share or 0) * row["num_tokens"]
    ]
    assert len(data) == len(wanted)
    assert [plain(row) for row in data] == wanted
    assert data.to_arrow().num_rows == len(wanted)
    if wanted:
        assert plain(data[len(wanted) // 2]) == wanted[len(wanted) // 2]


def test_units_are_left_out_by_their_statistics_without_reading_them(tmp_path):
    folder = make_run(tmp_path, units=2)
    (tmp_path / "data/data/data-00000.parquet").unlink()
    (tmp_path / "data/data/data-00001.parquet").unlink()
    data = open_dataset(folder.url)
    assert len(data.filter(min_tokens=10_000)) == 0
    assert data.filter(max_tokens=3).to_arrow().num_rows == 0
    assert data.filter(min_trained_share=1.1).units == ()


def test_rows_are_counted_without_opening_files(tmp_path):
    folder = make_run(tmp_path, units=3)
    for path in (tmp_path / "data/data").iterdir():
        if path.name != "data-00001.parquet":
            path.unlink()
    data = open_dataset(folder.url)
    assert len(data) == 60
    assert data[25]["sample_id"] == next(data.iterate(start=25).__iter__())["sample_id"]


def test_a_data_set_that_is_not_there_is_named(run):
    with pytest.raises(OutputError, match="no data set 'c'"):
        open_dataset(run).filter("c")


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_the_rows_without_gap_or_overlap(run, truth, world):
    data = open_dataset(run).select(["sample_id"])
    shards = [[row["sample_id"] for row in data.iterate(rank=r, world_size=world)] for r in range(world)]
    assert [name for shard in shards for name in shard] == [row["sample_id"] for row in truth]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert [len(data.iterate(rank=r, world_size=world)) for r in range(world)] == [len(s) for s in shards]


def test_an_iteration_goes_on_where_it_was_saved(run, truth):
    data = open_dataset(run).select(["sample_id"])
    first = data.iterate(rank=1, world_size=2)
    seen = [next(iter(first))["sample_id"] for _ in range(10)]
    state = first.state_dict()
    again = pickle.loads(pickle.dumps(data)).iterate(rank=1, world_size=2)
    again.load_state_dict(state)
    seen += [row["sample_id"] for row in again]
    assert seen == [row["sample_id"] for row in truth[93:]]
    assert len(list(again)) == 93
    assert len(list(data.iterate(start=180))) == 6
    with pytest.raises(OutputError, match="rank 2 of 2"):
        data.iterate(rank=2, world_size=2)


def test_a_sample_is_the_same_for_the_same_seed(run):
    data = open_dataset(run)
    names = [[row["sample_id"] for row in data.sample(9, seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == 9
    assert len(data.sample(10_000)) == len(data)


def test_unfinished_and_foreign_folders_are_refused(tmp_path):
    make_run(tmp_path / "unfinished", manifest=False)
    with pytest.raises(UnfinishedOutput, match="resume"):
        open_dataset(str(tmp_path / "unfinished"))
    (tmp_path / "foreign/data").mkdir(parents=True)
    with pytest.raises(OutputError, match="holds no run"):
        open_dataset(str(tmp_path / "foreign"))


def test_files_that_the_manifest_does_not_name_are_not_read(tmp_path):
    folder = make_run(tmp_path, units=2)
    pq.write_table(pa.Table.from_batches([make_batch(5).samples]), tmp_path / "data/data/stray.parquet")
    assert len(open_dataset(folder.url)) == 40


def test_it_reads_from_object_stores(tmp_path, truth):
    folder = make_run("", folder=OutputFolder(f"memory://{tmp_path.name}/reader"), units=2)
    data = open_dataset(folder.url)
    assert len(list(data)) == len(data) == 40
    assert data[39]["sample_id"] == list(data)[39]["sample_id"]


def test_it_says_what_it_is_without_reading_data(run):
    data = open_dataset(run)
    assert "186 rows" in repr(data)
    assert data.summary()["datasets"] == ["a", "b"]
    assert data.num_loss_tokens == sum(row["num_loss_tokens"] for row in data)
    assert len(data.files) == 6


def test_reading_needs_neither_torch_nor_dask_nor_transformers(run):
    code = f"""
import sys
from retok_dask.datasets import open_dataset
data = open_dataset({run!r})
data[0]; len(list(data.iterate()))
loaded = {{"torch", "distributed", "transformers", "dask"}} & sys.modules.keys()
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# other readers of the same files


def test_polars_reads_the_files(run, truth):
    import polars as pl

    frame = pl.read_parquet(f"{run}/data/**/*.parquet").sort("sample_id")
    ordered = sorted(truth, key=lambda row: row["sample_id"])
    assert frame["input_ids"].to_list() == [row["input_ids"] for row in ordered]
    assert frame["loss_mask"].to_list() == [row["loss_mask"] for row in ordered]
    assert frame["segments"].to_list() == [row["segments"] for row in ordered]


def test_duckdb_reads_the_files(run, truth):
    import duckdb

    query = "select count(*), sum(len(input_ids)), sum(num_loss_tokens) from read_parquet(?)"
    found = duckdb.execute(query, [f"{run}/data/*/*.parquet"]).fetchone()
    assert found == (186, sum(r["num_tokens"] for r in truth), sum(r["num_loss_tokens"] for r in truth))
    kinds = duckdb.execute("select distinct unnest(segments).kind from read_parquet(?)", [f"{run}/data/*/*.parquet"])
    assert {name for (name,) in kinds.fetchall()} == {s["kind"] for r in truth for s in r["segments"]}


def test_datasets_reads_the_files(run, truth, tmp_path):
    import datasets

    loaded = datasets.load_dataset(
        "parquet", data_files=f"{run}/data/*/*.parquet", split="train", cache_dir=str(tmp_path)
    )
    assert loaded["input_ids"][:] == [row["input_ids"] for row in truth]
    assert loaded["loss_mask"][:] == [row["loss_mask"] for row in truth]
    assert loaded.num_rows == 186


def test_pandas_and_arrow_read_the_folder(run, truth):
    import pandas as pd

    assert len(pd.read_parquet(f"{run}/data")) == 186
    assert pq.read_table(f"{run}/data").num_rows == 186
