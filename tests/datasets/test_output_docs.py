"""The pages of outputs and exits: every exit and every check is there, and what can run here runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factory import make_run

from retok_dask.checks import validate
from retok_dask.checks.thresholds import METRICS
from retok_dask.datasets import export, open_dataset
from retok_dask.datasets.exits import EXITS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.stem: path.read_text() for path in sorted((DOCS / "exits").glob("*.md"))}
HERE = {"hf-arrow", "npy", "webdataset"}
"""Pages whose lines run here; the others need torch, and tests/exits runs them with their trainers."""


def lines_of(name: str) -> str:
    (block,) = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGES[name], re.DOTALL)
    return block


def test_every_exit_has_its_page_and_no_other():
    assert PAGES.keys() == EXITS.keys()
    index = (DOCS / "exits.md").read_text()
    listed = re.findall(r"^\| \[([\w-]+)\]\(exits/([\w-]+)\.md\) \|.*\| (yes|no) \|$", index, re.MULTILINE)
    assert [(name, name, "yes" if spec.packs else "no") for name, spec in EXITS.items()] == listed


@pytest.mark.parametrize("name", EXITS)
def test_five_lines_load_an_export(name):
    lines = [line for line in lines_of(name).splitlines() if line.strip()]
    assert f"tokens-{name}" in "".join(lines)
    assert len([line for line in lines if not line.startswith(("import ", "from "))]) <= 5
    assert PAGES[name].startswith(f"# {name}\n")


def test_every_page_is_run():
    """The lines of a page are run below, or by a reader of tests/exits."""
    readers = "".join(path.read_text() for path in (DOCS.parent / "tests" / "exits").glob("read_*.py"))
    trl = {name for name in EXITS if name.startswith("trl")}
    elsewhere = set(re.findall(r"(?:run_page|lines_of)\(\"([\w-]+)\"", readers)) | trl
    assert elsewhere | HERE == EXITS.keys()
    assert not elsewhere & HERE


@pytest.mark.parametrize("name", sorted(HERE))
def test_the_lines_shown_load_the_export(name, tmp_path, monkeypatch):
    make_run(tmp_path / "run", units=1, rows=5)
    export(str(tmp_path / "run"), name, str(tmp_path / f"tokens-{name}"))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(lines_of(name), names)
    row = open_dataset(str(tmp_path / "run"))[0]
    found = {
        "hf-arrow": lambda: (names["rows"][0]["input_ids"], names["rows"][0]["loss_mask"]),
        "npy": lambda: names["first"],
        "webdataset": lambda: (names["row"]["input_ids.npy"], names["row"]["loss_mask.npy"]),
    }[name]()
    assert [part.tolist() for part in found] == [row["input_ids"].tolist(), row["loss_mask"].tolist()]


def test_every_check_and_threshold_is_explained(tmp_path):
    text = (DOCS / "outputs.md").read_text()
    explained = dict(re.findall(r"^\| `(\w+)` \| (error|warning) \|", text, re.MULTILINE))
    report = validate(make_run(tmp_path).url)
    made = {check.name: check.severity for check in report.checks}
    assert made.keys() == explained.keys()
    assert all(severity in {explained[name], "info"} for name, severity in made.items())
    assert all(f"`{name}`" in text for name in METRICS)
