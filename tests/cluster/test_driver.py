"""The driver on a real cluster of processes, with units that misbehave on purpose."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from pathlib import Path

import dask
import pytest
from dask.utils import parse_bytes
from distributed import Client, Future, LocalCluster
from distributed.protocol import serialize_bytelist
from stubjob import RECORDS, StubJob, make_units

from retok_dask.cluster.connect import connect
from retok_dask.cluster.driver import WINDOW, Driver
from retok_dask.cluster.events import EventLog, read_events
from retok_dask.cluster.fleet import Fleet, bag_of
from retok_dask.cluster.stalls import STEPS
from retok_dask.cluster.tracker import Tracker
from retok_dask.datasets.folder import OutputFolder
from retok_dask.errors import ClusterError
from retok_dask.recipe import Recipe

MEMORY = 400 * 2**20
DATASETS = 2
"""Of the stub's units; each has a bag of its own."""


def settings(folder: Path, limit: float) -> Recipe:
    return Recipe.from_dict(
        {
            "tokenizer": "t",
            "output": str(folder),
            "datasets": [{"input": "x"}],
            "units": {"seconds_per_record": limit},
            "cluster": {"workers": 3, "worker_memory": MEMORY, "dashboard": None},
        }
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """One cluster of ours for all tests: its nannies replace the workers that these end."""
    with connect(settings(tmp_path_factory.mktemp("cluster"), 60)) as client:
        yield client


@pytest.fixture
def drive(tmp_path, request):
    def go(count, faults=None, *, limit=60.0, client=None, tick=lambda: None, **job):
        client = client or request.getfixturevalue("client")
        units = make_units(count)
        folder = OutputFolder(str(tmp_path))
        log = EventLog(folder)
        tracker = Tracker(len(units), sum(unit.bytes for unit in units))
        made = tmp_path / "made"
        made.mkdir()
        stub = StubJob(str(made), run_id=log.session, seconds_per_record=limit, faults=faults or {}, **job)
        driver = Driver(client, stub, units, tracker=tracker, log=log, seconds_per_record=limit, tick=tick)
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


def test_units_begin_in_their_order(drive, tmp_path):
    """Not by the text of their names, as Dask has it: the first is small, and large ones must not be left to the end."""
    drive(60, pause=0.05)
    begun = [
        int(line.split()[1][1:]) for line in (tmp_path / "made" / ".notes").read_text().splitlines() if "begin" in line
    ]
    assert sorted(begun) == list(range(60))
    assert all(abs(place - number) < 6 for place, number in enumerate(begun)), begun


@pytest.mark.parametrize(
    ("fault", "cause", "limit", "reason"),
    [
        ("kill", "lost", 60, "killed_worker"),
        ("hang", "time", 1, "too_slow"),
        ("error", "error", 60, "encode_error"),
    ],
)
def test_one_bad_record_is_set_aside_and_the_rest_written(drive, fault, cause, limit, reason):
    bad = ("u000003", 2)
    outcome, written, events, _ = drive(8, {bad: fault}, limit=limit)
    assert not outcome.failed
    assert len(written) == 8
    assert written["u000003"] == [RECORDS, RECORDS - 1, 1]
    assert all(counts == [RECORDS, RECORDS, 0] for name, counts in written.items() if name != "u000003")
    aside = [e for e in events if e["kind"] == "set_aside"]
    assert [(e["unit"], e["record"][0], e["record"][1]) for e in aside] == [("u000003", 2, reason)]
    deaths = [e for e in events if e["kind"] == "worker_died"]
    if fault != "error":
        assert {e["cause"] for e in deaths} == {cause}
    # two at most for the whole unit, log2(4) halvings, two strikes, one more for chance
    assert outcome.deaths <= 2 + 2 + 2 + 1
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


def test_a_task_that_gives_no_sign_of_life_is_got_over(drive, monkeypatch):
    """Not for ever: a task is sent again, then its worker restarted, and what was done stays."""
    monkeypatch.setattr("retok_dask.cluster.stalls.SHORTEST", 5.0)
    outcome, written, events, _ = drive(8, {("u000001", 3): "once-deaf"}, limit=1)
    assert outcome.committed == len(written) == 8
    assert all(counts == [RECORDS, RECORDS, 0] for counts in written.values())
    assert outcome.deaths == 0
    stalls = [e for e in events if e["kind"] == "stalled"]
    assert {unit for stall in stalls for unit in stall["units"]} == {"u000001"}
    assert all(stall["workers"] and stall["seconds"] >= 5 for stall in stalls)
    # the scheduler may give it to the same worker again, which is then restarted
    assert [stall["act"] for stall in stalls] in (list(STEPS[:1]), list(STEPS[:2]))


def test_a_task_that_never_gives_a_sign_of_life_ends_the_run(drive, monkeypatch, tmp_path):
    monkeypatch.setattr("retok_dask.cluster.stalls.SHORTEST", 5.0)
    with pytest.raises(ClusterError, match=r"no sign of life from .*u000001.* on tcp.*start the same command again"):
        drive(8, {("u000001", 3): "deaf"}, limit=1)
    assert not list((tmp_path / "made").glob("u000001"))
    stalls = read_events(OutputFolder(str(tmp_path)), kinds=("stalled",))
    # on a busy machine another unit may have been silent for as long before
    assert [e["act"] for e in stalls if "u000001" in e["units"]] == list(STEPS)
    assert not read_events(OutputFolder(str(tmp_path)), kinds=("set_aside", "suspected", "unit_failed"))


def test_a_client_whose_words_no_longer_arrive_is_told(drive, monkeypatch, tmp_path):
    """Its stream stands still: the scheduler learns neither that the first attempt is given up nor of the next one.

    The worker then has a task that the driver has forgotten, which must not pass for the work of others.
    """
    monkeypatch.setattr("retok_dask.cluster.stalls.SHORTEST", 5.0)
    submit, count = Client.persist, itertools.count()

    def persist(self, collections, **options):
        lost = {"workers": ["tcp://127.0.0.1:9"], "allow_other_workers": False} if next(count) >= DATASETS else {}
        return submit(self, collections, **options, **lost)

    monkeypatch.setattr(Client, "persist", persist)
    kept: list[Future] = []  # one that is gone says goodbye
    monkeypatch.setattr(Future, "cancel", lambda self, **options: kept.append(self))
    with pytest.raises(ClusterError, match=r"no sign of life from .*u000001.*start the same command again"):
        drive(8, {("u000001", 3): "deaf"}, limit=1)
    stalls = [e for e in read_events(OutputFolder(str(tmp_path)), kinds=("stalled",)) if "u000001" in e["units"]]
    assert [e["act"] for e in stalls] == list(STEPS)
    assert stalls[0]["workers"], "where the task began"
    assert set(stalls[0]["workers"]) <= set(stalls[1]["workers"]), "the forgotten task keeps its worker"


def test_recycling_a_grown_worker_loses_no_finished_unit(drive, client, tmp_path):
    """The process goes, what it has done stays: https://github.com/dask/distributed/issues/2130"""
    grows = {("u000002", 1): "grow", ("u000003", 1): "grow"}
    outcome, written, events, _ = drive(60, grows, pause=0.1)
    assert outcome.committed == len(written) == 60
    assert outcome.deaths == 0
    assert not [e for e in events if e["kind"] in {"worker_died", "suspected", "stalled"}]
    ended: dict[str, int] = {}
    for what, unit, pid in map(str.split, (tmp_path / "made" / ".notes").read_text().splitlines()):
        assert unit not in ended, "a finished unit is not done again"
        if what == "end":
            ended[unit] = int(pid)
    grown = {ended["u000002"], ended["u000003"]}
    end = time.monotonic() + 60
    while (left := grown & set(client.run(os.getpid, on_error="ignore").values())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, "the grown processes are replaced"


def test_two_bad_records_in_one_unit(drive):
    faults = {("u000000", 0): "segfault", ("u000000", 3): "segfault", ("u000001", 2): "error"}
    outcome, written, _, _ = drive(2, faults)
    assert not outcome.failed
    assert written == {"u000000": [RECORDS, 2, 2], "u000001": [RECORDS, 3, 1]}


def test_one_unit_that_needs_more_memory_than_a_worker_has(drive):
    """Worker after worker is lost to it, and healthy work with them: https://github.com/dask/distributed/issues/2130"""
    outcome, written, events, _ = drive(20, {("u000007", 3): "memory"})
    assert len(written) == 20
    assert sum(records for _, records, _ in written.values()) == 20 * RECORDS - 1
    deaths = [e for e in events if e["kind"] == "worker_died"]
    assert outcome.deaths == len(deaths) <= 1 + 2 + 2
    assert {e["cause"] for e in deaths} == {"memory"}
    assert all(unit.startswith("u000007") for e in deaths for unit in e["units"])
    assert all("of 400.00 MiB" in e["why"] and e["advice"] for e in deaths)
    (aside,) = [e for e in events if e["kind"] == "set_aside"]
    assert (aside["unit"], aside["record"][0]) == ("u000007", 3)
    assert "400.00 MiB" in aside["record"][2]


@pytest.fixture
def ending(tmp_path):
    """A cluster of ours, and a tick that ends some of its nannies, and their processes with them, at the first call."""
    with connect(settings(tmp_path / "ending", 60)) as client:
        nannies = list(client.cluster.workers.values())

        def tick_of(count):
            left = nannies[:count]

            def tick():
                while left:
                    client.cluster.sync(left.pop().close)

            return tick

        yield client, tick_of


@pytest.mark.parametrize("sees", [True, False], ids=["Dask sees it", "Dask sees it late"])
def test_a_cluster_of_ours_whose_nannies_ended_gets_new_ones(drive, ending, monkeypatch, sees):
    client, tick_of = ending
    monkeypatch.setattr("retok_dask.cluster.driver.REPAIR_SECONDS", 0.5)
    if not sees:
        monkeypatch.setattr("retok_dask.cluster.driver.NOTICE_SECONDS", 5.0)
    first = set(client.run(os.getpid).values())
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s" if sees else "20s"}):
        outcome, written, events, _ = drive(80, pause=0.3, client=client, tick=tick_of(2))
    assert outcome.committed == len(written) == 80
    assert not outcome.failed
    assert not [e for e in events if e["kind"] in {"suspected", "set_aside"}]
    now = set(client.run(os.getpid).values())
    assert len(now) >= 3  # more where a process takes long to start: too many do no harm
    assert len(now & first) == 1


def test_a_run_says_that_it_waits_for_workers_of_a_cluster_that_is_not_ours(drive, monkeypatch, tmp_path):
    monkeypatch.setattr("retok_dask.cluster.driver.LONELY_SECONDS", 1.0)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        folder, sizes = OutputFolder(str(tmp_path)), [0, 1]

        def tick():
            wanted = "unit" if len(sizes) == 2 else "stalled"
            if sizes and any(read_events(folder, kinds=(wanted,))):
                cluster.scale(sizes.pop(0))

        outcome, written, events, tracker = drive(40, pause=0.2, client=client, tick=tick)
    assert outcome.committed == len(written) == 40
    (stall,) = [event for event in events if event["kind"] == "stalled"]
    assert (stall["why"], stall["units"]) == ("the cluster has no worker", [])
    assert tracker.snapshot().note == f"{stall['why']}: {stall['act']}"
    assert "scale the cluster" in stall["act"]


def test_a_cluster_of_ours_that_stays_empty_ends_the_run(drive, ending, monkeypatch, tmp_path):
    client, tick_of = ending
    monkeypatch.setattr("retok_dask.cluster.driver.REPAIR_SECONDS", 0.5)
    monkeypatch.setattr("retok_dask.cluster.driver.EMPTY_SECONDS", 3.0)
    monkeypatch.setattr(client.cluster, "scale", lambda workers: None)  # as if no process could be started any more
    with pytest.raises(
        ClusterError, match=r"all workers are lost, and no new one came in \d+ s.*start the same command"
    ):
        drive(80, pause=0.2, client=client, tick=tick_of(3))
    assert len(list((tmp_path / "made").glob("u*"))) < 80


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
        end = time.monotonic() + 60
        while (held := client.run_on_scheduler(tasks_held)) < WINDOW[1] and time.monotonic() < end:
            time.sleep(0.1)
        fleet.close()
    assert WINDOW[1] <= held <= 2 * WINDOW[1], "a task a unit, and its name"
    assert not [item for item in recwarn if "graph" in str(item.message)]
