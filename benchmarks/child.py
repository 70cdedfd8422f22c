"""Runs one measured function in a fresh process; needs nothing but the standard library.

``python -m benchmarks.child module:function ARGUMENTS RESULT``, both JSON files.
The function returns a dict; what it measured by :func:`measured` is in there.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN = "BENCHMARK_TURN"
"""Names the file that a process locks while it measures."""


def cpu_seconds() -> float:
    """User and system time of this process, all its threads, and its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mib() -> float:
    """Most resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def measured(into: dict[str, Any]) -> Iterator[None]:
    """Put ``cpu``, ``wall`` (seconds) and ``peak_mib`` of a block into a dict; of processes given one :data:`TURN`, one at a time."""
    with _turn():
        wall, cpu = perf_counter(), cpu_seconds()
        yield
        into.update(cpu=cpu_seconds() - cpu, wall=perf_counter() - wall, peak_mib=peak_mib())


@contextmanager
def _turn() -> Iterator[None]:
    """Wait for the others that were given the same file; without one there are none."""
    if TURN not in os.environ:
        yield
        return
    with Path(os.environ[TURN]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    name, arguments, result = sys.argv[1:]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    module, _, function = name.partition(":")
    answer = getattr(importlib.import_module(module), function)(**json.loads(Path(arguments).read_text()))
    Path(result).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
