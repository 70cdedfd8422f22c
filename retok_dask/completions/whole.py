"""Files that are one record each: plain text and single JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retok_dask.completions.blocks import part_blocks
from retok_dask.completions.lines import BOM, too_large, without_mark
from retok_dask.completions.parsing import parse_record
from retok_dask.types import Record, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.completions.options import ReadOptions
    from retok_dask.completions.units import Part


def read_whole(part: Part, options: ReadOptions) -> tuple[bytes, int]:
    """All bytes of a file without its byte order mark, and its length in bytes.

    Of a file longer than the record limit only the head comes back, so that
    memory stays bounded.

    Raises:
        RecordRejected: the file is cut, broken, or text in UTF-16.
    """
    blocks, skipped = without_mark(part_blocks(part, options.source))
    held: list[bytes] = []
    length = 0
    for block in blocks:
        length += len(block)
        if length <= options.limit:
            held.append(block)
        elif len(held) != 1 or len(held[0]) > len(BOM):
            held = [b"".join(held)[: 64 * 1024] or block[: 64 * 1024]]
    return b"".join(held), length + skipped


def read_object(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """The one JSON object of a file."""
    raw, length = read_whole(part, options)
    if length > options.limit:
        yield too_large(part.url, 0, 0, length, options.limit, raw)
        return
    record = parse_record(part.url, 0, 0, raw, options.mend)
    if record is not None:
        yield record


def read_text(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """The text of a file as one record with the field ``text``; nothing in it is changed."""
    raw, length = read_whole(part, options)
    if length > options.limit:
        yield too_large(part.url, 0, 0, length, options.limit, raw)
        return
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"{error.reason} at byte {error.start} of the file"
        yield Reject(part.url, 0, 0, RejectReason.bad_utf8, detail, raw[: 64 * 1024])
        return
    yield Record(part.url, 0, 0, raw, {"text": text}, exact=True)
