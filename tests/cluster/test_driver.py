"""The driver on a real cluster of processes, with units that misbehave on purpose."""

from __future__ import annotations

import time
from collections import Counter

import dask
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
from distributed.protocol import serialize_bytelist
from stubjob import RECORDS, StubJob, make_units

from retok_dask.cluster.connect import connect
from retok_dask.cluster.driver import WINDOW, Driver
from retok_dask.cluster.events import EventLog, read_events
from retok_dask.cluster.fleet import Fleet, bag_of
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


def test_one_unit_that_needs_more_memory_than_a_worker_has(drive):
    """Worker after worker is lost to it, and healthy work with them: https://github.com/dask/distributed/issues/2130"""
    outcome, written, events, _ = drive(20, {("u000007", 5): "memory"}, workers=4, memory=300 * 2**20)
    assert len(written) == 20
    assert sum(records for _, records, _ in written.values()) == 20 * RECORDS - 1
    deaths = [e for e in events if e["kind"] == "worker_died"]
    assert outcome.deaths == len(deaths) <= 1 + 4 + 2
    assert {e["cause"] for e in deaths} == {"memory"}
    assert all(unit.startswith("u000007") for e in deaths for unit in e["units"])
    assert all("of 300.00 MiB" in e["why"] and e["advice"] for e in deaths)
    (aside,) = [e for e in events if e["kind"] == "set_aside"]
    assert (aside["unit"], aside["record"][0]) == ("u000007", 5)
    assert "300.00 MiB" in aside["record"][2]


def test_the_graph_of_a_hundred_thousand_units_is_small():
    """Whole data inside the task graph: https://github.com/dask/dask/issues/11562"""
    orders = [{"run": "stub", "unit": unit.to_dict(), "attempt": 0, "suspect": False} for unit in make_units(100_000)]
    graph = dict(bag_of("encode", orders).__dask_graph__())
    assert sum(map(len, serialize_bytelist(graph))) < 40 * 2**20, "some hundred bytes a unit: paths and offsets only"
    # and the scheduler gets a window of it at a time
    most = WINDOW[1]
    assert most <= 4000
    window = sum(map(len, serialize_bytelist(dict(bag_of("encode", orders[:most]).__dask_graph__()))))
    assert window < parse_bytes(dask.config.get("distributed.admin.large-graph-warning-threshold")) / 4


def tasks_held(dask_scheduler) -> int:
    return len(dask_scheduler.tasks)


def test_a_full_window_is_sent_without_a_warning(recwarn):
    """No word of a large graph: https://github.com/dask/dask/issues/11562"""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        fleet = Fleet(client, "stub")
        fleet.submit("encode", [(unit, []) for unit in make_units(WINDOW[1])])
        assert len(fleet) == WINDOW[1]
        end = time.monotonic() + 30
        while (held := client.run_on_scheduler(tasks_held)) < WINDOW[1] and time.monotonic() < end:
            time.sleep(0.1)
        fleet.close()
    assert WINDOW[1] <= held <= 2 * WINDOW[1], "a task a unit, and its name"
    assert not [item for item in recwarn if "graph" in str(item.message)]
