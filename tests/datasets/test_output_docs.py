"""The pages of outputs and exits: every exit and every check is there, and what can run here runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factory import make_run

from retok_dask.checks import validate
from retok_dask.checks.thresholds import METRICS
from retok_dask.datasets import export
from retok_dask.datasets.exits import EXITS

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = {"axolotl", "megatron", "nanotron", "mds"}
"""Exits whose consumer needs torch; their own readers are run in test_exports.py."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", (DOCS / "exits.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_exit_has_its_section_and_no_other():
    assert list(sections()) == list(EXITS)
    for name, text in sections().items():
        (block,) = re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
        assert f"tokens-{name}" in block
        assert len(block.strip().splitlines()) <= 5


@pytest.mark.parametrize("name", sorted(EXITS.keys() - ELSEWHERE))
def test_the_lines_shown_load_the_export(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    make_run(tmp_path / "run", units=1, rows=5)
    export(str(tmp_path / "run"), name, str(tmp_path / f"tokens-{name}"))
    (block,) = re.findall(r"```python\n(.*?)```", sections()[name], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(block, names)
    assert any(key in names for key in ("rows", "first", "row"))


def test_every_check_and_threshold_is_explained(tmp_path):
    text = (DOCS / "outputs.md").read_text()
    explained = dict(re.findall(r"^\| `(\w+)` \| (error|warning) \|", text, re.MULTILINE))
    report = validate(make_run(tmp_path).url)
    made = {check.name: check.severity for check in report.checks}
    assert made.keys() == explained.keys()
    assert all(severity in {explained[name], "info"} for name, severity in made.items())
    assert all(f"`{name}`" in text for name in METRICS)
