"""Whole runs on a local Dask cluster, measured from inside a fresh process."""

from __future__ import annotations

import _thread
import json
import resource
import tempfile
import threading
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from benchmarks.harness import CACHE
from retok_dask import Recipe, run
from retok_dask.completions import list_inputs
from retok_dask.demo import chat_template, qwen_tokenizer_spec

if TYPE_CHECKING:
    from collections.abc import Callable


def recipe_for(source: str, output: str, **changes: Any) -> Recipe:
    """The recipe of one data set with the demo's tokenizer and template."""
    return Recipe.from_dict(
        {
            "tokenizer": qwen_tokenizer_spec(),
            "template": {"text": chat_template()},
            "datasets": [{"input": source}],
            "output": output,
            **changes,
        }
    )


def whole_run(
    source: str,
    workers: int | None = None,
    worker_memory: str | None = None,
    *,
    stop_at_first: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Run a recipe on a local cluster: wall time, CPU of the workers and of driver with scheduler, peaks.

    The driver, the scheduler and the nannies live in this process, the workers
    are its children. With `stop_at_first` the run is stopped, as by Ctrl-C,
    once its first unit is committed.
    """
    (CACHE / "bench").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE / "bench", ignore_cleanup_errors=True) as scratch:
        cluster = {"dashboard": None, "workers": workers, "worker_memory": worker_memory}
        recipe = recipe_for(source, str(Path(scratch, "out")), cluster=cluster, **changes)
        before, started = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
        first = _when_there(Path(scratch, "out", "_retok", "receipts"), interrupt=stop_at_first)
        try:
            result = run(recipe, progress="none")
        except KeyboardInterrupt:
            return {"first_unit": first() - started}
        wall = perf_counter() - started
        written = sum(path.stat().st_size for path in Path(scratch).glob("out/data/**/*.parquet"))
        commits = commits_of(Path(scratch, "out"))
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    stats = result.stats
    return {
        "wall": wall,
        "first_unit": first() - started,
        "commits": commits,
        "driver_cpu": own.ru_utime + own.ru_stime - before.ru_utime - before.ru_stime,
        "worker_cpu": children.ru_utime + children.ru_stime,
        "worker_peak_mib": children.ru_maxrss / 1024,
        "driver_peak_mib": own.ru_maxrss / 1024,
        "units": result.units,
        "failed": len(result.failed),
        "records": stats.records_in,
        "samples": stats.samples,
        "tokens": stats.tokens,
        "trained": stats.loss_tokens,
        "text_bytes": stats.text_bytes,
        "stage_seconds": dict(stats.seconds),
        "written_bytes": written,
        "tokens_per_second": stats.tokens / wall,
    }


def commits_of(output: Path) -> list[tuple[float, int]]:
    """When each unit was committed, in order, as seconds since 1970; and its tokens."""
    receipts = Path(output, "_retok", "receipts").rglob("*.json")
    return sorted((path.stat().st_mtime, json.loads(path.read_bytes())["stats"]["tokens"]) for path in receipts)


def listing(source: str) -> dict[str, Any]:
    """How long it takes to list files and cut them into units."""
    started = perf_counter()
    found = list_inputs(recipe_for(source, "out"))
    return {"wall": perf_counter() - started, "files": len(found.files), "units": len(found.units)}


def _when_there(folder: Path, *, interrupt: bool) -> Callable[[], float]:
    """Watch a folder from a thread; gives the time at which its first file was seen."""
    seen: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if folder.is_dir() and any(folder.rglob("*.json")):
                seen.append(perf_counter())
                if interrupt:
                    _thread.interrupt_main()
                return
            sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()

    def when() -> float:
        ended.set()
        return seen[0] if seen else perf_counter()

    return when
