"""Progress, status and plan: what people see of a run."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
from dataclasses import replace

import assets
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from smalldata import write_data

from retok_dask.cluster import doctor, plan, read_events, status
from retok_dask.cluster import progress as progress_room
from retok_dask.cluster.events import EventLog
from retok_dask.cluster.progress import PlainDisplay, TerminalDisplay, detect, display_for, line, to_html
from retok_dask.cluster.status import DatasetStatus, OutputStatus, Status
from retok_dask.cluster.tracker import Snapshot, Tracker
from retok_dask.datasets import OutputFolder
from retok_dask.doing import doing, heard_by
from retok_dask.errors import ClusterError
from retok_dask.recipe import Recipe


def snapshot(**changes) -> Snapshot:
    given = {"units_done": 3, "units_total": 10, "records": 1234, "samples": 1200, "tokens": 5_000_000}
    given |= {"loss_tokens": 2_000_000, "rejected": 4, "filtered": 0, "share_done": 0.3}
    given |= {"tokens_per_second": 1e6, "seconds": 65.0, "seconds_left": 120.0}
    return Snapshot(**(given | changes))


def test_every_display_shows_the_same_facts():
    text, page = line(snapshot()), to_html(snapshot(dashboard="http://x/<b>&status"), ["<script>alert(1)</script>"])
    for fact in ("3/10", "1,234", "5M", "1M", "40.0%", "1:05", "2:00"):
        assert fact in text
        assert fact in page
    assert "<script>" not in page
    assert "http://x/&lt;b&gt;&amp;status" in page


def test_plain_lines_are_at_most_about_200_in_a_week(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress_room, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    display = PlainDisplay(stream)
    first = None
    while clock[0] < 7 * 86400:
        display.update(snapshot(seconds=clock[0]))
        if first is None and stream.getvalue():
            first = clock[0]
        clock[0] += 1 if clock[0] < 3600 else 30
    assert first is not None
    assert first < 5
    assert 50 < stream.getvalue().count("\n") <= 200


def test_ten_thousand_units_in_a_log_file(tmp_path, monkeypatch):
    """A log is not flooded: https://github.com/nteract/papermill/issues/765"""
    monkeypatch.delenv("RETOK_PROGRESS", raising=False)
    clock = [0.0]
    monkeypatch.setattr(progress_room, "monotonic", lambda: clock[0])
    with (tmp_path / "run.log").open("w") as file:
        display = display_for("auto", file)
        for number in range(10_000):
            clock[0] += 3
            display.update(snapshot(units_done=number, units_total=10_000, seconds=clock[0]))
        display.close(snapshot(units_done=10_000, units_total=10_000, share_done=1.0))
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert 20 < len(lines) <= 200
    assert all(line.startswith("units ") for line in lines)
    assert "10,000/10,000 (100.0%)" in lines[-1]


def test_the_terminal_shows_a_bar():
    stream = io.StringIO()
    display = TerminalDisplay(stream)
    display.update(snapshot())
    display.say("worker died")
    display.close(snapshot(units_done=10, share_done=1.0))
    assert "10/10" in stream.getvalue()
    assert "worker died" in stream.getvalue()


@pytest.mark.parametrize("mode", ["bar", "lines", "none"])
def test_what_is_done_before_the_first_unit_is_shown(mode, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: mode == "bar"
    monkeypatch.setenv("TERM", "xterm")
    display = display_for(mode, stream)
    monkeypatch.setattr("retok_dask.cluster.progress.monotonic", lambda: time.monotonic() + 5)  # a log waits a little
    with heard_by(display.doing):
        doing("loading the tokenizer [x]")
    display.close(snapshot())
    assert ("loading the tokenizer [x]" in stream.getvalue()) == (mode != "none")


def test_the_display_is_chosen_and_can_be_forced(monkeypatch):
    monkeypatch.delenv("RETOK_PROGRESS", raising=False)
    assert detect(io.StringIO()) == "lines"
    monkeypatch.setenv("RETOK_PROGRESS", "none")
    assert detect(io.StringIO()) == "none"
    with pytest.raises(ValueError, match="Did you mean 'lines'"):
        display_for("line")


@given(
    st.lists(
        st.tuples(st.sampled_from(["beat", "finish", "drop"]), st.integers(0, 5), st.integers(0, 1000)), max_size=40
    )
)
def test_the_tracker_counts_each_unit_once(steps):
    tracker = Tracker(6, 600)
    finished: dict[int, int] = {}
    for what, unit, tokens in steps:
        counts = dict.fromkeys(("records", "samples", "tokens", "loss_tokens", "rejected", "filtered"), tokens)
        if unit in finished:
            continue
        if what == "finish":
            finished[unit] = tokens
            tracker.finish(str(unit), 100, counts)
        elif what == "beat":
            tracker.beat(str(unit), counts)
        else:
            tracker.drop(str(unit))
    found = tracker.snapshot()
    assert found.units_done == len(finished)
    assert found.tokens >= sum(finished.values())
    assert 0 <= found.share_done <= 1
    for unit in range(6):
        tracker.drop(str(unit))
    assert tracker.snapshot().tokens == sum(finished.values())


# events


def test_events_survive_a_cut_line_and_come_in_order(tmp_path):
    folder = OutputFolder(str(tmp_path))
    log = EventLog(folder)
    log.start(units=3)
    log.add("unit", unit="a", text="naïve \n line")
    path = tmp_path / "_retok" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    second = EventLog(folder)
    second.add("unit", unit="b")
    assert [event.get("unit") for event in read_events(folder)] == [None, "b"]
    assert [event["kind"] for event in read_events(folder, kinds=("start",))] == ["start"]


def test_events_on_an_object_store():
    folder = OutputFolder("memory://events-test/out")
    log = EventLog(folder)
    for number in range(3000):
        log.add("unit", unit=f"u{number}", pad="x" * 200)
    log.flush()
    found = read_events(folder)
    assert [event["unit"] for event in found] == [f"u{n}" for n in range(3000)]
    parts = folder.sizes("_retok/events")
    assert 1 <= len(parts) < 10


def test_a_full_disk_delays_events_and_stops_nothing(tmp_path, monkeypatch):
    folder = OutputFolder(str(tmp_path))
    log = EventLog(folder)
    (tmp_path / "_retok").write_text("in the way")
    log.add("unit", unit="a")
    (tmp_path / "_retok").unlink()
    log.add("unit", unit="b")
    assert [event["unit"] for event in read_events(folder)] == ["a", "b"]


# status


def test_status_tells_running_stalled_and_dead_apart(tmp_path, monkeypatch):
    import socket

    folder = OutputFolder(str(tmp_path / "out"))
    folder.write_json("_retok/run.json", {"fingerprint": "f", "content": {}})
    log = EventLog(folder)
    log.start(units=2, resumed=False, committed=0)
    lock = {"owner": "o", "host": socket.gethostname(), "pid": 1, "lease": 60.0}
    now = time.time()
    folder.write_json("_retok/lock.json", lock | {"acquired": now, "heartbeat": now})
    log.add("progress", records=5, units_done=0, tokens=50)
    assert status(folder.url).outputs[0].state == "running"
    folder.write_json("_retok/lock.json", lock | {"acquired": now - 5000, "heartbeat": now})
    (tmp_path / "out/_retok/events.jsonl").write_text(
        "".join(
            json.dumps(
                {"at": now - 5000 + 10 * n, "kind": kind, "session": "s", "records": 5, "units_done": 0, "tokens": 50}
            )
            + "\n"
            for n, kind in enumerate(["start", "progress", "progress"])
        )
    )
    stalled = status(folder.url).outputs[0]
    assert stalled.state == "stalled"
    assert "no progress for 1:2" in stalled.text
    folder.write_json("_retok/lock.json", lock | {"acquired": now - 5000, "heartbeat": now - 600})
    dead = status(folder.url).outputs[0]
    assert dead.state == "dead"
    assert "start the same command to resume" in dead.text


def test_status_counts_rows_and_what_is_filtered_and_cuts_no_number(tmp_path):
    names = [f"{'trajectories-of-agents-' * 3}{n}" for n in range(2)]
    output = OutputStatus("o" * 80, "finished", datasets=[DatasetStatus(name) for name in names])
    output.datasets[1] = replace(output.datasets[1], records=12345, samples=34567, filtered=23456, rejected=45678)
    shown = Status([output])
    head, first, second, *_ = shown.to_text().splitlines()
    assert head.split()[5:12] == ["records", "rows", "tokens", "trained", "rejects", "filtered", "tokens/s"]
    for value in ("12,345", "34,567", "23,456", "45,678"):
        assert value in second
        assert value in shown._repr_html_()
    assert first.split()[1].endswith("agents-0")


# plan


def test_plan_predicts_what_the_run_does(make_recipe, tmp_path):
    data = write_data(tmp_path / "in", files=4, records=200, bad=2)
    recipe = make_recipe(data, units={"bytes": 8192})
    planned = plan(recipe)
    assert not (tmp_path / "out").exists()
    found = planned.datasets[0]
    assert found.files == 4
    assert found.records == pytest.approx(808, rel=0.1)
    assert found.trained_share == pytest.approx(0.46, abs=0.1)
    assert found.layouts["messages"] > 250
    assert planned.needed_memory > 100 * 2**20
    assert planned.seconds > 0
    from retok_dask.cluster import run

    result = run(recipe.with_changes(max_reject_share=1), progress="none")
    assert found.tokens == pytest.approx(result.stats.tokens, rel=0.15)
    assert found.samples == pytest.approx(result.stats.samples, rel=0.1)
    assert json.loads(json.dumps(planned.to_dict(), default=str))["total"]["files"] == 4
    assert "tokens in " in planned.to_text()
    assert 'style="--part:' in planned._repr_html_(), "the trained share has its bar"


@pytest.mark.parametrize("limit", [30, 45, 50, 75, 1000])
def test_plan_counts_no_more_than_the_limit(make_recipe, tmp_path, limit):
    """It may end within a unit, between two, or behind all of them; each unit is a file of 25 records."""
    data = write_data(tmp_path / "in", files=4, records=25)
    recipe = make_recipe(data, datasets=[{"name": "d", "input": str(data), "limit": limit}], units={"bytes": 24_000})
    planned = plan(recipe).datasets[0]
    assert planned.units == min(-(-limit // 25), 4)
    assert planned.records == pytest.approx(min(limit, 100), abs=1)


@pytest.fixture
def one_core():
    """This thread, and what it starts, on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def test_more_workers_than_cores_are_said_and_promise_no_speed(make_recipe, tmp_path, one_core, capsys):
    data = write_data(tmp_path / "in", files=4, records=20)
    recipe = make_recipe(data, cluster={"workers": 2, "dashboard": None})
    said = "2 worker processes, but cores that may be used here: 1"
    planned = plan(recipe)
    assert planned.workers == 2
    assert any(note.startswith(said) for note in planned.notes)
    assert planned.seconds == pytest.approx(sum(data.seconds for data in planned.datasets))
    assert not plan(make_recipe(data, cluster={"workers": 1})).notes
    from retok_dask.cluster import run

    run(recipe, progress="lines")
    assert capsys.readouterr().err.count(said) == 1


def test_plan_counts_duplicates_and_waits_for_the_longest_unit(make_recipe, tmp_path):
    """What a run leaves out is left out of the plan; workers do not share a file that cannot be split."""
    talks = [[{"role": "user", "content": f"q{n % 20}"}, {"role": "assistant", "content": "a"}] for n in range(100)]
    lines = "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "b.jsonl").write_text(lines[: len(lines) // 5])
    one = {"filters": {"duplicates": "drop"}}
    prompts = {"name": "prompts", "input": str(tmp_path / "b.jsonl"), "mode": "prompts"}
    datasets = [
        one | {"name": name, "input": str(tmp_path / file)} for name, file in (("a", "a.jsonl.gz"), ("b", "b.jsonl"))
    ]
    planned = plan(make_recipe(datasets=[*datasets, prompts]))
    found = {data.name: data for data in planned.datasets}
    assert (found["a"].samples, found["a"].filter_reasons) == (20, {"duplicate": 80})
    assert (found["b"].samples, found["b"].filter_reasons) == (0, {"duplicate": 20})
    assert planned.seconds >= max(data.unit_seconds for data in planned.datasets)
    assert found["a"].unit_seconds == pytest.approx(found["a"].seconds)
    assert planned.audit.records == 120, "prompts are to have no trained tokens"


def test_plan_tells_threads_from_workers(make_recipe, tmp_path):
    """Threads of one process share its memory and its interpreter."""
    data = write_data(tmp_path / "in", files=1, records=5)
    needed = []
    for threads in (1, 4):
        with (
            LocalCluster(n_workers=2, threads_per_worker=threads, processes=False, dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            planned = plan(make_recipe(data), client)
        assert planned.workers == 2
        needed.append(planned.needed_memory)
    assert needed[1] - needed[0] > 300 * 2**20


def test_plan_shows_what_history_costs(make_recipe, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    messages = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "reasoning_content": "long thoughts " * 20, "content": "a1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "reasoning_content": "more thoughts " * 20, "content": "a2"},
    ]
    (folder / "a.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 20)
    history = plan(make_recipe(folder)).datasets[0].history
    assert history["whole"]["samples"] == 20
    assert history["per_turn"]["samples"] == 40
    assert history["per_turn"]["loss_tokens"] > history["whole"]["loss_tokens"]


def test_plan_refuses_workers_that_are_too_small(make_recipe):
    with pytest.raises(ClusterError, match=r"workers have 64\.00 MiB each, and this recipe needs about"):
        plan(make_recipe(cluster={"worker_memory": "64MiB", "workers": 1}))


def test_a_tokenizer_folder_that_is_not_read_as_its_file_says_is_said_once(tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text('{"text": "I don\'t know."}\n')
    recipe = Recipe.from_dict(
        {
            "tokenizer": str(assets.tokenizer_folder("gpt4o")),
            "engine": "reference",
            "output": str(tmp_path / "out"),
            "cluster": {"workers": 1, "dashboard": None},
            "datasets": [{"input": str(tmp_path / "in.jsonl"), "mode": "text"}],
        }
    )
    said = "the folder's own tokenizer.json is not what transformers makes of the folder"
    assert said in plan(recipe).to_text()
    assert said in doctor(recipe).to_text()
    from retok_dask.cluster import run

    run(recipe, progress="lines")
    assert capsys.readouterr().err.count(said) == 1


def test_plan_notes_workers_that_have_less_than_the_most_that_they_can_need(make_recipe):
    memory = plan(make_recipe(cluster={"workers": 1})).needed_memory
    planned = plan(make_recipe(cluster={"worker_memory": memory, "workers": 1}))
    assert planned.worker_memory == memory
    assert [note for note in planned.notes if "at most 16 times the text of a batch" in note]


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"])
def test_what_a_notebook_holds_is_not_what_a_worker_needs(make_recipe, monkeypatch, python):
    """A worker has no part of the user's tables; memory that would do must not be refused for them."""
    monkeypatch.setattr(sys, "executable", python)
    held = bytearray(b"x") * (2 << 30)
    planned = plan(make_recipe(cluster={"worker_memory": "2GiB", "workers": 1}))
    assert 200 << 20 < planned.needed_memory < 3 << 29
    assert not [note for note in planned.notes if "workers have" in note]
    assert len(held) == 2 << 30
