"""Records between reading and writing: where they come from, and what became of them so far."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.kernel.stats import UnitStats
from retok_dask.schema import SOURCE_TOKENS_COLUMN
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

    from retok_dask.kernel.items import Row
    from retok_dask.kernel.rows import Pieces
    from retok_dask.types import Item

Mark = tuple[str, int, int]
"""Where an item lies: file, byte offset (or row where there is none), number within its record."""

ROW_LEFT_OUT = "row_left_out_"
"""Begins the name of a count: rows that are not written, of records of which another is."""

MEMORY = "memory"
"""What stands for the file of items that come from none."""


@dataclass(slots=True)
class InMemory(Record):
    """Stands for a record where there is an item already."""

    item: Item | None = None


@dataclass(slots=True)
class Origin:
    """A record on its way, and its one fate.

    Attributes:
        file, row, offset, raw: as the record has them.
        value: what a record without bytes holds; otherwise it is let go.
        written: rows of it that are written.
        left_out: why it, or a row of it, is not.
        lost: why its rows are not, one reason for each.
    """

    file: str
    row: int
    offset: int
    raw: bytes | None
    value: Any
    written: int = 0
    left_out: Reject | Filtered | None = None
    lost: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, record: Record) -> Self:
        """The origin of a record."""
        raw, value = record.raw, None
        if raw is None:
            value = record.item if isinstance(record, InMemory) else record.value
        return cls(record.file, record.row, record.offset, raw, value)

    def mark(self, item: int) -> Mark:
        """Where an item of the record lies."""
        return self.file, self.offset if self.offset >= 0 else self.row, item

    def fail(self, error: Exception) -> None:
        """Note what was raised on the way: it costs this record and nothing else.

        Raises:
            MemoryError: that is the process's lack, not the record's fault.
        """
        if isinstance(error, MemoryError):
            raise error
        self.leave_out(error if isinstance(error, (RecordRejected, RecordFiltered)) else _unexpected(error))

    def leave_out(self, why: RecordRejected | RecordFiltered) -> None:
        """Note why the record, or a row of it, is not written; the record keeps the first reason."""
        self.lost.append(str(why.reason))
        if self.left_out is not None:
            return
        if isinstance(why, RecordFiltered):
            self.left_out = Filtered(self.file, self.row, self.offset, why.reason, why.detail)
        else:
            self.left_out = Reject(self.file, self.row, self.offset, why.reason, why.detail, self._bytes())

    def _bytes(self) -> bytes | None:
        """The record's bytes; those of one that came from a format without lines, as JSON."""
        if self.raw is not None or self.value is None:
            return self.raw
        try:
            return orjson.dumps(self.value, default=str)
        except TypeError:
            return repr(self.value).encode("utf-8", "replace")


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

    def old_tokens(self, pieces: Pieces) -> int:
        """Tokens of the old rows that the pieces were made of, each once; for data that were ids already."""
        rows = [(self.owners[number], self.rows[number]) for number in pieces.row.tolist()]
        old = {(owner, row.item): row.kept.get(SOURCE_TOKENS_COLUMN) for owner, row in rows}
        return sum(int(length) for length in old.values() if length is not None)

    def account(self) -> None:
        """Decide each record's one fate: written, rejected or filtered."""
        for origin in self.origins:
            if origin.written:
                self.stats.records_out += 1
                for reason in origin.lost:
                    self.stats.counts[ROW_LEFT_OUT + reason] += 1
            else:
                assert origin.left_out is not None, origin
                self.left_out.append(origin.left_out)
        for item in self.left_out:
            counter = self.stats.rejected if isinstance(item, Reject) else self.stats.filtered
            counter[str(item.reason)] += 1


def _unexpected(error: Exception) -> RecordRejected:
    """A fault nobody foresaw, with the line that raised it, so that it can be mended."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return RecordRejected(RejectReason.unexpected_error, f"{type(error).__name__} at {where}: {error}")
