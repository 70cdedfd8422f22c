"""The numbered notebooks: tested programs, run by papermill with nothing prepared."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from retok_dask.demo import write_demo
from retok_dask.recipe import Recipe
from retok_dask.views import report, run_notebook
from retok_dask.views.notebooks import find_notebook, notebooks_folder
from retok_dask.views.parameters import declared_parameters

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONVERSATIONS = 200


def texts(run: Any) -> str:
    """All that a run's notebook shows as text."""
    notebook = nbformat.read(run.notebook, as_version=4)
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        found += [str(out.get("data", {}).get("text/plain", "")) + str(out.get("text", "")) for out in outputs]
    return "\n".join(found)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="session")
def ran(work: Path) -> Any:
    """Notebook 3, which runs the demo; the others look at what it wrote.

    On the reference engine, which every kernel and worker has sooner: nothing
    here is about speed. Notebook 1 finds no demo and writes its own.
    """
    write_demo(work / "demo", conversations=CONVERSATIONS)
    path = work / "demo" / "recipe.yaml"
    path.write_text(Recipe.load(path).with_changes(engine="reference").to_yaml())
    return run_notebook("03", work / "out", {"demo_folder": str(work / "demo"), "conversations": CONVERSATIONS})


def test_seven_notebooks_in_order() -> None:
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{number:02d}-" for number in range(1, 8)]
    assert notebooks_folder() == ROOT / "notebooks"
    assert find_notebook("04").stem == "04-validate-and-report"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    """One parameters cell each, for https://github.com/nteract/papermill/issues/245"""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert declared_parameters(notebook, path.name)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert not cell.outputs, "outputs are not stored in git"
        assert cell.execution_count is None
        logic = (ast.FunctionDef, ast.ClassDef, ast.While, ast.Try, ast.Lambda)
        assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, logic)], (
            "logic is in the package"
        )


def test_explore(work: Path) -> None:
    run = run_notebook("01", work / "out", {"demo_folder": str(work / "demo-1"), "conversations": CONVERSATIONS})
    assert run.passed, run.reasons
    shown = texts(run)
    bad = json.loads((work / "demo-1" / "facts.json").read_text())["bad"]
    assert bad
    for part in ("messages", "assistant", "Cyrillic", "Odd records", "most tool calls", *bad):
        assert part in shown


def test_template_and_mask(work: Path, ran: Any) -> None:
    run = run_notebook("02", work / "out", {"demo_folder": str(work / "demo"), "records": 40})
    assert run.passed, run.reasons
    shown = texts(run)
    for part in ("per_turn", "final_answer", "<|im_end|>", "[brackets]"):
        assert part in shown


def test_plan_and_run(ran: Any) -> None:
    assert ran.passed, ran.reasons
    shown = texts(ran)
    assert "is finished" in shown
    lines = [line for line in shown.splitlines() if line.startswith("units ")]
    assert lines, "progress under papermill is plain lines"
    assert len(lines) < 200
    assert Path(ran.notebook).stat().st_size < 1_000_000


def test_compare(work: Path, ran: Any) -> None:
    run = run_notebook("05", work / "out", {"demo_folder": str(work / "demo"), "records": 30})
    assert run.passed, run.reasons
    assert "masks differ" in texts(run)


def test_debug(work: Path, ran: Any) -> None:
    place = str(work / "faulty")
    run = run_notebook("06", work / "out", {"demo_folder": str(work / "demo"), "output": place})
    assert run.passed, run.reasons
    shown = texts(run)
    for part in ("worker_died", "set_aside", "killed_worker", "chat-000005"):
        assert part in shown


def test_hand_over(work: Path, ran: Any) -> None:
    run = run_notebook("07", work / "out", {"demo_folder": str(work / "demo")})
    assert run.passed, run.reasons
    shown = texts(run)
    for part in ("targets in the batch", "megatron", "padding, packed", "num_rows"):
        assert part in shown


def test_report_of_a_good_run(work: Path, ran: Any) -> None:
    output = work / "demo" / "tokens"
    result = report(str(output))
    assert result.passed, result.reasons
    assert result.figures["samples"] == CONVERSATIONS
    page = (output / "report" / "report.html").read_text()
    assert (output / "report" / "report.ipynb").exists()
    assert page.index("PASSED") < page.index("Accounting")
    for part in (
        "fingerprint",
        "tokenizer digest",
        "Accounting",
        "longest",
        "lowest trained share",
        'alt="Workers"',
        "drops reasoning",
        "message 1 (assistant)",
        "swallows",
        "zero trained tokens",
        "doubled BOS",
        "unbalanced think tags",
        "tokenizer.normalizer is NFC, on in this run",
    ):
        assert part in page
    assert "<script" not in page
    assert 'src="http' not in page


def test_report_fails_where_units_are_missing_and_rejects_are_too_many(work: Path, ran: Any, tmp_path: Path) -> None:
    """A failed run never looks successful: https://github.com/MaayanLab/appyter/issues/84"""
    broken = tmp_path / "broken"
    shutil.copytree(work / "demo" / "tokens", broken, ignore=shutil.ignore_patterns("report"))
    next((broken / "data").rglob("*.parquet")).unlink()
    for place, change in ((broken / "_retok" / "recipe.yaml", None), (broken / "_retok" / "manifest.json", "recipe")):
        data = yaml.safe_load(place.read_text())
        recipe = yaml.safe_load(data[change]) if change else data
        recipe["max_reject_share"] = 0.0
        text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
        place.write_text(json.dumps(data | {change: text}) if change else text)
    result = report(str(broken))
    assert not result.passed
    assert any("files" in reason for reason in result.reasons)
    assert any("reject_share" in reason for reason in result.reasons)
    page = Path(result.html).read_text()
    assert page.index("FAILED") < page.index("PASSED" if "PASSED" in page else "Accounting")


def test_the_command_gives_the_verdict(work: Path, ran: Any, tmp_path: Path) -> None:
    """Of a run that has not finished; a folder without one is refused, which the command's own tests hold."""
    (tmp_path / "half" / "_retok").mkdir(parents=True)
    for name in ("run.json", "recipe.yaml", "inputs.json", "listing.json"):
        shutil.copy(work / "demo" / "tokens" / "_retok" / name, tmp_path / "half" / "_retok" / name)
    command = [sys.executable, "-m", "retok_dask.cli", "report", str(tmp_path / "half"), "--to", str(tmp_path / "r")]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert time.monotonic() - started < 120
    assert done.returncode == 1, done.stderr
    assert "FAILED" in done.stdout
    assert "failed check: finished" in done.stdout
    assert "FAILED" in (tmp_path / "r" / "report.html").read_text()


def test_the_wheel_brings_the_notebooks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for path in NOTEBOOKS:
        assert f"retok_dask/views/notebook_files/{path.name}" in names
    for part in ("templates/style.css", "templates/tokens.html.jinja", "nbconvert/retok_report/index.html.j2"):
        assert f"retok_dask/views/{part}" in names
    assert "retok_dask/demo/chatml_thinking.jinja" in names
