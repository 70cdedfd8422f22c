"""On real conversations and the real kernel: a mask from the segments is the mask of a fresh run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from real_run import demo_recipe, run_recipe
from typer.testing import CliRunner

from retok_dask.checks import validate
from retok_dask.checks.encoding import load_encoder
from retok_dask.cli import app
from retok_dask.datasets import diff, export, open_dataset, read_manifest, remask
from retok_dask.datasets.exits import EXITS
from retok_dask.doing import heard_by
from retok_dask.errors import OutputError


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    run_recipe(demo_recipe(folder))
    return folder


@pytest.mark.parametrize("policy", ["last_assistant", "final_answer", "all_but_system", ["content", "stop"]])
def test_remask_equals_a_fresh_run(original, tmp_path, policy):
    recipe = open_dataset(str(original / "out")).recipe.with_changes(mask=policy, output=str(tmp_path / "fresh"))
    fresh = read_manifest(run_recipe(recipe))
    derived = remask(str(original / "out"), policy, str(tmp_path / "derived"))
    assert derived.gone == 0
    assert derived.manifest.content_digest == fresh.content_digest
    assert derived.manifest.fingerprint == fresh.fingerprint
    numbers = [manifest.total.to_dict() | {"seconds": None} for manifest in (derived.manifest, fresh)]
    assert numbers[0] == numbers[1]
    found = diff(str(tmp_path / "fresh"), str(tmp_path / "derived"))
    assert found.same_rows
    assert found.asked == []


DATA = Path(__file__).parents[3] / "shared" / "data" / "messages"


def flagged(source: Path, target: Path) -> None:
    """A file of conversations again, with flags on messages of every role where it has none of its own."""
    lines = []
    for row, line in enumerate(source.read_text(encoding="utf-8").splitlines()):
        try:
            record = json.loads(line)
            messages = record["messages"]
        except (ValueError, KeyError, TypeError):  # the demo's bad lines
            continue
        for number, message in enumerate(messages):
            if (row + number) % 4 == 1 and not {"weight", "loss_weight"} & message.keys():
                message["train"] = number % 3 != 0
        lines.append(json.dumps(record))
    target.write_text("\n".join(lines) + "\n")


OWN_FLAGS = "v1_sft_demo.jsonl"
"""Real conversations with a `loss_weight` on each message."""

SOURCES = [
    (name, history) for name in ("demo", "reason_tool_use_demo_50.jsonl") for history in ("whole", "per_turn", "auto")
]


@pytest.mark.parametrize(("source", "history"), [*SOURCES, (OWN_FLAGS, "whole")])
def test_flags_and_rows_of_one_turn(tmp_path, source, history):
    """Masked as by a fresh run: flags in the data win over each policy, and a row that trains one turn keeps to it."""
    recipe = demo_recipe(tmp_path, history=history, max_reject_share=1.0)
    files = sorted((tmp_path / "in").rglob("*.jsonl")) if source == "demo" else [DATA / source]
    if not files[0].exists():
        pytest.skip("the real conversations are not beside this checkout")
    (tmp_path / "flagged").mkdir()
    for number, path in enumerate(files):
        flagged(path, tmp_path / "flagged" / f"{number}.jsonl")
    recipe = recipe.with_changes(datasets=[{"input": str(tmp_path / "flagged" / "*.jsonl")}])
    original = read_manifest(run_recipe(recipe))
    rows = list(open_dataset(recipe.output))
    assert any(row["message_flags"] for row in rows)
    assert any("-t" in row["sample_id"] for row in rows) == (history != "whole")
    for policy in ("final_answer", "all_but_system", ["content", "tool"]):
        name = "-".join(policy) if isinstance(policy, list) else policy
        fresh = read_manifest(run_recipe(recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{name}"))))
        derived = remask(recipe.output, policy, str(tmp_path / f"derived-{name}"))
        assert derived.gone == 0
        assert derived.manifest.content_digest == fresh.content_digest
        assert derived.manifest.total.loss_tokens == fresh.total.loss_tokens
        if source != OWN_FLAGS:  # with a flag on each message, every policy gives the same
            assert fresh.content_digest != original.content_digest


@pytest.mark.parametrize("truncation", ["right", "left", "message"])
def test_rows_that_were_cut(tmp_path, truncation):
    """Which message was the last one is not to be seen in a row that lost its end; what can be told is as afresh."""
    recipe = demo_recipe(tmp_path, max_length=120, truncation=truncation, max_reject_share=1.0)
    run_recipe(recipe)
    for policy in ("last_assistant", "completion", "final_answer"):
        changed = recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{policy}"))
        fresh = read_manifest(run_recipe(changed))
        assert fresh.total.truncated or (truncation == "message" and policy != "final_answer")
        report = validate(changed.output, full=True)
        assert report.passed, report.to_text()
        if policy == "final_answer" or truncation == "left":
            derived = remask(recipe.output, policy, str(tmp_path / f"derived-{policy}"))
            assert derived.gone or derived.manifest.content_digest == fresh.content_digest
        else:
            with pytest.raises(OutputError, match=f"{policy} would train in them cannot be known"):
                remask(recipe.output, policy, str(tmp_path / f"derived-{policy}"))
            back = remask(changed.output, "assistant", str(tmp_path / f"back-{policy}"))
            assert back.manifest.total.balanced


def test_workers_of_a_cluster_do_it_too(original, tmp_path):
    shutil.copytree(original / "out", tmp_path / "out")
    load_encoder.cache_clear()
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        said: list[str] = []
        with heard_by(said.append):
            report = validate(str(tmp_path / "out"), full=True, client=client)
        assert {"units checked", "units encoded again"} <= {text.partition(":")[0] for text in said}
        assert report.passed, report.to_text()
        for command in (["validate", "--full"], ["remask", "--policy", "all"]):
            where = [str(tmp_path / "out"), "--scheduler", cluster.scheduler_address]
            done = CliRunner().invoke(app, [*command, *where])
            assert done.exit_code == 0, done.output
        results = {
            to: export(str(tmp_path / "out-all"), to, str(tmp_path / to), shards=3, client=client) for to in EXITS
        }
    for to, result in results.items():
        assert result.loss_tokens == result.tokens == open_dataset(str(tmp_path / "out")).num_tokens
        export(str(tmp_path / "out-all"), to, str(tmp_path / "here" / to), shards=3)
        there, here = (
            json.loads((folder / to / "_retok_export/export.json").read_text())["files"]
            for folder in (tmp_path, tmp_path / "here")
        )
        assert there == here, to
