"""The law of a run: the same rows, whoever works on which units in what order, and however often it is disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smalldata import write_data

from retok_dask.checks import validate
from retok_dask.cluster import models, run
from retok_dask.cluster.driver import Driver

RECORDS = 36


@pytest.fixture(scope="module")
def cluster():
    # Dask would close the nanny of a killed worker that is not back in time, and leave the cluster empty
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1000h"}):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
        yield cluster
        with suppress(KeyError):  # Dask stumbles over a worker that it did not see come before it went
            cluster.close()


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster, set_as_default=False) as client:
        yield client


class Disturber:
    """A display that ends the client or a worker when so many units are done."""

    def __init__(self, client: Client, what: str, units: int, rng: random.Random) -> None:
        self.client, self.what, self.units, self.rng = client, what, units, rng

    def say(self, text: str) -> None: ...
    def doing(self, text) -> None: ...
    def close(self, snapshot) -> None: ...

    def update(self, snapshot) -> None:
        if not self.what or snapshot.units_done < self.units:
            return
        what, self.what = self.what, ""
        if what == "client":
            raise KeyboardInterrupt
        with suppress(ProcessLookupError):
            os.kill(self.rng.choice(list(self.client.run(os.getpid).values())), signal.SIGKILL)


def scale(cluster: LocalCluster, client: Client, workers: int) -> None:
    """Give the cluster a size, and wait until it has it: a worker that is killed while another one leaves is not replaced."""
    cluster.scale(workers)
    end = time.monotonic() + 150
    while len(client.scheduler_info(n_workers=-1)["workers"]) != workers:
        assert time.monotonic() < end, f"the cluster does not come to {workers} workers"
        time.sleep(0.05)


DISTURBANCES = st.lists(st.tuples(st.sampled_from(["client", "worker"]), st.integers(0, 8)), max_size=2)


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.sampled_from([2, 1]),
    unit_bytes=st.sampled_from([900, 3000, 10**6]),
    engine=st.sampled_from(["auto", "reference"]),
    seed=st.integers(0, 10**6),
    disturbances=DISTURBANCES,
)
def test_the_digest_is_the_same_for_every_way_to_work(
    make_recipe, tmp_path, cluster, client, monkeypatch, workers, unit_bytes, engine, seed, disturbances
):
    """Same input, same rows: https://github.com/marin-community/marin/issues/2212"""
    monkeypatch.setattr(models, "LITTLE", 0)  # this little data is to try the engines of much
    data = tmp_path / "in"
    if not data.exists():
        write_data(data, files=3, records=RECORDS // 3, bad=1)
    calm_file = tmp_path / "calm.txt"
    if not calm_file.exists():
        calm = make_recipe(data, max_reject_share=1, output=str(tmp_path / "calm"))
        calm_file.write_text(run(calm, client=client, progress="none").content_digest)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    recipe = make_recipe(data, max_reject_share=1, units={"bytes": unit_bytes}, engine=engine)
    scale(cluster, client, workers)
    rng = random.Random(seed)
    for what, units in [*disturbances, ("", 0)]:
        display = Disturber(client, what, units, rng)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(sys.modules[run.__module__], "display_for", lambda mode, display=display: display)
            patch.setattr(sys.modules[Driver.__module__], "largest_first", lambda units: rng.sample(units, len(units)))
            result = run(recipe, client=client)
    assert result.stats.records_in == RECORDS + 3
    assert result.stats.samples == RECORDS
    assert result.stats.rejected == {"bad_json": 3}
    assert result.content_digest == calm_file.read_text()
    assert not list(Path(recipe.output).glob("_retok/tmp/*"))
    assert validate(recipe.output).passed
