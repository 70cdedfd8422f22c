"""The `retok` command as people use it: the main job end to end, and each kind of bad input."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import yaml
from pipelines import qwen

import retok_dask
from retok_dask import Tokenizer, read_completions
from retok_dask.cli import main
from retok_dask.datasets import open_dataset
from retok_dask.demo import chat_template, qwen_tokenizer_spec, write_demo
from retok_dask.errors import RecipeError, TokenizerError
from retok_dask.views.choosing import choices
from retok_dask.views.exploring import explore


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def in_process(*arguments, stdin: str = "") -> Done:
    """The command as ``main()`` runs it: its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    out.buffer = io.BytesIO()
    source = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode())))
    code = 0
    with (
        mock.patch.object(sys, "argv", ["retok", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", source),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return Done(code, out.getvalue() + out.buffer.getvalue().decode(), err.getvalue())


def retok(*arguments) -> Done:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "retok_dask.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small demo, run once by the command."""
    folder = tmp_path_factory.mktemp("demo")
    facts = write_demo(str(folder), 120, 3, str(folder / "out"))
    done = retok("run", folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr
    return folder, facts, done


def test_it_says_which_version_it_is():
    done = in_process("--version")
    assert (done.returncode, done.stdout) == (0, f"retok-dask {retok_dask.__version__}\n")


def test_run_shows_progress_and_where_things_are(finished):
    folder, _facts, done = finished
    text = done.stdout + done.stderr
    assert "tokens" in text
    assert str(folder / "out") in text
    assert (folder / "out" / "_retok" / "manifest.json").exists()


def test_second_run_does_nothing(finished):
    folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")}
    done = in_process("run", folder / "recipe.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")}


def test_every_record_is_accounted_for(finished):
    folder, facts, _ = finished
    done = in_process("status", folder / "out", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "out" / "_retok" / "manifest.json").read_text())
    assert manifest["total"]["records_in"] == facts["records"]
    assert json.loads(done.stdout)


def test_validate_passes(finished):
    folder, _, _ = finished
    done = in_process("validate", folder / "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_show_draws_tokens(finished, tmp_path):
    folder, _, _ = finished
    text = in_process("show", folder / "out", "--row", 3)
    assert text.returncode == 0, text.stderr
    assert "content" in text.stdout
    page = in_process("show", folder / "out", "--row", 3, "--html", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "<html" in (tmp_path / "page.html").read_text().lower()
    row = json.loads(in_process("show", folder / "out", "--row", 3, "--json").stdout)
    assert len(row["input_ids"]) == len(row["loss_mask"]) == row["num_tokens"]


def test_a_sample_is_found_by_its_id_among_all_rows_or_said_not_to_be_there(finished, tmp_path):
    folder, _, _ = finished
    data = open_dataset(str(folder / "out"))
    last = len(data) - 1
    found = json.loads(in_process("show", folder / "out", "--sample", data[last]["sample_id"], "--json").stdout)
    assert found["sample_id"] == data[last]["sample_id"]
    assert found["input_ids"] == data[last]["input_ids"].tolist()
    for wanted, said in ((["--sample", "none"], "sample 'none' among its"), (["--row", 70_000], "row 70,000: it has")):
        done = in_process("show", folder / "out", *wanted)
        refused(done, f"has no {said} {len(data):,} rows")
        assert "to_pandas() lists them" in done.stderr
        assert "`retok rejects " in done.stderr
    (tmp_path / "none.jsonl").write_text('{"messages": []}\n')
    refused(in_process("show", tmp_path / "none.jsonl", "-t", folder / "recipe.yaml"), "none.jsonl' has no rows")


def test_show_encodes_an_input_on_the_spot(finished):
    folder, _, _ = finished
    done = in_process("show", folder / "chat/part-00.jsonl", "-t", folder / "recipe.yaml", "--row", 1, "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["source_row"] == 1
    assert done.stderr == ""


def test_encode_is_a_pipe(finished):
    folder, _, _ = finished
    lines = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n{"mess\n'
    done = in_process("encode", "-t", folder / "recipe.yaml", stdin=lines)
    good, bad = map(json.loads, done.stdout.splitlines())
    assert qwen().decode(good["input_ids"]).startswith("<|im_start|>user\nq<|im_end|>")
    assert sum(good["loss_mask"]) == good["num_loss_tokens"] > 0
    assert good["segments"][-1][1] == good["num_tokens"]
    assert bad["reason"] == "bad_json"
    assert done.returncode == 1
    assert done.stderr == ""
    again = in_process("encode", "-t", folder / "recipe.yaml", "--mode", "tokens", stdin=json.dumps(good) + "\n")
    names = ("input_ids", "loss_mask", "segments")
    assert [json.loads(again.stdout)[name] for name in names] == [good[name] for name in names]


def test_what_a_recipe_says_of_masks_and_modes_holds_in_a_pipe(finished, tmp_path):
    """A recipe's own mask and mode, unless the command says otherwise; of several data sets the one that is meant."""
    folder = finished[0]
    documents = {"name": "books", "input": str(tmp_path / "books" / "*.jsonl"), "mode": "text"}
    chats = {"name": "talks", "input": str(tmp_path / "talks.jsonl"), "fields": {"messages": "talk"}}
    path = changed(folder, tmp_path / "g.yaml", mask="final_answer", datasets=[documents, chats])
    thoughts = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "why"}]
    talk, book = json.dumps({"talk": thoughts}) + "\n", '{"text": "once"}\n'

    def row(*arguments, stdin=""):
        done = in_process(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    own = row("encode", "-t", path, "--dataset", "talks", stdin=talk)
    other = row("encode", "-t", path, "--dataset", "talks", "--mask", "assistant", stdin=talk)
    assert 0 < own["num_loss_tokens"] < other["num_loss_tokens"]
    assert row("encode", "-t", path, stdin=book)["num_loss_tokens"] == 2  # the first data set, a word and its separator
    (tmp_path / "talks.jsonl").write_text(talk)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.jsonl").write_text(book)
    assert row("show", tmp_path / "talks.jsonl", "-t", path, "--json")["num_loss_tokens"] == own["num_loss_tokens"]
    assert row("show", tmp_path / "books" / "a.jsonl", "-t", path, "--json")["num_tokens"] == 2
    refused(in_process("encode", "-t", path, "--dataset", "talk", stdin=talk), "'talks'")


def test_remask_needs_no_tokenizer(finished, tmp_path):
    folder, _, _ = finished
    done = in_process("remask", folder / "out", "--policy", "final_answer", "--to", tmp_path / "masked", "--json")
    assert done.returncode == 0, done.stderr
    check = in_process("validate", tmp_path / "masked")
    assert check.returncode == 0, check.stdout + check.stderr


def test_export_and_diff(finished, tmp_path):
    folder, facts, _ = finished
    done = in_process("export", folder / "out", "--to", "trl", "-o", tmp_path / "trl", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == sum(facts["conversations"].values())
    refused(in_process("export", folder / "out", "--to", "trll", "-o", tmp_path / "x"), "'trl'")
    same = in_process("diff", folder / "out", folder / "out")
    assert same.returncode == 0, same.stderr
    assert "rows: the same" in same.stdout


def test_rejects_are_mended_and_taken_alone(tmp_path):
    """What a run left out is written for repair; with --extend the mended lines alone are run."""
    line = '{"messages": [{"role": "user", "content": "q%d"}, {"role": "assistant", "content": "a"}]}\n'
    (tmp_path / "in").mkdir()
    good = [line % number for number in range(20)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(good) + good[0][:40] + "\n")
    recipe = {
        "tokenizer": qwen_tokenizer_spec(),
        "template": {"text": chat_template()},
        "datasets": [{"input": str(tmp_path / "in" / "*.jsonl")}],
        "output": str(tmp_path / "out"),
        "cluster": {"workers": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    first = in_process("run", tmp_path / "recipe.yaml", "--json")
    assert first.returncode == 1, first.stderr  # one of 21 is more than the 0.1 % that a recipe allows by default
    found = in_process("rejects", tmp_path / "out", "--to", tmp_path / "bad.jsonl", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["written"] == 1
    assert (tmp_path / "bad.jsonl").read_text() == good[0][:40] + "\n"
    (tmp_path / "in" / "mended.jsonl").write_text(good[0])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").rglob("*.parquet")}
    refused(in_process("run", tmp_path / "recipe.yaml"), "mended.jsonl", "--extend")
    in_process("run", tmp_path / "recipe.yaml", "--extend", "--json")
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").rglob("*.parquet")}
    assert before.items() < after.items()
    manifest = json.loads((tmp_path / "out" / "_retok" / "manifest.json").read_text())
    assert manifest["total"]["records_out"] == 21


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
    refused(in_process("run", tmp_path / "none.yaml"), "no recipe", "none.yaml")


def test_missing_input_files(finished, tmp_path):
    path = changed(finished[0], tmp_path / "a.yaml", datasets=[{"input": str(tmp_path / "*.jsonl")}])
    refused(in_process("run", path), str(tmp_path / "*.jsonl"))
    assert not (tmp_path / "a-out").exists()


def test_unreadable_tokenizer(finished, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{not json")
    path = changed(finished[0], tmp_path / "b.yaml", tokenizer=str(tmp_path / "tokenizer.json"))
    refused(in_process("run", path), "tokenizer.json")
    assert not (tmp_path / "b-out").exists()


def test_template_that_does_not_compile(finished, tmp_path):
    path = changed(finished[0], tmp_path / "c.yaml", template={"text": "{% for message in messages %}{{ message"})
    refused(in_process("run", path), "template")
    assert not (tmp_path / "c-out").exists()


def test_output_of_another_recipe(finished, tmp_path):
    folder = finished[0]
    path = changed(folder, tmp_path / "d.yaml", output=str(folder / "out"), mask="final_answer")
    before = sorted(path for path in (folder / "out").rglob("*"))
    refused(in_process("run", path), "mask", "--restart")
    assert before == sorted(path for path in (folder / "out").rglob("*"))


def test_unknown_key_names_the_nearest(finished, tmp_path):
    path = changed(finished[0], tmp_path / "e.yaml", histroy="whole")
    refused(in_process("run", path), "histroy", "'history'")


def test_scheduler_that_does_not_answer(finished, tmp_path):
    path = changed(finished[0], tmp_path / "f.yaml")
    refused(in_process("run", path, "--scheduler", "tcp://127.0.0.1:9"), "tcp://127.0.0.1:9")
    assert not [path for path in (tmp_path / "f-out").rglob("*") if path.is_file()]


def test_folder_that_is_no_run(tmp_path):
    done = in_process("validate", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} holds no run" in done.stdout
    refused(in_process("show", tmp_path), str(tmp_path))


def test_folders_without_a_run_are_told_apart_from_good_ones(finished, tmp_path):
    """A mistyped folder is no success, and nothing is left there."""
    nowhere = tmp_path / "nowhere"
    done = in_process("status", finished[0] / "out", nowhere)
    assert done.returncode == 1
    assert "no run" in done.stdout
    watched = in_process("status", "--watch", "--json", finished[0] / "out")
    assert json.loads(watched.stdout)["finished"] is True
    refused(in_process("report", nowhere), str(nowhere))
    assert not nowhere.exists()
    refused(in_process("report", finished[0] / "out", "--to", finished[0] / "recipe.yaml"), "cannot write")


PLACES = {"OUT": "out", "RECIPE": "recipe.yaml", "IN": "chat/part-00.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "OUT", "--html", "none/page.html"], "no folder 'none'"),
        (["audit", "-t", "RECIPE", "--html", "none/page.html"], "no folder 'none'"),
        (["compare", "OUT", "OUT", "--html", "none/page.html"], "no folder 'none'"),
        (["compare", "OUT", "OUT", "--plot", "plot.nix"], "png"),
        (["compare", "OUT", "OUT", "--context", "0"], "context is 0"),
        (["compare", "OUT", "OUT", "--records", "-1"], "records is -1"),
        (["export", "OUT", "--to", "npy", "-o", "none", "--pack", "0"], "pack is 0"),
        (["export", "OUT", "--to", "npy", "-o", "none", "--shards", "-2"], "shards is -2"),
        (["vocabulary", "OUT", "--size", "0"], "0 tokens"),
        (["rejects", "OUT", "--reason", "bad_jsn"], "'bad_json'"),
        (["rejects", "OUT", "--dataset", "chta"], "'chat'"),
        (["show", "OUT", "--row", "-1"], "row is -1"),
        (["show", "IN", "-t", "RECIPE", "--row", "-1"], "row is -1"),
        (["show", "IN", "-t", "RECIPE", "--row", "70000"], "has no row 70,000: it has 15 rows, the last is 14"),
        (["show", "IN", "-t", "RECIPE", "--sample", "none"], "has no sample 'none' among its 15 rows"),
        (["run", "RECIPE", "--progress", "loud"], "lines"),
        (["plan", "RECIPE", "--scheduler", "head"], "tcp://HOST:PORT"),
    ],
)
def test_values_that_cannot_be_are_refused_in_one_sentence(finished, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    places = {name: finished[0] / path for name, path in PLACES.items()}
    done = in_process(*(places.get(word, word) for word in arguments))
    refused(done, said)
    assert len(done.stderr) < 1200
    assert not [*tmp_path.iterdir()]


def test_what_was_left_out_is_said_of_what_is_done(finished, tmp_path):
    """No record left out by one reason, or so far, is not every record written."""
    none = in_process("rejects", finished[0] / "out", "--dataset", "chat", "--reason", "too_long")
    assert none.stdout == "no record was left out of chat for too_long\n"
    shutil.copytree(finished[0] / "out", tmp_path / "half")
    (tmp_path / "half" / "_retok" / "manifest.json").unlink()
    for receipt in sorted((tmp_path / "half" / "_retok" / "receipts").iterdir())[1:]:
        receipt.unlink()
    half = in_process("rejects", tmp_path / "half")
    assert "done so far: 1 of 3 units" in half.stdout
    assert "every record was written" not in half.stdout


def test_python_takes_the_path_of_a_recipe_wherever_it_takes_one(finished):
    folder, facts, _ = finished
    path = str(folder / "recipe.yaml")
    assert read_completions(path).count().compute(scheduler="sync") == sum(facts["conversations"].values())
    assert set(explore(path, records=3).to_dict()) >= {"chat", "tools"}
    with pytest.raises(RecipeError, match="'chat'"):
        choices(path, dataset="chta")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(str(folder / "tokenizer.json"))


def test_ctrl_c_is_answered(finished, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("retok_dask.cluster.plan", interrupted)
    done = in_process("plan", finished[0] / "recipe.yaml")
    assert done.returncode == 130
    assert done.stderr.startswith("retok: stopped")


def test_help_names_every_command():
    done = in_process("--help")
    for name in (
        "plan",
        "run",
        "status",
        "validate",
        "report",
        "show",
        "audit",
        "encode",
        "remask",
        "doctor",
        "mix",
        "vocabulary",
    ):
        assert name in done.stdout
