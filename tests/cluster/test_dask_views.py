"""What Dask itself shows of a run: spans, fine performance metrics, and its performance report."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster

from retok_dask.cluster import read_events, run
from retok_dask.datasets import OutputFolder

STAGES = {"read", "parse", "render", "encode", "mask", "write"}


def metrics_of(client: Client, wanted: set[str], seconds: float = 30) -> dict[tuple, float]:
    """The scheduler's fine performance metrics; heartbeats bring them some time after the work."""
    end = time.monotonic() + seconds
    while True:
        found = client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.cumulative_worker_metrics))
        if wanted <= {part for key in found if isinstance(key, tuple) for part in key} or time.monotonic() > end:
            return found
        time.sleep(0.2)


def spans_of(client: Client) -> dict[tuple[str, ...], set[str]]:
    """Names of the scheduler's spans, each with the activities that were metered in it."""

    def read(dask_scheduler):
        spans = dask_scheduler.extensions["spans"].spans_search_by_name
        return {
            name: {str(key[2]) for span in found for key in span.cumulative_worker_metrics if len(key) > 2}
            for name, found in spans.items()
        }

    return client.run_on_scheduler(read)


def test_stages_spans_and_task_names_mean_something(make_recipe):
    recipe = make_recipe()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        result = run(recipe, client=client, progress="none")
        metrics = metrics_of(client, STAGES)
        spans = spans_of(client)
    assert result.exit_code == 0
    executed = [key for key in metrics if isinstance(key, tuple) and key[0] == "execute"]
    ours = {key for key in executed if STAGES & set(key)}
    assert {part for key in ours for part in key} >= STAGES, sorted(map(str, executed))
    assert all(metrics[key] >= 0 for key in ours)
    assert all(key[-1] == "seconds" for key in ours)
    # the name under which the task stream and the progress plot show a unit
    assert {key[-3] for key in ours} == {"encode"}
    # one span a data set, with the stages in it
    assert spans["chat",] >= STAGES


@pytest.mark.parametrize("fails", [False, True], ids=["written", "no such folder"])
def test_the_performance_report_is_kept_with_the_run(make_recipe, tmp_path, fails):
    recipe = make_recipe(cluster={"workers": 1, "dashboard": None})
    place = tmp_path / "missing" / "p.html" if fails else tmp_path / "out" / "_retok" / "performance.html"
    if fails:
        place.parent.write_text("in the way")
    result = run(recipe, progress="none", performance_report=place)
    assert result.exit_code == 0, "a report that cannot be written is no reason to fail"
    told = [event["text"] for event in read_events(OutputFolder(recipe.output), kinds=("performance_report",))]
    assert [text.removeprefix("performance report: ") for text in told] == [result.performance]
    assert result.performance in result.to_text()
    if fails:
        assert result.performance.startswith("no performance report: ")
        return
    assert result.performance == str(place)
    page = place.read_text()
    assert "encode_unit" in page
    assert not re.search(r"<script[^>]+src=", page), "its scripts are inside"
    assert run(recipe, performance_report=tmp_path / "second.html").did_nothing
    assert not (tmp_path / "second.html").exists()


def test_without_bokeh_a_sentence_says_why_there_is_no_performance_report(make_recipe, tmp_path):
    recipe = make_recipe(cluster={"workers": 1, "dashboard": None})
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    code = "import sys; sys.modules['bokeh'] = None; from retok_dask.cli import main; main()"
    command = [sys.executable, "-c", code, "run", str(path), "--performance-report", str(tmp_path / "p.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install 'bokeh>=3.1'" in done.stdout
    assert done.stderr.count("no performance report: the scheduler cannot draw it") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p.html").exists()
