"""Records between reading and writing: where they come from, and what became of them so far."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.kernel.stats import UnitStats
from retok_dask.types import (
    Filtered,
    Record,
    RecordFiltered,
    RecordRejected,
    Reject,
    RejectReason,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from retok_dask.kernel.items import Row
    from retok_dask.kernel.rows import Pieces
    from retok_dask.types import Item

Mark = tuple[str, int, int]
"""Where an item lies: file, byte offset (or row where there is none), number within its record."""

MEMORY = "memory"
"""What stands for the file of items that come from none."""


@dataclass(slots=True)
class InMemory(Record):
    """Stands for a record where there is an item already."""

    item: Item | None = None


@dataclass(slots=True)
class Origin:
    """A record on its way, and its one fate.

    A context: whatever is raised inside costs this record and nothing else,
    but for a lack of memory, which is the process's.
    """

    record: Record
    written: int = 0
    left_out: Reject | Filtered | None = None

    @classmethod
    def of(cls, record: Record) -> Self:
        """The origin of a record; what was parsed is let go where its bytes are there."""
        if record.raw is not None and record.value is not None:
            record = Record(record.file, record.row, record.offset, record.raw, None, record.counts)
        return cls(record)

    def mark(self, item: int) -> Mark:
        """Where an item of the record lies."""
        record = self.record
        return record.file, record.offset if record.offset >= 0 else record.row, item

    def leave_out(self, why: RecordRejected | RecordFiltered) -> None:
        """Note why the record, or a row of it, is not written; the first reason stays."""
        if self.left_out is not None:
            return
        record = self.record
        if isinstance(why, RecordFiltered):
            self.left_out = Filtered(record.file, record.row, record.offset, why.reason, why.detail)
        else:
            self.left_out = Reject(record.file, record.row, record.offset, why.reason, why.detail, _raw(record))

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if isinstance(error, (RecordRejected, RecordFiltered)):
            self.leave_out(error)
            return True
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            return False
        self.leave_out(_unexpected(error))
        return True


@dataclass(slots=True)
class Pending:
    """Rows that wait for one encode, and what was left out before it."""

    duplicates: Collection[Mark] = ()
    rows: list[Row] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    left_out: list[Reject | Filtered] = field(default_factory=list)
    stats: UnitStats = field(default_factory=UnitStats)
    size: int = 0

    def origin(self, row: int) -> Origin:
        """The record that a row comes from."""
        return self.origins[self.owners[row]]

    def rows_of(self, pieces: Pieces) -> list[Row]:
        """The row of each piece."""
        return [self.rows[row] for row in pieces.row.tolist()]

    def account(self) -> None:
        """Decide each record's one fate: written, rejected or filtered."""
        for origin in self.origins:
            if origin.written:
                self.stats.records_out += 1
            else:
                assert origin.left_out is not None, origin.record
                self.left_out.append(origin.left_out)
        for item in self.left_out:
            counter = self.stats.rejected if isinstance(item, Reject) else self.stats.filtered
            counter[str(item.reason)] += 1


def _unexpected(error: Exception) -> RecordRejected:
    """A fault nobody foresaw, with the line that raised it, so that it can be mended."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return RecordRejected(RejectReason.unexpected_error, f"{type(error).__name__} at {where}: {error}")


def _raw(record: Record) -> bytes | None:
    """The record's bytes; those of one that came from a format without lines, as JSON."""
    if record.raw is not None:
        return record.raw
    value: Any = record.item if isinstance(record, InMemory) else record.value
    if value is None:
        return None
    try:
        return orjson.dumps(value, default=str)
    except TypeError:
        return repr(value).encode("utf-8", "replace")
