"""Single rows out of Parquet files: an index over row groups, and a small cache of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.digest import list_values, segment_matrix
from retok_dask.errors import OutputError
from retok_dask.types import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from retok_dask.datasets.folder import OutputFolder

COUNTS = ("num_tokens", "num_loss_tokens")
"""Columns that every row filter looks at."""

CACHED_GROUPS = 4
"""Row groups kept in memory; each is 16 MiB or one row."""


class RowGroups:
    """Rows by number over many files.

    Args:
        folder: the run's folder.
        paths: files below it, in order.
        schema: the wanted columns.
        keep: one bool a row from a table of the counts, for a filtered view.
    """

    def __init__(
        self,
        folder: OutputFolder,
        paths: Sequence[str],
        schema: pa.Schema,
        keep: Callable[[pa.Table], np.ndarray[Any, Any]],
    ) -> None:
        self._folder = folder
        self._paths = list(paths)
        self._schema = schema
        kept = folder.parallel(lambda path: self._kept_in_file(path, keep), self._paths)
        self._groups = [(file, group) for file, groups in enumerate(kept) for group in range(len(groups))]
        self._kept = [rows for groups in kept for rows in groups]
        self._ends = np.cumsum([len(rows) for rows in self._kept], dtype=np.int64)
        self._read = lru_cache(CACHED_GROUPS)(self._read_group)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows_by_file(self) -> list[int]:
        """Kept rows of each file."""
        counts = [0] * len(self._paths)
        for (file, _), kept in zip(self._groups, self._kept, strict=True):
            counts[file] += len(kept)
        return counts

    def row(self, index: int) -> dict[str, Any]:
        """One row; negative numbers count from the end.

        Raises:
            IndexError: there is no such row.
        """
        return self.take([index])[0]

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows in the order asked for, each row group read once."""
        wanted = np.asarray([self._absolute(index) for index in indices], np.int64)
        groups = np.searchsorted(self._ends, wanted, side="right")
        found: list[dict[str, Any]] = [{}] * len(wanted)
        for place in np.argsort(wanted, kind="stable").tolist():
            group = int(groups[place])
            start = int(self._ends[group]) - len(self._kept[group])
            position = int(self._kept[group][int(wanted[place]) - start])
            found[place] = next(rows_of(self._read(group).slice(position, 1)))
        return found

    def _absolute(self, index: int) -> int:
        total = self.rows
        if not -total <= index < total:
            msg = f"row {index} of {total}"
            raise IndexError(msg)
        return index % total

    def _kept_in_file(self, path: str, keep: Callable[[pa.Table], np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Positions of the kept rows in each row group of a file."""
        with self._folder.open_input(path) as source:
            file = pq.ParquetFile(source)
            tables = (file.read_row_group(g, columns=list(COUNTS)) for g in range(file.num_row_groups))
            return [np.flatnonzero(keep(table)) for table in tables]

    def _read_group(self, group: int) -> pa.RecordBatch:
        file, number = self._groups[group]
        with self._folder.open_input(self._paths[file]) as source:
            table = pq.ParquetFile(source).read_row_group(number, columns=self._schema.names)
        batches = table.select(self._schema.names).cast(self._schema).combine_chunks().to_batches()
        if len(batches) != 1:
            msg = f"{self._paths[file]}: row group {number} is larger than one Arrow batch; it was not written by retok"
            raise OutputError(msg)
        return batches[0]


def read_batches(
    folder: OutputFolder, path: str, schema: pa.Schema, keep: Callable[[pa.Table], np.ndarray[Any, Any]] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of one file, a row group at a time.

    Args:
        folder: the run's folder.
        path: the file below it.
        schema: the wanted columns.
        keep: one bool a row from a table of the counts; None for all rows.
    """
    names = list(dict.fromkeys((*schema.names, *(COUNTS if keep is not None else ()))))
    with folder.open_input(path) as source:
        file = pq.ParquetFile(source)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=names)
            if keep is not None:
                table = table.filter(pa.array(keep(table)))
            yield from table.select(schema.names).cast(schema).combine_chunks().to_batches()


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows of a batch as dicts.

    Lists become numpy arrays (a view of the batch, not a copy, where Arrow
    allows it), segments lists of (start, end, kind name, message) tuples.
    """
    readers = [(name, _reader(batch.column(i))) for i, name in enumerate(batch.schema.names)]
    for row in range(batch.num_rows):
        yield {name: read(row) for name, read in readers}


def _reader(column: pa.Array) -> Callable[[int], Any]:
    """A function that gives a column's value at a row."""
    if not pa.types.is_list(column.type):
        values = column.to_pylist()
        return lambda row: values[row]
    if pa.types.is_struct(column.type.value_type):
        matrix, cuts = segment_matrix(column)
        runs = [(start, end, KIND_NAMES[kind], message) for start, end, kind, message in matrix.tolist()]
        return lambda row: runs[cuts[row] : cuts[row + 1]]
    flat, splits = list_values(column)
    return lambda row: flat[splits[row] : splits[row + 1]]
