"""Notebooks run unattended: typed parameters, and an end that is never in doubt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from retok_dask.errors import RecipeError
from retok_dask.views import run_notebook
from retok_dask.views.parameters import check_parameters, declared_parameters

PARAMETERS = (
    'place: str = "0123"  # a path\nfull: bool = False\ncount: int = 3\nshare: float = 0.5\nnames: list[str] = []'
)


def write(path: Path, *cells: str, parameters: str | None = PARAMETERS) -> Path:
    notebook = new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    if parameters is not None:
        notebook.cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    notebook.cells += [new_code_cell(source) for source in cells]
    nbformat.write(notebook, path)
    return path


def declared(parameters: str = PARAMETERS) -> Any:
    return declared_parameters(
        new_notebook(cells=[new_code_cell(parameters, metadata={"tags": ["parameters"]})]), "a notebook"
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("place", "0123", "0123"),
        ("place", "false", "false"),
        ("place", "1e5", "1e5"),
        ("full", "false", False),
        ("full", "TRUE", True),
        ("count", "7", 7),
        ("share", "1e-3", 0.001),
        ("share", 1, 1.0),
        ("names", '["a", "b"]', ["a", "b"]),
    ],
)
def test_parameters_are_read_as_declared(name: str, text: Any, value: Any) -> None:
    found = check_parameters(declared(), {name: text})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", "1e5"), ("count", "many"), ("count", 1.5), ("full", "0"), ("place", 123), ("names", "a")],
)
def test_values_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=f"parameter '{name}' is"):
        check_parameters(declared(), {name: value})


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    """A misspelt parameter: https://github.com/nteract/papermill/issues/245"""
    path = write(tmp_path / "n.ipynb", "1")
    with pytest.raises(RecipeError, match=r"no parameter 'ful'\. Did you mean 'full'"):
        run_notebook(path, tmp_path / "out", {"ful": True})
    assert not (tmp_path / "out").exists()


def test_a_notebook_needs_exactly_one_parameters_cell(tmp_path: Path) -> None:
    """Parameters that nothing takes: https://github.com/nteract/papermill/issues/245"""
    path = write(tmp_path / "n.ipynb", "1", parameters=None)
    with pytest.raises(RecipeError, match="has 0 cells tagged 'parameters' and needs exactly one"):
        run_notebook(path, tmp_path, {"inptu_path": "s3://x"})
    notebook = nbformat.read(write(tmp_path / "n.ipynb", "1"), as_version=4)
    notebook.cells.append(notebook.cells[0])
    with pytest.raises(RecipeError, match="has 2 cells"):
        declared_parameters(notebook, "n")


def test_an_untyped_parameters_cell_is_refused() -> None:
    with pytest.raises(RecipeError, match="line 2 of the parameters cell"):
        declared("a: int = 1\nb = 2")
    with pytest.raises(RecipeError, match=r"'strr' is no type of a parameter\. Did you mean 'str'"):
        declared("a: strr = 1")


def test_a_verdict_decides_and_stands_on_top(tmp_path: Path) -> None:
    verdict = 'from retok_dask.views import Verdict\nVerdict(count < 5, ("length <b>", "drift"), {"tokens": 1234567})'
    path = write(tmp_path / "n.ipynb", verdict, "print('comes-later')")
    good = run_notebook(path, tmp_path / "good", {"place": "0123"})
    assert good.passed
    assert good.parameters == {"place": "0123", "full": False, "count": 3, "share": 0.5, "names": []}
    bad = run_notebook(path, tmp_path / "bad", {"count": "9"})
    assert not bad.passed
    assert bad.reasons == ["failed check: length <b>", "failed check: drift"]
    page = Path(bad.html).read_text()
    assert page.index("FAILED") < page.index("comes-later")
    assert "failed check: length &lt;b&gt;" in page
    assert "1,234,567" in page
    assert ">9<" in page, "the effective parameters are part of the report"
    executed = nbformat.read(bad.notebook, as_version=4)
    assert "FAILED" in executed.cells[0].outputs[0].data["text/plain"]


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "n.ipynb", "'x'"), tmp_path / "out")
    page = Path(run.html).read_text()
    assert "<script" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert "default-src 'none'" in page


def test_a_cell_that_fails_gives_a_failed_report(tmp_path: Path) -> None:
    path = write(
        tmp_path / "n.ipynb", "print('one-ran')", "raise ValueError('no <i>such</i> folder')", "print('two-ran')"
    )
    run = run_notebook(path, tmp_path / "out")
    assert not run.passed
    assert "ValueError: no <i>such</i> folder" in run.reasons[0]
    page = Path(run.html).read_text()
    assert page.index("FAILED") < page.index("one-ran")
    assert "no &lt;i&gt;such&lt;/i&gt; folder" in page
    outputs = [str(cell.get("outputs")) for cell in nbformat.read(run.notebook, as_version=4).cells]
    assert any("one-ran" in text for text in outputs)
    assert not any("two-ran\\n" in text for text in outputs)


def test_a_killed_kernel_ends_soon_and_leaves_nobody(tmp_path: Path) -> None:
    """Neither a hang nor a success: https://github.com/nteract/papermill/issues/125"""
    start = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\nprint('started')"
    )
    path = write(
        tmp_path / "n.ipynb", start, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "print('two-ran')"
    )
    before = time.monotonic()
    run = run_notebook(path, tmp_path / "out")
    assert time.monotonic() - before < 60
    assert not run.passed
    assert "kernel died" in run.reasons[0]
    page = Path(run.html).read_text()
    assert "FAILED" in page
    assert "started" in page, "what was there before is kept"
    stopped = [
        cell
        for cell in nbformat.read(run.notebook, as_version=4).cells
        if "retok-stopped" in cell.metadata.get("tags", [])
    ]
    assert [cell.source.splitlines()[0] for cell in stopped] == ["import os, signal"]
    assert "kernel died" in str(stopped[0].outputs)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_cell_that_hangs_is_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "n.ipynb", "import time\ntime.sleep(600)")
    run = run_notebook(path, tmp_path / "out", cell_seconds=3)
    assert not run.passed
    assert "longer than 3 s" in run.reasons[0]
    assert Path(run.html).exists()


def test_an_old_report_is_not_mistaken_for_the_new_one(tmp_path: Path) -> None:
    path = write(tmp_path / "n.ipynb", "print('from-the-first')")
    first = run_notebook(path, tmp_path / "out")
    write(path, "import os\nos._exit(1)")
    second = run_notebook(path, tmp_path / "out")
    assert second.html == first.html
    assert not second.passed
    assert "from-the-first" not in Path(second.html).read_text()


STREAM = """
import dataclasses
from retok_dask.cluster import progress
from retok_dask.cluster.tracker import Tracker

clock = [0.0]
progress.monotonic = lambda: clock[0]
display = progress.display_for(mode)
first = Tracker(10_000, 10_000).snapshot()
for number in range(10_000):
    clock[0] += 3
    display.update(dataclasses.replace(first, units_done=number, seconds=clock[0]))
display.close(dataclasses.replace(first, units_done=10_000, seconds=clock[0]))
"""


@pytest.mark.parametrize("mode", ["auto", "notebook"])
def test_ten_thousand_units_leave_a_small_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Updates are not kept one by one: https://github.com/nteract/papermill/issues/765"""
    monkeypatch.delenv("RETOK_PROGRESS", raising=False)
    path = write(tmp_path / "n.ipynb", STREAM, parameters='mode: str = "auto"')
    run = run_notebook(path, tmp_path / "out", {"mode": mode})
    assert run.passed, run.reasons
    assert Path(run.notebook).stat().st_size < 1_000_000
    outputs = [out for cell in nbformat.read(run.notebook, as_version=4).cells for out in cell.get("outputs", [])]
    text = "".join(str(out.get("text", "")) for out in outputs)
    drawn = [out for out in outputs if "10,000/10,000" in str(out.get("data", ""))]
    if mode == "auto":  # nobody looks on: plain lines
        assert 20 < text.count("units ") == text.count("\n") <= 200
        assert "units 10,000/10,000" in text
        assert not drawn
    else:  # one output, replaced in place
        assert len(drawn) == 1
        assert "units " not in text
