"""The `retok` command as people use it: the main job end to end, and each kind of bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pipelines import qwen

from retok_dask.demo import write_demo

RETOK = [sys.executable, "-m", "retok_dask.cli"]


def retok(*arguments, stdin=None, timeout=200):
    return subprocess.run(
        [*RETOK, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small demo, run once by the command."""
    folder = tmp_path_factory.mktemp("demo")
    facts = write_demo(str(folder), 120, 3, str(folder / "out"))
    done = retok("run", folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr
    return folder, facts, done


def test_run_shows_progress_and_where_things_are(finished):
    folder, _facts, done = finished
    text = done.stdout + done.stderr
    assert "tokens" in text
    assert str(folder / "out") in text
    assert (folder / "out" / "_retok" / "manifest.json").exists()


def test_second_run_does_nothing(finished):
    folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")}
    done = retok("run", folder / "recipe.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")}


def test_every_record_is_accounted_for(finished):
    folder, facts, _ = finished
    done = retok("status", folder / "out", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "out" / "_retok" / "manifest.json").read_text())
    assert manifest["totals"]["records_in"] == facts["records"]
    assert json.loads(done.stdout)


def test_validate_passes(finished):
    folder, _, _ = finished
    done = retok("validate", folder / "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_show_draws_tokens(finished, tmp_path):
    folder, _, _ = finished
    text = retok("show", folder / "out", "--row", 3)
    assert text.returncode == 0, text.stderr
    assert "content" in text.stdout
    page = retok("show", folder / "out", "--row", 3, "--html", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "<html" in (tmp_path / "page.html").read_text().lower()
    row = json.loads(retok("show", folder / "out", "--row", 3, "--json").stdout)
    assert len(row["input_ids"]) == len(row["loss_mask"]) == row["num_tokens"]


def test_show_encodes_an_input_on_the_spot(finished):
    folder, _, _ = finished
    done = retok("show", folder / "chat/part-00.jsonl", "-t", folder / "recipe.yaml", "--row", 1, "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["source_row"] == 1
    assert done.stderr == ""


def test_encode_is_a_pipe(finished):
    folder, _, _ = finished
    lines = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n{"mess\n'
    done = retok("encode", "-t", folder / "recipe.yaml", stdin=lines)
    good, bad = map(json.loads, done.stdout.splitlines())
    assert qwen().decode(good["input_ids"]).startswith("<|im_start|>user\nq<|im_end|>")
    assert sum(good["loss_mask"]) == good["num_loss_tokens"] > 0
    assert good["segments"][-1][1] == good["num_tokens"]
    assert bad["reason"] == "bad_json"
    assert done.returncode == 1
    assert done.stderr == ""


def test_remask_needs_no_tokenizer(finished, tmp_path):
    folder, _, _ = finished
    done = retok("remask", folder / "out", "--policy", "final_answer", "--to", tmp_path / "masked", "--json")
    assert done.returncode == 0, done.stderr
    check = retok("validate", tmp_path / "masked")
    assert check.returncode == 0, check.stdout + check.stderr


def changed(folder: Path, to: Path, **changes) -> Path:
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe |= {"output": str(to.parent / f"{to.stem}-out")} | changes
    to.write_text(yaml.safe_dump(recipe, allow_unicode=True))
    return to


def refused(done, *words):
    """One clear sentence on standard error, exit code 2, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_missing_recipe(tmp_path):
    refused(retok("run", tmp_path / "none.yaml"), "no recipe", "none.yaml")


def test_missing_input_files(finished, tmp_path):
    path = changed(finished[0], tmp_path / "a.yaml", datasets=[{"input": str(tmp_path / "*.jsonl")}])
    refused(retok("run", path), str(tmp_path / "*.jsonl"))
    assert not (tmp_path / "a-out").exists()


def test_unreadable_tokenizer(finished, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{not json")
    path = changed(finished[0], tmp_path / "b.yaml", tokenizer=str(tmp_path / "tokenizer.json"))
    refused(retok("run", path), "tokenizer.json")
    assert not (tmp_path / "b-out").exists()


def test_template_that_does_not_compile(finished, tmp_path):
    path = changed(finished[0], tmp_path / "c.yaml", template={"text": "{% for message in messages %}{{ message"})
    refused(retok("run", path), "template")
    assert not (tmp_path / "c-out").exists()


def test_output_of_another_recipe(finished, tmp_path):
    folder = finished[0]
    path = changed(folder, tmp_path / "d.yaml", output=str(folder / "out"), mask="final_answer")
    before = sorted(path for path in (folder / "out").rglob("*"))
    refused(retok("run", path), "mask", "--restart")
    assert before == sorted(path for path in (folder / "out").rglob("*"))


def test_unknown_key_names_the_nearest(finished, tmp_path):
    path = changed(finished[0], tmp_path / "e.yaml", histroy="whole")
    refused(retok("run", path), "histroy", "'history'")


def test_scheduler_that_does_not_answer(finished, tmp_path):
    path = changed(finished[0], tmp_path / "f.yaml")
    refused(retok("run", path, "--scheduler", "tcp://127.0.0.1:9"), "tcp://127.0.0.1:9")
    assert not (tmp_path / "f-out").exists()


def test_folder_that_is_no_run(tmp_path):
    refused(retok("validate", tmp_path), str(tmp_path))
    refused(retok("show", tmp_path), str(tmp_path))


def test_help_names_every_command():
    done = retok("--help")
    for name in ("plan", "run", "status", "validate", "report", "show", "audit", "encode", "remask", "doctor"):
        assert name in done.stdout
