"""What memory a worker is predicted to need, and whether it has it."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
from dask.utils import format_bytes

from retok_dask.cluster.models import load_models
from retok_dask.doing import doing
from retok_dask.errors import ClusterError
from retok_dask.recipe import Recipe

if TYPE_CHECKING:
    from retok_dask.cluster.connect import Workers
    from retok_dask.cluster.plan import DatasetPlan

BATCH_FACTOR = 16
"""Resident bytes that a byte of a batch's text takes at most: text, objects, ids, masks, Arrow. Measured 6 to 14."""

DASK_ENDS = 0.95
"""Share of its memory at which Dask ends a worker."""

WRITER_BYTES = 2 * 64 * 1024 * 1024
"""A row group that waits, and the same while it is compressed."""


FRESH_BYTES = 512 << 20
"""A process that held less before it loaded anything holds little that a worker would not: imports, no user's data."""

CHILD_SECONDS = 120.0
"""Time in which a process of its own loads tokenizer and template."""


def held_memory() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def needed_memory(recipe: Recipe, largest_record: int, threads: int, held_before: int) -> int:
    """What a worker holds: Python with tokenizer and template, and what each thread has in hand.

    Args:
        recipe: tokenizer and template are loaded here by now.
        largest_record: bytes of the largest record seen.
        threads: of a worker.
        held_before: what this process held before it loaded them. A notebook may hold much that a worker will
            not; what those need is then measured in a process of its own.
    """
    loaded = held_memory()
    if held_before > FRESH_BYTES:
        loaded = _held_by_new_process(recipe) or loaded - held_before + FRESH_BYTES
    return loaded + threads * _in_hand(recipe, largest_record)


def _held_by_new_process(recipe: Recipe) -> int | None:
    """Resident bytes of a process with tokenizer and template alone; None if it cannot be had."""
    doing("measuring what tokenizer and template hold in a process of their own")
    command = [sys.executable, "-c", f"from {__name__} import tell_held; tell_held()"]
    try:
        done = subprocess.run(  # noqa: S603  this Python, this module
            command, input=recipe.to_yaml(), capture_output=True, text=True, timeout=CHILD_SECONDS, check=True
        )
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def tell_held() -> None:
    """Print what this process holds when it has loaded tokenizer and template of the recipe on standard input."""
    recipe = Recipe.from_yaml(sys.stdin.read(), source="standard input")
    _loaded = load_models(recipe, recipe.date or dt.datetime.now(dt.UTC).date())
    sys.stdout.write(f"{held_memory()}\n")


def _in_hand(recipe: Recipe, largest_record: int) -> int:
    """A batch with its row group."""
    return BATCH_FACTOR * (recipe.units.batch_bytes + largest_record) + WRITER_BYTES


def tight_memory(recipe: Recipe, needed: int, workers: Workers, datasets: list[DatasetPlan]) -> list[str]:
    """What there is to say of workers that may be too small: what is predicted is the most that a worker can need.

    Raises:
        ClusterError: not even Python, tokenizer and template fit.
    """
    usable = DASK_ENDS * workers.memory
    if not workers.memory or needed <= usable:
        return []
    largest = max(datasets, key=lambda data: data.largest_record)
    base = needed - workers.threads * _in_hand(recipe, largest.largest_record)
    each, fewer = (
        (f" for each of its {workers.threads} threads", "threads a worker or ") if workers.threads > 1 else ("", "")
    )
    said = (
        f"workers have {format_bytes(workers.memory)} each, and this recipe needs about {format_bytes(base)} for Python, "
        f"tokenizer and template, and{each} at most {BATCH_FACTOR} times the text of a batch "
        f"({format_bytes(recipe.units.batch_bytes)}) and of the largest record seen "
        f"({format_bytes(largest.largest_record)}, in {largest.name!r}) and {format_bytes(WRITER_BYTES)} for writing, "
        f"together {format_bytes(needed)}"
    )
    way_out = f"give workers more memory (fewer {fewer}workers a host), or set units.batch_bytes lower"
    if base > usable:
        msg = f"{said}; {way_out}"
        raise ClusterError(msg)
    return [
        f"{said}; the run may do with less, as this is the most, but if workers are ended for their memory, {way_out}"
    ]
