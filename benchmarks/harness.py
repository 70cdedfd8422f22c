"""Fresh processes, alternating runs, medians; tables on the screen and JSON in ``results/``."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.child import TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CACHE = ROOT / ".cache"
LIBRARIES = (
    "dask",
    "distributed",
    "fastokens",
    "minijinja",
    "numpy",
    "orjson",
    "pyarrow",
    "tokenizers",
    "transformers",
)

ONE_CORE = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "FASTOKENS_BPE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}

console = Console(width=None if sys.stdout.isatty() else 110)


def in_process(
    function: str, arguments: dict[str, Any], *, python: str = sys.executable, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Call ``module:function`` in a fresh process and return its answer."""
    with tempfile.TemporaryDirectory() as scratch:
        given, answer = Path(scratch, "arguments.json"), Path(scratch, "answer.json")
        given.write_text(json.dumps(arguments))
        command = [python, "-m", "benchmarks.child", function, str(given), str(answer)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | ONE_CORE | (env or {}), capture_output=True, text=True, check=False
        )
        if done.returncode:
            msg = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise RuntimeError(msg)
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def alternate(cases: dict[str, Callable[[], dict[str, Any]]], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Run all cases in turn, several times over, so that a busy minute hits all of them alike."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            runs[name].append(case())
    return runs


def overlapped(cases: dict[str, Callable[..., dict[str, Any]]], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """The same, where loading takes most of the time: beside the process that measures, the next one loads.

    For cases of :func:`in_process` that use ``benchmarks.child.measured``, of which one at a time is at work.
    """
    order = [name for _ in range(repeats) for name in cases]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    with tempfile.NamedTemporaryFile() as turn, ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        for name, run in zip(order, pool.map(lambda name: cases[name](env={TURN: turn.name}), order), strict=True):
            runs[name].append(run)
    return runs


def mid(runs: Sequence[dict[str, Any]], key: str) -> float:
    """Median of one number over several runs."""
    return median(run[key] for run in runs)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """Print a table; numbers on the right."""
    table = Table(title=title, caption=note or None, title_justify="left", caption_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else number(cell) for cell in row))
    console.print(table)


def number(value: float) -> str:
    """Three digits that mean something."""
    if value == 0 or abs(value) >= 100 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def save(name: str, **found: Any) -> None:
    """Write a benchmark's result with what it ran on."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 2) for load in os.getloadavg()],
        "versions": {library: version(library) for library in LIBRARIES},
    }
    text = json.dumps({"benchmark": name, "machine": machine, **_rounded(found)}, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
