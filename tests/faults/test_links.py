"""Workers that fall silent, links that are cut, clocks that jump, and a unit that is done twice at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster
from faultkit import check_whole, events_of, write_data

from retok_dask.cluster import run, status
from retok_dask.cluster.job import EncodeJob
from retok_dask.cluster.prepare import prepare
from retok_dask.cluster.stalls import STEPS
from retok_dask.datasets import OutputFolder, read_manifest, read_receipts

HERE = str(Path(__file__).parent)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE)


def test_a_worker_stopped_past_its_time_to_live(paused, undisturbed, importable):
    recipe = paused(12)
    settings = {"distributed.scheduler.worker-ttl": "6s", "distributed.scheduler.allowed-failures": 3}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        victim = psutil.Process(next(iter(client.run(os.getpid).values())))

        def stop():
            receipts = Path(recipe.output) / "_retok" / "receipts"
            while len(list(receipts.glob("*.json"))) < 2:
                time.sleep(0.02)
            victim.send_signal(signal.SIGSTOP)

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        result = run(recipe, client=client, progress="none")
        thread.join(1)
        if victim.is_running():
            victim.kill()
    assert result.exit_code == 0
    check_whole(recipe, undisturbed(recipe))
    assert {event["cause"] for event in events_of(recipe, "worker_died")} <= {"heartbeat", "lost"}
    assert not events_of(recipe, "set_aside")


@pytest.fixture
def namespace():
    """A network namespace with one cable to this machine; cutting it loses whoever is inside."""
    name = f"retok{os.getpid() % 100000}"
    inside, outside = f"{name}i"[-15:], f"{name}o"[-15:]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    ip("link", "add", outside, "type", "veth", "peer", "name", inside)
    ip("link", "set", inside, "netns", name)
    ip("addr", "add", "10.231.77.1/24", "dev", outside)
    ip("link", "set", outside, "up")
    ip("netns", "exec", name, "ip", "addr", "add", "10.231.77.2/24", "dev", inside)
    ip("netns", "exec", name, "ip", "link", "set", inside, "up")
    ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
    yield name, lambda: ip("link", "set", outside, "down")
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", outside], check=False, capture_output=True)


def test_a_host_whose_link_is_cut(paused, undisturbed, importable, namespace):
    name, cut = namespace
    recipe = paused(12)
    settings = {"distributed.scheduler.worker-ttl": "6s", "distributed.comm.timeouts.tcp": "12s"}
    workers: list[subprocess.Popen] = []
    with dask.config.set(settings):
        spec = {"cls": Scheduler, "options": {"host": "10.231.77.1", "dashboard": False, "dashboard_address": ":0"}}
        local = {0: {"cls": Nanny, "options": {"nthreads": 1, "host": "10.231.77.1"}}}
        with (
            SpecCluster(workers=local, scheduler=spec, silence_logs=50) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            words = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--nthreads", "1"]
            words += ["--host", "10.231.77.2", "--no-dashboard", "--death-timeout", "10"]
            far = ["ip", "netns", "exec", name, *words]
            workers.append(subprocess.Popen(far, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            try:
                client.wait_for_workers(2, timeout=60)

                def lose():
                    receipts = Path(recipe.output) / "_retok" / "receipts"
                    while len(list(receipts.glob("*.json"))) < 2:
                        time.sleep(0.02)
                    cut()

                thread = threading.Thread(target=lose, daemon=True)
                thread.start()
                result = run(recipe, client=client, progress="none")
                thread.join(1)
            finally:
                for worker in workers:
                    for child in psutil.Process(worker.pid).children(recursive=True):
                        child.kill()
                    worker.kill()
                    worker.wait(60)
    assert result.exit_code == 0
    check_whole(recipe, undisturbed(recipe))
    assert not events_of(recipe, "set_aside")


def test_the_same_unit_twice_at_once(make_recipe, tmp_path):
    data = write_data(tmp_path / "in", files=2, records=40)
    recipe = make_recipe(data, units={"bytes": "1MiB"})
    assert run(recipe, progress="none").exit_code == 0
    folder = OutputFolder(recipe.output)
    before = read_manifest(folder)
    prepared = prepare(recipe, folder)
    unit = prepared.listing.units[0]
    job = EncodeJob.of("twice", prepared.recipe, prepared.tokenizer, prepared.template, prepared.fingerprint.digest)
    opened = job.open()

    class Tell:
        def batch(self, stats): ...
        def alive(self): ...
        def watch(self, records):
            return records

    for _ in range(5):
        folder.remove([folder.receipt(unit.id)])
        with ThreadPoolExecutor(4) as pool:
            orders = [{"run": "twice", "attempt": n} for n in range(4)]
            answers = list(pool.map(lambda order: opened.encode(unit, order, Tell()), orders))
        assert len({answer["tokens"] for answer in answers}) == 1
        receipts = read_receipts(folder, fingerprint=prepared.fingerprint.digest, verify="sha256")
        assert receipts[unit.id].content_digest == before.units[unit.id].content_digest
    assert not folder.sizes("_retok/tmp")
    check_whole(recipe, before.content_digest)


JUMP = """
import os, random, time
import retok_dask.cluster.stalls
retok_dask.cluster.stalls.SHORTEST = 10.0
_real, _rng = time.time, random.Random(os.getpid())
_shift = [0.0]
def jumping():
    if _rng.random() < 0.002:
        _shift[0] = _rng.choice([-86400.0, -3600.0, 0.0, 40.0, 3600.0, 86400.0])
    return _real() + _shift[0]
time.time = jumping
"""


def test_clocks_that_jump(paused, start, undisturbed, tmp_path):
    """Dask times its streams by the machine's clock: one that is set back by a day stops them for a day."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(JUMP)
    recipe = paused(8, units={"bytes": 2500, "seconds_per_record": 8})
    environ = {"PYTHONPATH": os.pathsep.join([str(site), HERE, str(Path(__file__).parents[2])])}
    running = start(recipe, environ=environ)
    code = running.wait(180)
    if code != 0:  # a client or scheduler whose own streams stand still can only say so: then a user starts again
        assert "start the same command again" in running.log.read_text()
        assert start(recipe).wait() == 0
    check_whole(recipe, undisturbed(recipe))
    assert not events_of(recipe, "set_aside")


def test_a_worker_that_stands_still_is_got_over(paused, undisturbed, importable, monkeypatch):
    """Long before the scheduler gives it up, and without a process left behind."""
    monkeypatch.setattr("retok_dask.cluster.stalls.SHORTEST", 5.0)
    recipe = paused(8, units={"bytes": 2500, "seconds_per_record": 3})
    digest = undisturbed(recipe)
    stopped: list[psutil.Process] = []

    def stop():
        receipts = Path(recipe.output) / "_retok" / "receipts"
        while len(list(receipts.glob("*.json"))) < 2:
            time.sleep(0.02)
        workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
        workers[0].suspend()
        stopped.append(workers[0])

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    result = run(recipe, progress="none")
    thread.join(1)
    assert result.exit_code == 0
    check_whole(recipe, digest)
    stalls = events_of(recipe, "stalled")
    assert {STEPS[0]} <= {event["act"] for event in stalls} <= set(STEPS[:2])
    assert all(event["units"] and event["workers"] for event in stalls)
    assert not events_of(recipe, "set_aside", "suspected")
    assert "no sign of life from" in status(recipe.output).to_text()
    assert not psutil.wait_procs(stopped, timeout=60)[1]


def test_workers_come_and_go(paused, undisturbed, importable):
    recipe = paused()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        stop = threading.Event()

        def breathe():
            size = 1
            while not stop.wait(3):
                size = 3 - size
                cluster.scale(size)

        thread = threading.Thread(target=breathe, daemon=True)
        thread.start()
        result = run(recipe, client=client, progress="none")
        stop.set()
        thread.join(10)
    assert result.exit_code == 0
    check_whole(recipe, undisturbed(recipe))
    assert not events_of(recipe, "suspected", "set_aside")
