"""The driver on a real cluster of processes, with units that misbehave on purpose."""

from __future__ import annotations

from collections import Counter

import pytest
from stubjob import RECORDS, StubJob, make_units

from retok_dask.cluster.connect import connect
from retok_dask.cluster.driver import Driver
from retok_dask.cluster.events import EventLog, read_events
from retok_dask.cluster.tracker import Tracker
from retok_dask.datasets.folder import OutputFolder
from retok_dask.recipe import Recipe


@pytest.fixture
def drive(tmp_path):
    def go(count, faults=None, *, limit=60.0, workers=2, memory=None, **job):
        recipe = Recipe.from_dict(
            {
                "tokenizer": "t",
                "output": str(tmp_path),
                "datasets": [{"input": "x"}],
                "units": {"seconds_per_record": limit},
                "cluster": {"workers": workers, "worker_memory": memory, "dashboard": None},
            }
        )
        units = make_units(count)
        folder = OutputFolder(str(tmp_path))
        log = EventLog(folder)
        tracker = Tracker(len(units), sum(unit.bytes for unit in units))
        made = tmp_path / "made"
        made.mkdir()
        stub = StubJob(str(made), seconds_per_record=limit, faults=faults or {}, **job)
        with connect(recipe) as client:
            driver = Driver(client, stub, units, tracker=tracker, log=log, seconds_per_record=limit, tick=lambda: None)
            outcome = driver.work()
        written = {p.name: [int(n) for n in p.read_text().split()] for p in made.iterdir() if p.name[0] == "u"}
        return outcome, written, read_events(folder), tracker

    return go


def test_every_unit_is_done_once(drive):
    outcome, written, events, tracker = drive(300)
    assert outcome.committed == len(written) == 300
    assert not outcome.failed
    assert Counter(e["kind"] for e in events)["unit"] == 300
    assert tracker.snapshot().records == 300 * RECORDS


@pytest.mark.parametrize(
    ("fault", "cause", "limit", "reason"),
    [
        ("segfault", "crash", 60, "killed_worker"),
        ("exit", "crash", 60, "killed_worker"),
        ("kill", "lost", 60, "killed_worker"),
        ("hang", "time", 1, "too_slow"),
        ("memory", "memory", 60, "killed_worker"),
        ("error", "error", 60, "encode_error"),
    ],
)
def test_one_bad_record_is_set_aside_and_the_rest_written(drive, fault, cause, limit, reason):
    bad = ("u000003", 5)
    outcome, written, events, _ = drive(8, {bad: fault}, limit=limit, memory=400 * 2**20)
    assert not outcome.failed
    assert len(written) == 8
    assert written["u000003"] == [RECORDS, RECORDS - 1, 1]
    assert all(counts == [RECORDS, RECORDS, 0] for name, counts in written.items() if name != "u000003")
    aside = [e for e in events if e["kind"] == "set_aside"]
    assert [(e["unit"], e["record"][0], e["record"][1]) for e in aside] == [("u000003", 5, reason)]
    deaths = [e for e in events if e["kind"] == "worker_died"]
    if fault != "error":
        assert {e["cause"] for e in deaths} == {cause}
    # two at most for the whole unit, log2(16) halvings, two strikes, one more for chance
    assert outcome.deaths <= 2 + 4 + 2 + 1
    assert all(unit.startswith("u000003") for e in deaths for unit in e["units"])


def test_a_death_by_chance_costs_one_more_try(drive):
    outcome, written, events, _ = drive(8, {("u000001", 3): "once-kill"})
    assert outcome.deaths == 1
    assert len(written) == 8
    assert all(counts == [RECORDS, RECORDS, 0] for counts in written.values())
    assert not [e for e in events if e["kind"] == "suspected"]


def test_storage_trouble_is_waited_out(drive):
    outcome, written, events, _ = drive(4, {("u000001", 3): "once-storage"})
    assert len(written) == 4
    assert not outcome.failed
    assert [e["cause"] for e in events if e["kind"] == "retry"] == ["storage"]
    assert outcome.deaths == 0


def test_two_bad_records_in_one_unit(drive):
    faults = {("u000000", 0): "segfault", ("u000000", 15): "segfault", ("u000001", 7): "error"}
    outcome, written, _, _ = drive(2, faults)
    assert not outcome.failed
    assert written == {"u000000": [16, 14, 2], "u000001": [16, 15, 1]}
