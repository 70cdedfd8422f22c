"""From a unit to its records, whatever the format of its files."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from retok_dask.completions.columnar import read_arrow, read_parquet
from retok_dask.completions.json_files import read_json
from retok_dask.completions.lines import read_lines
from retok_dask.completions.options import ReadOptions
from retok_dask.completions.tables import read_csv
from retok_dask.completions.unchanged import refuse_changed
from retok_dask.completions.whole import read_object, read_text
from retok_dask.types import Record, RecordRejected, Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retok_dask.completions.units import Part, Unit
    from retok_dask.recipe import DatasetSpec, Recipe

READERS: dict[str, Callable[[Part, ReadOptions], Iterator[Record | Reject]]] = {
    "jsonl": read_lines,
    "json": read_json,
    "object": read_object,
    "text": read_text,
    "csv": read_csv,
    "parquet": read_parquet,
    "arrow": read_arrow,
}
"""How the parts of each format are read."""


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
        InputChanged: it is another one now.
        StorageError: the storage refused, after the retries that make sense.
    """
    records = _all_records(unit, ReadOptions.of(dataset_spec, recipe, unit.parts))
    if unit.limit is not None:
        records = islice(records, unit.limit)
    return records if unit.first is None else islice(records, unit.first, unit.last)


def _all_records(unit: Unit, options: ReadOptions) -> Iterator[Record | Reject]:
    try:
        for part in unit.parts:
            refuse_changed(part, options.source.storage)
            try:
                yield from READERS[part.format](part, options)
            except RecordRejected as rejected:
                yield Reject(part.url, -1, -1, rejected.reason, rejected.detail)
    finally:
        options.source.close()
