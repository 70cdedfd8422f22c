"""Exact duplicates across data sets: the first in the listing stays, whoever works on what when."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from distributed import Client, LocalCluster

from retok_dask.checks import validate
from retok_dask.cluster import connect, run, status
from retok_dask.cluster.duplicates import mark_duplicates
from retok_dask.datasets import OutputFolder, open_dataset, read_manifest, rejects
from retok_dask.errors import ClusterError


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def line(number: int, **more) -> str:
    messages = [{"role": "user", "content": f"what is {number}"}, {"role": "assistant", "content": f"it is {number}"}]
    return json.dumps({"messages": messages} | more) + "\n"


@pytest.mark.parametrize("unit_bytes", [200, 100_000])
def test_the_first_stays_for_any_partitioning(make_recipe, client, tmp_path, unit_bytes):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(line(n % 20, id=f"a{n}") for n in range(30)) + '{"mess\n')
    (tmp_path / "in/b.jsonl").write_text("".join(line(n, id=f"b{n}") for n in range(10, 40)))
    drop = {"filters": {"duplicates": "drop"}, "keep": ["id"]}
    recipe = make_recipe(
        datasets=[
            {"name": "a", "input": str(tmp_path / "in/a.jsonl")} | drop,
            {"name": "b", "input": str(tmp_path / "in/b.jsonl")} | drop,
            {"name": "c", "input": str(tmp_path / "in/b.jsonl"), "keep": ["id"]},
        ],
        units={"bytes": unit_bytes},
        max_reject_share=0.5,
    )
    result = run(recipe, client=client, progress="none")
    assert result.exit_code == 0, result.to_text()
    found = open_dataset(recipe.output)
    names = {name: [row["id"] for row in found.filter([name])] for name in "abc"}
    assert sorted(names["a"]) == sorted(f"a{n}" for n in range(20))
    assert sorted(names["b"]) == sorted(f"b{n}" for n in range(20, 40))
    assert len(names["c"]) == 30
    assert result.stats.filtered == {"duplicate": 20}
    assert result.stats.balanced
    left_out = rejects(recipe.output)
    assert left_out.counts["a", "filtered", "duplicate"] == 10
    assert validate(recipe.output, full=True).passed
    digest = read_manifest(OutputFolder(recipe.output)).content_digest
    again = run(recipe, client=client, restart=True, progress="none")
    assert again.content_digest == digest


def test_prompts_are_there_once(make_recipe, client, tmp_path):
    (tmp_path / "in").mkdir()
    rows = [line(n % 5).replace("it is", f"answer {n}:") for n in range(20)]
    (tmp_path / "in/a.jsonl").write_text("".join(rows))
    recipe = make_recipe(datasets=[{"input": str(tmp_path / "in/a.jsonl"), "mode": "prompts"}], units={"bytes": 300})
    result = run(recipe, client=client, progress="none")
    data = open_dataset(recipe.output)
    assert len(data) == 5
    assert set(Counter(row["prompt_messages"] for row in data).values()) == {1}
    assert result.stats.filtered == {"duplicate": 15}


def test_a_unit_that_could_not_be_read_is_named(make_recipe, client, tmp_path, monkeypatch):
    """Its items all stay, and the run says so and why, also when it is looked at later."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(line(n % 5, id=f"a{n}") for n in range(10)))
    (tmp_path / "in/b.jsonl").write_text(line(0, id="b0") + line(1, id="b1"))
    drop = {"filters": {"duplicates": "drop"}, "keep": ["id"]}
    recipe = make_recipe(datasets=[{"name": n, "input": str(tmp_path / f"in/{n}.jsonl")} | drop for n in "ab"])

    def mark(*arguments):
        (tmp_path / "in/b.jsonl").rename(tmp_path / "away")
        found = mark_duplicates(*arguments)
        (tmp_path / "away").rename(tmp_path / "in/b.jsonl")
        return found

    monkeypatch.setattr(sys.modules[run.__module__], "mark_duplicates", mark)
    result = run(recipe, client=client, progress="none")
    assert result.exit_code == 0, result.to_text()
    assert sorted(row["id"] for row in open_dataset(recipe.output)) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]
    (warning,) = result.warnings
    assert "InputError" in warning
    assert "b.jsonl" in warning
    assert warning in result.to_text()
    assert "duplicates were not looked for in unit b" in status(recipe.output).to_text()


def test_tasks_that_are_cancelled_leave_no_unit_unread(make_recipe, client, tmp_path, monkeypatch):
    """Whoever cancels them, the list of duplicates is not made without them: the next session makes it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(line(n % 5, id=f"a{n}") for n in range(10)))
    drop = {"filters": {"duplicates": "drop"}, "keep": ["id"]}
    recipe = make_recipe(datasets=[{"name": "a", "input": str(tmp_path / "in/a.jsonl")} | drop])
    monkeypatch.setattr(sys.modules[connect.__module__], "NOTICE_SECONDS", 0.2)
    compute = client.compute

    def cancelled(*arguments):
        futures = compute(*arguments)
        client.cancel(futures, force=True)
        return futures

    monkeypatch.setattr(client, "compute", cancelled)
    with pytest.raises(ClusterError, match="was cancelled on the cluster"):
        run(recipe, client=client, progress="none")
    monkeypatch.undo()
    result = run(recipe, client=client, progress="none")
    assert not result.warnings
    assert len(open_dataset(recipe.output)) == 5
