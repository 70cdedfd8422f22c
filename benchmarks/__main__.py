"""``python -m benchmarks [NAME ...]``: all of them, or those named; ``full`` is the drafter's job in full,
``large`` has one file of 20 GB, ``many`` up to 128 worker processes, ``quote`` puts the results into the README."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import cluster, end_to_end, job, messages, quote, stages
from benchmarks.harness import console

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS: dict[str, Callable[[], None]] = {
    "stages": stages.main,
    "end_to_end": end_to_end.main,
    "messages": messages.main,
    "workers": cluster.workers,
    "driver": cluster.driver,
    "memory": cluster.memory,
    "oversubscription": cluster.oversubscription,
    "start": cluster.start,
    "job": job.main,
}
ALONE = {
    "full": job.full,
    "large": cluster.large,
    "many": cluster.many,
    "quote": quote.main,
}
"""Run only when named."""


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS | ALONE]
    if unknown:
        console.print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS | ALONE)}")
        return 2
    begun = perf_counter()
    for name in names or BENCHMARKS:
        started = perf_counter()
        (BENCHMARKS | ALONE)[name]()
        console.print(f"{name}: {perf_counter() - started:.0f} s\n", style="dim")
    if len(names) != 1:
        console.print(f"in all: {perf_counter() - begun:.0f} s", style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
