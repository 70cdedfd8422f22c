"""From a unit to its records, whatever the format of its files."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from retok_dask.completions.lines import read_lines
from retok_dask.types import Record, RecordRejected, Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retok_dask.completions.units import Part, Unit
    from retok_dask.recipe import DatasetSpec, Recipe, StorageSpec

Reader = "Callable[[Part, int, StorageSpec | None], Iterator[Record | Reject]]"

READERS: dict[str, Callable[[Part, int, StorageSpec | None], Iterator[Record | Reject]]] = {
    "jsonl": read_lines,
}
"""How the parts of each format are read: (part, largest record in bytes, storage) -> records."""


def read_records(unit: Unit, dataset_spec: DatasetSpec, recipe: Recipe) -> Iterator[Record | Reject]:
    """All records of a unit, in order, each once.

    What is wrong with one record, or with the rest of one file, comes out as a
    :class:`Reject`; the other files of the unit are read all the same.

    Args:
        unit: what to read.
        dataset_spec: the data set that the unit belongs to.
        recipe: the whole recipe, for limits and storage.

    Raises:
        InputError: a file is gone since it was listed.
        StorageError: the storage refused, after the retries that make sense.
    """
    del dataset_spec  # reading depends on the parts alone; layouts come after
    records = _all_records(unit, recipe)
    return records if unit.first is None else islice(records, unit.first, unit.last)


def _all_records(unit: Unit, recipe: Recipe) -> Iterator[Record | Reject]:
    for part in unit.parts:
        try:
            yield from READERS[part.format](part, recipe.units.record_bytes, recipe.storage)
        except RecordRejected as rejected:
            yield Reject(part.url, -1, -1, rejected.reason, rejected.detail)
