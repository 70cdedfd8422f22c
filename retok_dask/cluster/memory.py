"""What memory a worker is predicted to need, and whether it has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
from dask.utils import format_bytes

from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from retok_dask.cluster.connect import Workers
    from retok_dask.cluster.plan import DatasetPlan
    from retok_dask.recipe import Recipe

BATCH_FACTOR = 16
"""Resident bytes that a byte of a batch's text takes at most: text, objects, ids, masks, Arrow. Measured 6 to 14."""

DASK_ENDS = 0.95
"""Share of its memory at which Dask ends a worker."""

WRITER_BYTES = 2 * 64 * 1024 * 1024
"""A row group that waits, and the same while it is compressed."""


def needed_memory(recipe: Recipe, largest_record: int, threads: int) -> int:
    """What a worker holds: what this process holds now, with tokenizer and template, and what each thread has in hand."""
    return int(psutil.Process().memory_info().rss) + threads * _in_hand(recipe, largest_record)


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
