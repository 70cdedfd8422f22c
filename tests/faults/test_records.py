"""Records that kill: each costs one record, and says so with its bytes and the way to replay it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from faultkit import check_whole, events_of, write_data

from retok_dask.cluster import run
from retok_dask.cluster.replay import replay
from retok_dask.datasets import OutputFolder, open_dataset, read_manifest

CASES = {
    "segfault": ("killed_worker", "crash", {}),
    "memory": ("killed_worker", "memory", {"cluster": {"workers": 2, "worker_memory": "600MiB", "dashboard": None}}),
    "stuck": ("too_slow", "time", {"units": {"bytes": 2500, "seconds_per_record": 4}}),
    "slow": ("too_slow", "time", {"units": {"bytes": 2500, "seconds_per_record": 4}}),
}
CALM: list[bytes] = []
"""Ids of the rows of a run without a fault, made once."""


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.mark.parametrize("fault", list(CASES))
def test_a_deadly_record_is_set_aside(make_recipe, tmp_path, importable, fault):
    reason, cause, changes = CASES[fault]
    data = write_data(tmp_path / "in", files=2, records=12)
    calm = {
        "datasets": [{"name": "chat", "input": str(data / "*.jsonl"), "layout": "badrecords:layout"}],
        "units": {"bytes": 2500},
        "max_reject_share": 1,
    }
    if not CALM:
        whole = run(make_recipe(data, **calm, output=str(tmp_path / "calm")), progress="none")
        assert whole.stats.samples == 24
        CALM.extend(row["input_ids"].tobytes() for row in open_dataset(str(tmp_path / "calm")))
    path = data / "part-01.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    bad = json.loads(lines[7])
    lines[7] = json.dumps(bad | {"fault": fault}) + "\n"
    path.write_text("".join(lines))
    recipe = make_recipe(data, **(calm | changes))
    result = run(recipe, progress="none")
    assert not result.failed
    assert result.stats.rejected == {reason: 1}
    assert result.stats.records_in == 24
    check_whole(recipe)
    # everything else is there, the rest of its unit included
    ids = {row["input_ids"].tobytes() for row in open_dataset(recipe.output)}
    assert len(ids) == 23
    assert ids < set(CALM)
    # the reject has its bytes, its place and its story
    rejects = [
        row for file in Path(recipe.output).glob("rejects/**/*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    assert len(rejects) == 1
    assert rejects[0]["reason"] == reason
    assert json.loads(rejects[0]["raw"]) == bad | {"fault": fault}
    assert "replay" in rejects[0]["detail"]
    assert "replay" in events_of(recipe, "set_aside")[0]["record"][2]
    deaths = events_of(recipe, "worker_died")
    assert {event["cause"] for event in deaths} == {cause}
    assert 2 <= len(deaths) <= 8  # one for the unit, log2 of its records, two for the record
    assert result.worker_deaths == len(deaths)


def test_replay_does_the_record_alone(make_recipe, tmp_path, importable, capsys):
    data = write_data(tmp_path / "in", files=1, records=6)
    recipe = make_recipe(data)
    run(recipe, progress="none")
    unit = min(read_manifest(OutputFolder(recipe.output)).units)
    assert replay([recipe.output, unit, "0"]) == 0
    said = capsys.readouterr().out
    assert '"records_in":1' in said.replace(" ", "")
    assert replay([recipe.output, unit, "9999"]) == 1
    assert sys.modules[replay.__module__].__doc__


def test_a_record_that_ends_its_process_is_named_and_the_rest_written(make_recipe, tmp_path, importable):
    """A pool that breaks at 98 % with no hint at the record: https://github.com/hiyouga/LlamaFactory/issues/6762"""
    data = write_data(tmp_path / "in", files=2, records=4)
    path = data / "part-01.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = json.dumps(json.loads(lines[2]) | {"fault": "exit"}) + "\n"
    path.write_text("".join(lines))
    recipe = make_recipe(
        data, datasets=[{"name": "chat", "input": str(data / "*.jsonl"), "layout": "badrecords:layout"}]
    )
    result = run(recipe, progress="none")
    assert result.exit_code == 1, "one of eight is more than the limit"
    assert not result.failed
    assert len(open_dataset(recipe.output)) == 7
    (file,) = Path(recipe.output).glob("rejects/**/*.parquet")
    (reject,) = pq.read_table(file).to_pylist()
    assert (Path(reject["source_file"]).name, reject["source_row"], reject["reason"]) == (
        "part-01.jsonl",
        2,
        "killed_worker",
    )
    assert "exit status 9" in reject["detail"]


def test_a_file_larger_than_its_worker(make_recipe, tmp_path):
    """Only a range of a file is ever in memory: https://github.com/dask/dask/issues/7614"""
    folder = tmp_path / "in"
    folder.mkdir()
    limit, size = 400 * 2**20, 2**20
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    with (folder / "large.jsonl").open("w") as file:
        for number in range(limit // size + 40):
            file.write(json.dumps({"id": f"c{number}", "pad": "x" * size, "messages": messages}) + "\n")
    recipe = make_recipe(
        folder,
        datasets=[{"name": "chat", "input": str(folder / "*.jsonl"), "keep": ["id"]}],
        units={"bytes": "32MiB"},
        cluster={"workers": 1, "worker_memory": limit, "dashboard": None},
    )
    result = run(recipe, progress="none")
    assert result.exit_code == 0
    assert result.worker_deaths == 0
    assert result.units > 10
    ids = sorted(row["id"] for row in open_dataset(recipe.output))
    assert ids == sorted(f"c{number}" for number in range(limit // size + 40)), "each line belongs to exactly one unit"
    (folder / "large.jsonl").unlink()
