"""Single rows out of Parquet files: an index over row groups, and a small cache of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.digest import list_values, segment_matrix
from retok_dask.errors import OutputError, count_of
from retok_dask.types import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retok_dask.datasets.folder import OutputFolder

COUNTS = ("num_tokens", "num_loss_tokens")
"""Columns that every row filter looks at."""

CACHED_FILES = 4096
"""Files whose row-group boundaries are remembered."""

CACHED_GROUPS = 4
"""Row groups kept in memory, and read at once; each is 16 MiB or one row."""


Keep = Callable[[pa.Table], np.ndarray[Any, Any]]
"""One bool a row, from a table of the counts."""


class RowGroups:
    """Rows by number over many files; a file is opened when one of its rows is asked for.

    Args:
        folder: the run's folder.
        paths: files below it, in order.
        rows: rows of each file.
        schema: the wanted columns.
        keep: which rows to keep; None for all. With it, the counts of all
            files are read at once.
    """

    def __init__(
        self, folder: OutputFolder, paths: Sequence[str], rows: Sequence[int], schema: pa.Schema, keep: Keep | None
    ) -> None:
        self._folder = folder
        self._paths = list(paths)
        self._schema = schema
        self._kept: list[list[np.ndarray[Any, Any]]] | None = None
        self._file_rows = list(rows)
        if keep is not None:
            self._kept = folder.parallel(lambda path: self._kept_in_file(path, keep), self._paths)
            self._file_rows = [sum(len(group) for group in groups) for groups in self._kept]
        self._ends = np.cumsum(self._file_rows, dtype=np.int64)
        self._groups = lru_cache(CACHED_FILES)(self._groups_of_file)
        self._read = lru_cache(CACHED_GROUPS)(self._read_group)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows_by_file(self) -> list[int]:
        """Kept rows of each file."""
        return list(self._file_rows)

    def row(self, index: int) -> dict[str, Any]:
        """One row; negative numbers count from the end.

        Raises:
            IndexError: there is no such row.
        """
        return self.take([index])[0]

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows in the order asked for, each row group read once."""
        wanted = [self._absolute(index) for index in indices]
        found: list[dict[str, Any]] = [{}] * len(wanted)
        by_file: dict[int, list[int]] = defaultdict(list)
        for place, file in enumerate(np.searchsorted(self._ends, wanted, side="right").tolist()):
            by_file[file].append(place)

        def fill(places: list[int]) -> None:
            groups: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
            for place in places:
                file, group, position = self._locate(wanted[place])
                groups[file, group].append((place, position))
            for at, members in groups.items():
                positions = self._positions(*at)[[position for _, position in members]]
                batch = self._read(*at)
                # a copy of many rows lets go of their row group; one row is a view of it
                rows = batch.take(pa.array(positions)) if len(members) > 1 else batch.slice(int(positions[0]), 1)
                for (place, _), row in zip(members, rows_of(rows), strict=True):
                    found[place] = row

        self._folder.parallel(fill, [*by_file.values()], threads=CACHED_GROUPS)
        return found

    def iterate(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        """Rows ``first`` to ``last`` in order, a row group at a time."""
        while first < last:
            file, group, position = self._locate(first)
            kept = self._positions(file, group)[position : position + last - first]
            batch = self._read(file, group)
            yield from rows_of(
                batch.slice(int(kept[0]), len(kept)) if self._kept is None else batch.take(pa.array(kept))
            )
            first += len(kept)

    def _absolute(self, index: int) -> int:
        total = self.rows
        if not -total <= index < total:
            msg = f"row {index} of {total}"
            raise IndexError(msg)
        return int(index) % total

    def _locate(self, index: int) -> tuple[int, int, int]:
        """File, row group, and number among the kept rows of that group."""
        file = int(np.searchsorted(self._ends, index, side="right"))
        inside = index - (int(self._ends[file]) - self._file_rows[file])
        ends = self._groups(file)
        group = int(np.searchsorted(ends, inside, side="right"))
        return file, group, inside - (int(ends[group - 1]) if group else 0)

    def _positions(self, file: int, group: int) -> np.ndarray[Any, Any]:
        """Positions of the kept rows within a row group."""
        if self._kept is not None:
            return self._kept[file][group]
        ends = self._groups(file)
        return np.arange(int(ends[group]) - (int(ends[group - 1]) if group else 0))

    def _groups_of_file(self, file: int) -> np.ndarray[Any, Any]:
        """Kept rows up to the end of each row group of a file."""
        if self._kept is not None:
            return np.cumsum([len(rows) for rows in self._kept[file]])
        with self._folder.open_input(self._paths[file]) as source:
            footer = pq.ParquetFile(source).metadata
        ends = np.cumsum([footer.row_group(group).num_rows for group in range(footer.num_row_groups)])
        if footer.num_rows != self._file_rows[file]:
            msg = f"{self._paths[file]} has {count_of(footer.num_rows, 'row')}, the manifest says {self._file_rows[file]:,}"
            raise OutputError(msg)
        return ends

    def _kept_in_file(self, path: str, keep: Keep) -> list[np.ndarray[Any, Any]]:
        """Positions of the kept rows in each row group of a file."""
        with self._folder.open_input(path) as source:
            file = pq.ParquetFile(source)
            tables = (file.read_row_group(g, columns=list(COUNTS)) for g in range(file.num_row_groups))
            return [np.flatnonzero(keep(table)) for table in tables]

    def _read_group(self, file: int, group: int) -> pa.RecordBatch:
        with self._folder.open_input(self._paths[file]) as source:
            table = pq.ParquetFile(source).read_row_group(group, columns=self._schema.names)
        batches = table.select(self._schema.names).cast(self._schema).combine_chunks().to_batches()
        if len(batches) != 1:
            msg = f"{self._paths[file]}: row group {group} is larger than one Arrow batch; it was not written by retok"
            raise OutputError(msg)
        return batches[0]


def read_batches(
    folder: OutputFolder, path: str, schema: pa.Schema, keep: Keep | None = None
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
