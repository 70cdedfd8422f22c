"""CSV and TSV: a header line, then records whose values are all text."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from retok_dask.completions.blocks import part_blocks
from retok_dask.completions.lines import without_mark
from retok_dask.errors import count_of
from retok_dask.types import Record, RecordRejected, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.completions.options import ReadOptions
    from retok_dask.completions.units import Part


class _BlockStream(io.RawIOBase):
    """Blocks of bytes as a readable stream."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._held = memoryview(block)
        count = min(len(buffer), len(self._held))
        buffer[:count] = self._held[:count]
        self._held = self._held[count:]
        return count


def read_csv(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """Records of a CSV file (a TSV file by its suffix), numbered without the header.

    Raises:
        RecordRejected: the header is unusable, or quoting is broken from here on.
    """
    blocks, _ = without_mark(part_blocks(part, options.source))
    stream = io.BufferedReader(_BlockStream(blocks), 1024 * 1024)
    # Bytes that are no UTF-8 become lone surrogates here, so that only their own row is rejected.
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
    csv.field_size_limit(min(options.limit, 2**31 - 1))
    delimiter = "\t" if ".tsv" in part.url.rpartition("/")[2].lower() else ","
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            return
        if len(set(header)) < len(header):
            raise RecordRejected(RejectReason.bad_file, f"the header names a column twice: {', '.join(header)[:200]}")
        number = 0
        for row in rows:
            if row:
                yield _record(part.url, number, header, row)
                number += 1
    except csv.Error as error:
        # After this the reader cannot know where the next row starts.
        reason = RejectReason.too_large if "field limit" in str(error) else RejectReason.bad_file
        raise RecordRejected(reason, f"from line {rows.line_num} on: {error}") from None


def _record(url: str, number: int, header: list[str], row: list[str]) -> Record | Reject:
    raw = "\t".join(row).encode("utf-8", "surrogateescape")
    if len(row) != len(header):
        detail = f"{count_of(len(row), 'field')}, but the header has {len(header):,}"
        return Reject(url, number, -1, RejectReason.bad_layout, detail, raw)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Reject(url, number, -1, RejectReason.bad_utf8, f"{error.reason} in a field", raw)
    return Record(url, number, -1, None, dict(zip(header, row, strict=True)))
