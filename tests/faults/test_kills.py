"""Processes that die at random times: workers, the client, the scheduler."""

from __future__ import annotations

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from distributed import Client
from faultkit import ROOT, check_whole, events_of
from jupyter_client import KernelManager

from retok_dask.cluster import run, status
from retok_dask.cluster.duplicates import mark_duplicates
from retok_dask.datasets import OutputFolder, open_dataset, scan_receipts
from retok_dask.errors import ClusterError

# the function of the same name hides it in the package
connect_room = importlib.import_module("retok_dask.cluster.connect")


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_times(paused, start, undisturbed, seed):
    """A kill costs one unit's work, not the shard's: https://github.com/marin-community/marin/issues/2212"""
    recipe = paused()
    rng = random.Random(seed)
    running = start(recipe)
    running.wait_for_receipts(1)
    killed = 0
    while running.process.poll() is None and killed < 6:
        time.sleep(rng.uniform(0.2, 1.5))
        workers = running.workers()
        if workers:
            try:
                rng.choice(workers).send_signal(signal.SIGKILL)
                killed += 1
            except psutil.NoSuchProcess:
                continue
    assert running.wait() == 0, running.log.read_text()
    assert killed
    check_whole(recipe, undisturbed(recipe))
    assert not events_of(recipe, "set_aside", "unit_failed")
    causes = {event["cause"] for event in events_of(recipe, "worker_died")}
    assert causes <= {"lost"}
    assert set(Counter(event["unit"] for event in events_of(recipe, "unit")).values()) == {1}


def test_the_client_killed_again_and_again(paused, start, undisturbed):
    """Finished units are not done again: https://github.com/marin-community/marin/issues/2212"""
    recipe = paused()
    rng = random.Random(1)
    done_before: dict[str, int] = {}
    for round_ in range(3):
        running = start(recipe)
        running.wait_for_receipts(len(done_before) + rng.randint(1, 4))
        running.kill()
        assert status(recipe.output).outputs[0].state == "dead"
        receipts = {p.name: p.stat().st_mtime_ns for p in (running.output / "_retok/receipts").glob("*.json")}
        assert {name: receipts[name] for name in done_before} == done_before, f"done twice in round {round_}"
        done_before = receipts
    running = start(recipe)
    assert running.wait() == 0, running.log.read_text()
    receipts = {p.name: p.stat().st_mtime_ns for p in (running.output / "_retok/receipts").glob("*.json")}
    assert {name: receipts[name] for name in done_before} == done_before
    check_whole(recipe, undisturbed(recipe))
    kinds = [event["kind"] for event in events_of(recipe)]
    assert kinds.count("start") == 4
    assert kinds.count("end") == 1


def test_sigterm_says_so_and_resumes(paused, start, undisturbed):
    recipe = paused()
    running = start(recipe)
    running.wait_for_receipts(2)
    workers = running.workers()
    running.process.send_signal(signal.SIGTERM)
    assert running.wait(120) != 0
    assert not psutil.wait_procs(workers, timeout=60)[1]
    found = status(recipe.output).outputs[0]
    assert found.state == "stopped"
    assert start(recipe).wait() == 0
    check_whole(recipe, undisturbed(recipe))


def dask_command(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def dask_cluster(monkeypatch):
    """A scheduler and two workers in processes of their own, as on a cluster."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    processes: list[subprocess.Popen] = []

    def make() -> tuple[str, list[subprocess.Popen]]:
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"
        mine = [dask_command("dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")]
        words = ("--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--death-timeout", "20", "--no-nanny")
        mine += [dask_command("dask_worker", address, *words) for _ in range(2)]
        processes.extend(mine)
        return address, mine

    yield make
    for process in processes:
        process.kill()  # a worker without its scheduler takes its time to end
        process.wait(60)


def test_the_scheduler_killed_half_way(paused, start, undisturbed, dask_cluster):
    """What a cluster held is lost, what is committed is not: https://github.com/dask/distributed/pull/4079"""
    recipe = paused()
    address, processes = dask_cluster()
    running = start(recipe, "--scheduler", address)
    running.wait_for_receipts(8)
    processes[0].kill()
    assert running.wait(150) == 2, running.log.read_text()
    assert "connection to the Dask scheduler is lost" in running.log.read_text()
    assert status(recipe.output).outputs[0].state == "stopped"
    folder = OutputFolder(recipe.output)
    before = set(scan_receipts(folder).committed)
    assert before
    address, _ = dask_cluster()
    again = start(recipe, "--scheduler", address)
    assert again.wait() == 0, again.log.read_text()
    check_whole(recipe, undisturbed(recipe))
    session = events_of(recipe, "end")[-1]["session"]
    redone = {event["unit"] for event in events_of(recipe, "unit") if event["session"] == session}
    assert not redone & before


def test_a_call_that_fails_before_the_lost_scheduler_is_noticed(paused, dask_cluster, monkeypatch):
    """A call's own connection may break first, while the client still takes itself for connected."""
    address, processes = dask_cluster()
    with Client(address, timeout=60, set_as_default=False) as client:

        def gather(*_, **__):
            client.loop.add_callback(time.sleep, 1)  # as on a machine that is too busy for the client's own thread
            processes[0].kill()
            assert client.status == "running"
            raise OSError("Timed out during handshake")

        monkeypatch.setattr(client, "gather", gather)
        recipe = paused(4)
        with pytest.raises(ClusterError, match="connection to the Dask scheduler is lost"):
            run(recipe, client=client, progress="none")
    assert status(recipe.output).outputs[0].state == "stopped"


def test_an_error_of_our_own_is_not_taken_for_a_lost_scheduler(paused, dask_cluster, monkeypatch):
    address, _ = dask_cluster()
    monkeypatch.setattr(connect_room, "NOTICE_SECONDS", 0.2)
    with Client(address, timeout=60, set_as_default=False) as client:
        monkeypatch.setattr(client, "gather", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(paused(4), client=client, progress="none")


def test_a_scheduler_killed_while_duplicates_are_looked_for(paused, start, dask_cluster, monkeypatch):
    """Units that were not read then are read by the next session: their list is made once and for all."""
    address, processes = dask_cluster()
    given = paused(4).datasets[0].model_dump(exclude_unset=True) | {"filters": {"duplicates": "drop"}}
    recipe = paused(4, datasets=[given, given | {"name": "again"}])

    def mark(client, recipe, units, folder, tick):
        return mark_duplicates(client, recipe, units, folder, processes[0].kill)

    monkeypatch.setattr(sys.modules[run.__module__], "mark_duplicates", mark)
    lost = pytest.raises(ClusterError, match="connection to the Dask scheduler is lost")
    with Client(address, timeout=60, set_as_default=False) as client, lost:
        run(recipe, client=client, progress="none")
    address, _ = dask_cluster()
    again = start(recipe, "--scheduler", address)
    assert again.wait() == 0, again.log.read_text()
    assert [event["unread"] for event in events_of(recipe, "duplicates")] == [0]
    rows = open_dataset(recipe.output)
    assert len(rows.filter(["chat"])) == len(rows) > 0


def test_a_scheduler_lost_under_any_other_command(dask_cluster):
    """`validate`, `remask` and `export` have their workers by the same door."""
    address, processes = dask_cluster()
    lost = pytest.raises(ClusterError, match="connection to the Dask scheduler is lost")
    with lost, connect_room.open_address(address, timeout=60) as client:
        future = client.submit(time.sleep, 100)
        processes[0].kill()
        future.result()


def test_a_second_client_takes_over_when_the_first_is_dead(paused, start, undisturbed):
    recipe = paused()
    first = start(recipe)
    first.wait_for_receipts(2)
    workers = first.workers()
    for worker in workers:
        worker.suspend()  # the first client lives, and has not finished when the second comes
    second = start(recipe)
    assert second.wait() == 2
    assert "is being written by process" in second.log.read_text()
    assert first.process.poll() is None
    first.kill()
    for worker in workers:
        worker.kill()
    third = start(recipe)
    assert third.wait() == 0, third.log.read_text()
    check_whole(recipe, undisturbed(recipe))


def test_a_notebook_kernel_that_dies_leaves_nothing_behind_and_the_run_resumes(paused, undisturbed, tmp_path):
    """A kernel that is killed can close nothing: its workers see that it is gone, and what is committed stays."""
    recipe = paused(8)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)])}
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environ, cwd=str(tmp_path))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=150)
        client.execute("from retok_dask import run; run('recipe.yaml', progress='none')")
        receipts = Path(recipe.output) / "_retok" / "receipts"
        end = time.monotonic() + 150
        while len(list(receipts.glob("*.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        kernel = psutil.Process(manager.provisioner.pid)
        left = kernel.children(recursive=True)
        assert sum("spawn_main" in " ".join(child.cmdline()) for child in left) == 2
        kernel.kill()
        assert not psutil.wait_procs(left, timeout=60)[1]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    before = set(scan_receipts(OutputFolder(recipe.output)).committed)
    assert status(recipe.output).outputs[0].state == "dead"
    digest = undisturbed(recipe)
    result = run(recipe, progress="none")
    assert result.exit_code == 0
    assert result.committed_before == len(before) >= 2
    check_whole(recipe, digest)
