"""JSON lines: byte ranges of a file, each line read once, whatever the split.

A line ends at LF and nowhere else; a CR before it is dropped. U+2028, form
feeds and their kin are text. A byte order mark at the start of the file is
skipped. Empty lines are no records, but they count as lines.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from retok_dask.completions.blocks import part_blocks
from retok_dask.completions.parsing import parse_record
from retok_dask.completions.units import FIRST_UNIT
from retok_dask.errors import count_of
from retok_dask.types import RecordRejected, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from io import BufferedReader

    from retok_dask.completions.blocks import Source
    from retok_dask.completions.options import ReadOptions
    from retok_dask.completions.units import Part
    from retok_dask.types import Record

BOM = b"\xef\xbb\xbf"
HEAD_KEPT = 64 * 1024
"""Bytes kept of a record that is too large."""

_FIRST_STEP_PAST_END = 256 * 1024
_LARGEST_STEP = 8 * 1024 * 1024


def split_lines(blocks: Iterable[bytes], offset: int, end: int | None, limit: int) -> Iterator[tuple[int, bytes, int]]:
    """Lines of consecutive blocks, ended by LF alone.

    Args:
        blocks: bytes from ``offset`` on; only so many are asked for as needed.
        offset: where the first block, and a line, starts.
        end: lines that start here or later are not read; None for no end.
        limit: a line that is longer is not kept in memory.

    Yields:
        offset of the line, its bytes without LF, and its length in bytes; of a
        line longer than ``limit`` the bytes may be the head only.
    """
    tail: list[bytes] = []
    length = 0
    for block in blocks:
        lines = block.split(b"\n")
        length += len(lines[0])
        if length <= limit:
            tail.append(lines[0])
        else:
            tail = [(b"".join(tail) or lines[0])[:HEAD_KEPT]]
        if len(lines) == 1:
            continue
        first, tail = b"".join(tail), []  # a huge line is not held twice while it is parsed
        yield offset, first, length
        offset += length + 1
        last = lines.pop()
        for line in lines[1:]:
            if end is not None and offset >= end:
                return
            yield offset, line, len(line)
            offset += len(line) + 1
        if end is not None and offset >= end:
            return
        tail, length = [last], len(last)
    if length:
        yield offset, b"".join(tail), length


def read_lines(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """Records of a JSONL part: a whole file, compressed or not, or a byte range.

    Raises:
        RecordRejected: the file itself is unusable from here on.
    """
    first_row = _first_row(part, options.source)
    yield from records_of(_lines(part, options.limit, options.source), part.url, first_row, options.limit, options.mend)


def _first_row(part: Part, source: Source) -> int:
    """Number of the part's first line; -1 where it takes more than a look at a small first unit to know it."""
    if part.start == 0:
        return 0
    if part.start > FIRST_UNIT or part.end - part.start < FIRST_UNIT:
        return -1
    # the line that runs into the part, or ends right before it, is the last of those before
    return 1 + sum(block.count(b"\n") for block in source.blocks(part, 0, part.start - 1))


def read_stream(stream: BufferedReader, name: str, limit: int, mend: Collection[str] = ()) -> Iterator[Record | Reject]:
    """Records of JSON lines that come from a pipe.

    Args:
        stream: a binary stream, read until it ends.
        name: what stands for the file in records.
        limit: bytes of the largest record.
        mend: see ``DatasetSpec.mend``.
    """
    try:
        blocks, skipped = without_mark(iter(lambda: stream.read1(_LARGEST_STEP), b""))
        yield from records_of(split_lines(blocks, skipped, None, limit), name, 0, limit, mend)
    except RecordRejected as rejected:
        # what is wrong with the whole stream, such as UTF-16, costs the rest of it
        yield Reject(name, -1, -1, rejected.reason, rejected.detail)


def records_of(
    lines: Iterable[tuple[int, bytes, int]], file: str, first_row: int, limit: int, mend: Collection[str] = ()
) -> Iterator[Record | Reject]:
    """Parse lines as :func:`split_lines` gives them; empty ones are no records.

    Args:
        lines: offset, bytes and length of each line.
        file: the file that they come from.
        first_row: number of the first line, -1 if nobody knows it.
        limit: bytes of the largest record.
        mend: see ``DatasetSpec.mend``.
    """
    row, step = first_row, int(first_row >= 0)
    for offset, line, length in lines:
        raw = line[:-1] if line.endswith(b"\r") else line
        if length > limit:
            yield too_large(file, row, offset, length, limit, raw)
        else:
            record = parse_record(file, row, offset, raw, mend, blank=True)
            if record is not None:
                yield record
        row += step


def too_large(file: str, row: int, offset: int, length: int, limit: int, head: bytes | None) -> Reject:
    """The reject of a record that is not read because of its size."""
    detail = f"{count_of(length, 'byte')}, more than units.record_bytes = {limit:,}"
    return Reject(file, row, offset, RejectReason.too_large, detail, head and head[:HEAD_KEPT])


def _lines(part: Part, limit: int, source: Source) -> Iterator[tuple[int, bytes, int]]:
    if part.compression:
        blocks, skipped = without_mark(part_blocks(part, source))
        return split_lines(blocks, skipped, None, limit)
    if part.start == 0:
        blocks, skipped = without_mark(chain(source.blocks(part, 0, part.end), _past_end(part, source)))
        return split_lines(blocks, skipped, part.end, limit)
    return _lines_from_middle(part, limit, source)


def _lines_from_middle(part: Part, limit: int, source: Source) -> Iterator[tuple[int, bytes, int]]:
    """Lines that start in the part; the one that runs into it belongs to the part before."""
    if _utf16(source.range(part.url, 0, 4)):
        return  # the part that starts the file rejects it
    at = part.start - 1
    blocks = source.blocks(part, at, part.end)
    for block in blocks:
        cut = block.find(b"\n") + 1
        if cut:
            more = chain([block[cut:]], blocks, _past_end(part, source))
            if at + cut < part.end:
                yield from split_lines(more, at + cut, part.end, limit)
            return
        at += len(block)


def _past_end(part: Part, source: Source) -> Iterator[bytes]:
    """What follows the part, in growing blocks: the rest of its last line."""
    at, step = part.end, _FIRST_STEP_PAST_END
    while at < part.size:
        upto = min(at + step, part.size)
        yield from source.blocks(part, at, upto)
        at, step = upto, min(2 * step, _LARGEST_STEP)


def without_mark(blocks: Iterator[bytes]) -> tuple[Iterator[bytes], int]:
    """Blocks from the start of a file without a byte order mark, and the mark's length.

    Raises:
        RecordRejected: ``bad_file`` for text in UTF-16.
    """
    head = b""
    for block in blocks:
        head += block
        if len(head) >= 4:
            break
    kind = _utf16(head)
    if kind:
        raise RecordRejected(RejectReason.bad_file, f"the file is {kind} text; convert it to UTF-8")
    skipped = len(BOM) if head.startswith(BOM) else 0
    return chain([head[skipped:]], blocks), skipped


def _utf16(head: bytes) -> str:
    """Which encoding other than UTF-8 the first four bytes tell of; empty for none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-16"
    if len(head) >= 4 and (head[1] == 0) != (head[0] == 0) and head[:2] != b"\0\0":
        return "UTF-16 without a mark" if head[:4].count(0) >= 2 else ""
    return ""
