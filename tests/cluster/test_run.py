"""`run` as its users call it: a whole run, again, after a change, with bad input."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster
from smalldata import write_data

from retok_dask.checks import validate
from retok_dask.cluster import models, plan, read_events, run, status
from retok_dask.cluster.local import own_cluster
from retok_dask.cluster.versions import check_versions
from retok_dask.datasets import OutputFolder, open_dataset, read_manifest
from retok_dask.errors import ClusterError, FingerprintMismatch, OutputLocked
from retok_dask.tokenizers import Tokenizer


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_run_writes_everything_and_says_so(make_recipe, client, tmp_path):
    data = write_data(tmp_path / "in", files=3, records=40, bad=1)
    recipe = make_recipe(data, max_reject_share=0.1)
    result = run(recipe, client=client, progress="none")
    assert result.exit_code == 0
    assert result.stats.records_in == 123
    assert result.stats.rejected == {"bad_json": 3}
    assert result.stats.balanced
    manifest = read_manifest(OutputFolder(recipe.output))
    assert manifest.content_digest == result.content_digest
    assert len(open_dataset(recipe.output)) == result.stats.samples == 120
    assert len(manifest.units) > 6
    assert not (tmp_path / "out" / "_retok" / "tmp").exists() or not list(
        (tmp_path / "out" / "_retok" / "tmp").iterdir()
    )
    kinds = [event["kind"] for event in read_events(OutputFolder(recipe.output))]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("unit") == len(manifest.units)
    assert own_cluster(client) is None
    assert client.status == "running"


def test_a_finished_output_is_left_alone(make_recipe, client, capsys):
    recipe = make_recipe()
    first = run(recipe, client=client, progress="none")
    before = {p: p.stat().st_mtime_ns for p in output_paths(recipe)}
    again = run(recipe, progress="lines")
    assert again.did_nothing
    assert again.exit_code == 0
    assert "nothing to do" in again.to_text()
    assert again.content_digest == first.content_digest
    assert {p: p.stat().st_mtime_ns for p in output_paths(recipe)} == before


def output_paths(recipe):
    return [p for p in Path(recipe.output).rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_length": 50}, "max_length"),
        ({"mask": "all"}, "mask"),
        ({"history": "per_turn"}, "history"),
        (
            {
                "template": {
                    "text": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                }
            },
            "template",
        ),
    ],
)
def test_another_recipe_is_refused_by_name(make_recipe, client, change, named):
    """Old results under new settings: https://github.com/allenai/open-instruct/pull/1497"""
    recipe = make_recipe()
    run(recipe, client=client, progress="none")
    with pytest.raises(FingerprintMismatch, match=named) as caught:
        run(recipe.with_changes(**change), client=client, progress="none")
    assert "--restart" in str(caught.value)


def test_one_character_of_the_template_file_matters(make_recipe, client, tmp_path):
    """The same file name is not the same template: https://github.com/allenai/open-instruct/pull/1497"""
    recipe = make_recipe()
    run(recipe, client=client, progress="none")
    template = tmp_path / "template.jinja"
    template.write_text(template.read_text() + "{# #}")
    with pytest.raises(FingerprintMismatch, match="template"):
        run(recipe, client=client, progress="none")


def test_a_changed_input_is_refused_and_a_new_one_can_be_added(make_recipe, client, tmp_path):
    """Changed input under old results: https://github.com/allenai/open-instruct/pull/1497"""
    data = write_data(tmp_path / "in", files=2, records=30)
    recipe = make_recipe(data)
    first = run(recipe, client=client, progress="none")
    line = json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})
    (data / "part-09.jsonl").write_text(line + "\n")
    with pytest.raises(FingerprintMismatch, match="--extend"):
        run(recipe, client=client, progress="none")
    more = run(recipe, client=client, extend=True, progress="none")
    assert more.stats.records_in == first.stats.records_in + 1
    assert more.committed_now == 1
    (data / "part-09.jsonl").write_text(line + "\n" + line + "\n")
    with pytest.raises(FingerprintMismatch, match="changed input"):
        run(recipe, client=client, extend=True, progress="none")
    fresh = run(recipe, client=client, restart=True, progress="none")
    assert fresh.stats.records_in == first.stats.records_in + 2
    assert fresh.committed_before == 0


def test_a_file_that_changes_while_the_run_starts_is_refused(make_recipe, client, tmp_path, monkeypatch):
    """At equal size, nothing else tells: https://github.com/allenai/open-instruct/pull/1497"""
    data = write_data(tmp_path / "in", files=2, records=10)
    recipe = make_recipe(data)

    def check(client):
        path = data / "part-01.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"c11"', b'"c99"'))
        return check_versions(client)

    monkeypatch.setattr(sys.modules[run.__module__], "check_versions", check)
    result = run(recipe, client=client, progress="none")
    assert result.exit_code == 1
    assert all(name.startswith("part-01") for name in result.failed)
    assert all("part-01.jsonl has changed since the run listed it" in why for why in result.failed.values())
    assert result.committed_now + len(result.failed) == result.units
    assert result.committed_now > 0
    with pytest.raises(FingerprintMismatch, match="changed input"):
        run(recipe, client=client, progress="none")
    monkeypatch.undo()
    assert run(recipe, client=client, restart=True, progress="none").exit_code == 0


def test_too_many_rejects_end_non_zero_after_everything_is_done(make_recipe, client, tmp_path):
    data = write_data(tmp_path / "in", files=2, records=30, bad=3)
    recipe = make_recipe(data, max_reject_share=0.01)
    result = run(recipe, client=client, progress="none")
    assert result.exit_code == 1
    assert "bad_json 6" in result.verdict
    assert len(open_dataset(recipe.output)) == 60
    again = run(recipe, client=client, progress="none")
    assert again.did_nothing
    assert again.exit_code == 1
    shown = status(recipe.output).outputs[0]
    assert shown.state == "finished"
    assert "exit code 1" in shown.text


def test_bounds_and_weights_of_a_finished_run_may_change(make_recipe, client):
    """They change no row: what is written stays, and whoever reads the run finds the new ones."""
    recipe = make_recipe()
    digest = run(recipe, client=client, progress="none").content_digest
    before = {path: path.stat().st_mtime_ns for path in Path(recipe.output, "data").rglob("*")}
    datasets = [recipe.datasets[0].model_dump(exclude_unset=True) | {"weight": 3.0, "tags": {"by": "us"}}]
    changed = recipe.with_changes(checks={"max_mean_tokens": 1}, datasets=datasets)
    again = run(changed, client=client, progress="none")
    assert (again.did_nothing, again.committed_now, again.content_digest) == (False, 0, digest)
    found = open_dataset(recipe.output).recipe
    assert (found.datasets[0].weight, found.checks) == (3.0, {"max_mean_tokens": 1})
    failed = [check.name for check in validate(recipe.output).failed]
    assert failed == ["thresholds"]
    assert run(changed, client=client, progress="none").did_nothing
    assert before == {path: path.stat().st_mtime_ns for path in Path(recipe.output, "data").rglob("*")}


def test_a_data_set_without_rows_is_named(make_recipe, client, tmp_path):
    """Few rejects among all, but all of one data set; an input that holds nothing; a good one."""
    data = write_data(tmp_path / "in", files=1, records=30)
    (tmp_path / "texts.jsonl").write_text('{"text": "once"}\n' * 3)
    (tmp_path / "nothing.jsonl").touch()
    names = {"chat": "in", "texts": "texts.jsonl", "nothing": "nothing.jsonl"}
    datasets = [{"name": name, "input": str(tmp_path / file)} for name, file in names.items()]
    recipe = make_recipe(data, datasets=datasets, max_reject_share=0.2)
    notes = plan(recipe, client).notes
    for _ in range(2):  # and once more where there is nothing to do
        result = run(recipe, client=client, progress="none")
        assert result.exit_code == 0
        assert [text.split("'")[1] for text in result.warnings] == ["nothing", "texts"]
        assert "unknown_layout 3" in result.to_text()
    assert sorted(note.split(":")[0] for note in notes) == ["nothing", "texts"]


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "receipt cut", "receipt of another", "fewer rows"])
def test_a_half_written_unit_is_done_again(make_recipe, client, damage):
    recipe = make_recipe()
    first = run(recipe, client=client, progress="none")
    folder = OutputFolder(recipe.output)
    unit = min(read_manifest(folder).units)
    path = f"{recipe.output}/{folder.data('chat', unit)}"
    receipt = f"{recipe.output}/{folder.receipt(unit)}"
    folder.remove(["_retok/manifest.json"])
    hurt(damage, path, receipt)
    again = run(recipe, client=client, progress="none")
    assert again.committed_now == 1
    assert again.content_digest == first.content_digest
    assert again.exit_code == 0


class Clock(dt.datetime):
    """A clock that the test sets: datetime.datetime of the room that asks for the day."""

    day = dt.date(2026, 3, 4)

    @classmethod
    def now(cls, tz=None):
        return cls.combine(cls.day, dt.time(23, 59), tz)


def test_the_day_of_the_first_start_is_kept_on_resume(make_recipe, client, tmp_path, monkeypatch):
    """B10: one date in a data set that was made on two days, https://github.com/sgl-project/sglang/issues/3296"""
    room = sys.modules["retok_dask.cluster.prepare"]
    monkeypatch.setattr(room, "dt", SimpleNamespace(datetime=Clock, UTC=dt.UTC, date=dt.date))
    recipe = make_recipe()
    template = tmp_path / "template.jinja"
    dated = "{{- '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') + '.<|im_end|>\\n' }}"
    template.write_text(dated + template.read_text())
    first = run(recipe, client=client, progress="none")
    folder = OutputFolder(recipe.output)
    unit = min(read_manifest(folder).units)
    folder.remove(["_retok/manifest.json", folder.receipt(unit), folder.data("chat", unit)])
    monkeypatch.setattr(Clock, "day", dt.date(2026, 3, 5))
    again = run(recipe, client=client, progress="none")
    assert again.committed_now == 1
    assert again.content_digest == first.content_digest
    assert read_manifest(folder).run["date"] == "2026-03-04"
    tokenizer = Tokenizer.load(recipe.tokenizer, engine="reference")
    assert all("Today is 04 March 2026." in tokenizer.decode(row["input_ids"]) for row in open_dataset(recipe.output))
    later = run(recipe.with_changes(output=f"{recipe.output}-later"), client=client, progress="none")
    row = open_dataset(later.output)[0]
    assert "Today is 05 March 2026." in tokenizer.decode(row["input_ids"]), "the clock has moved indeed"


def test_little_text_is_left_to_the_reference(make_recipe, client, monkeypatch):
    """Loading the fast engine takes seconds, which must pay; the rows are the same, and ``run.json`` tells which did it."""
    little = run(make_recipe(engine="auto"), client=client, progress="none")
    assert read_manifest(OutputFolder(little.output)).run["tokenizer"]["engine"] == "tokenizers"
    monkeypatch.setattr(models, "LITTLE", 0)
    much = run(make_recipe(engine="auto", output=f"{little.output}-much"), client=client, progress="none")
    assert read_manifest(OutputFolder(much.output)).run["tokenizer"]["engine"] == "fastokens"
    assert much.content_digest == little.content_digest


def test_files_of_a_run_load_as_one_data_set(make_recipe, client, tmp_path):
    """A kept column that only some records hold is null elsewhere: https://github.com/qiufengqijun/mini_qwen/issues/2"""
    data = write_data(tmp_path / "in", files=2, records=20)
    with_it = [json.loads(line) | {"lang": "en"} for line in (data / "part-00.jsonl").read_text().splitlines()]
    (data / "part-00.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in with_it))
    recipe = make_recipe(
        data,
        datasets=[
            {"name": "kept", "input": str(data / "part-00.jsonl"), "keep": ["lang"]},
            {"name": "lacking", "input": str(data / "part-01.jsonl"), "keep": ["lang"]},
            {"name": "unasked", "input": str(data / "part-00.jsonl")},
        ],
    )
    run(recipe, client=client, progress="none")
    files = sorted(Path(recipe.output, "data").rglob("*.parquet"))
    assert len(files) > 3
    first, *others = map(pq.read_schema, files)
    assert all(schema.equals(first, check_metadata=True) for schema in others)
    for table in (ds.dataset(Path(recipe.output, "data")).to_table(), pa.Table.from_pandas(pd.read_parquet(files))):
        found = pc.value_counts(table.column("lang")).to_pylist()
        assert {one["values"]: one["counts"] for one in found} == {"en": 20, None: 40}


def hurt(damage: str, path: str, receipt: str) -> None:
    data = Path(path).read_bytes()
    match damage:
        case "cut":
            Path(path).write_bytes(data[:-10])
        case "empty":
            Path(path).write_bytes(b"")
        case "gone":
            Path(path).unlink()
        case "receipt cut":
            Path(receipt).write_bytes(Path(receipt).read_bytes()[:-30])
        case "receipt of another":
            Path(receipt).write_text(Path(receipt).read_text().replace('"unit":"part', '"unit":"trap'))
        case "fewer rows":
            table = pq.read_table(path)
            pq.write_table(table.slice(1), path)


def test_two_clients_on_one_output(make_recipe, client):
    from retok_dask.datasets import OutputLock

    recipe = make_recipe()
    other = OutputLock(OutputFolder(recipe.output))
    other.acquire()
    try:
        with pytest.raises(OutputLocked, match="wait for it or stop it"):
            run(recipe, client=client, progress="none")
    finally:
        other.release()
    assert run(recipe, client=client, progress="none").exit_code == 0


def test_a_scheduler_that_does_not_answer(make_recipe):
    recipe = make_recipe()
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        run(recipe, scheduler="tcp://127.0.0.1:9", progress="none")
    assert status(recipe.output).outputs[0].state == "no run"
    assert not output_paths(recipe)


def test_a_scheduler_address_and_what_the_cluster_keeps(make_recipe, client):
    recipe = make_recipe()
    result = run(recipe, scheduler=client.scheduler.address, progress="none")
    assert result.exit_code == 0
    assert client.status == "running"

    def left(dask_scheduler):
        return [name for name in dask_scheduler.worker_plugins if name.startswith("retok")], len(dask_scheduler.tasks)

    assert client.run_on_scheduler(left) == ([], 0)


def test_status_of_nothing(tmp_path):
    found = status(str(tmp_path / "none"))
    assert found.outputs[0].state == "no run"
    assert "no run" in found.to_text()
