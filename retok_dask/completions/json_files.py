"""Files of JSON that lines do not tell: arrays, wrapped arrays, and objects one after the other.

They are scanned for the ends of their elements in large blocks, each element
is then parsed by itself. Memory is bounded by the largest record, whatever
the size of the array.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import orjson

from retok_dask.completions.blocks import part_blocks
from retok_dask.completions.lines import HEAD_KEPT, records_of, split_lines, too_large, without_mark
from retok_dask.completions.parsing import parse_record
from retok_dask.types import RecordRejected, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from retok_dask.completions.options import ReadOptions
    from retok_dask.completions.units import Part
    from retok_dask.types import Record

HEAD = 64 * 1024
"""Bytes that tell what a JSON file is."""

WHITE = b" \t\r\n"

_SCALAR = rb'(?:"(?:[^"\\]|\\.)*"|[-+0-9.eE]+|true|false|null)'
_WRAPPED = re.compile(
    rb'\s*\{\s*(?:"(?:[^"\\]|\\.)*"\s*:\s*' + _SCALAR + rb"\s*,\s*)*"
    rb'"(?:data|rows|records|examples|items|samples|instances)"\s*:\s*\[(?=\s*\{)'
)
_ARRAY = re.compile(rb"\s*\[")

Shape = Literal["array", "wrapped", "lines", "values"]


def shape_of(head: bytes) -> tuple[Shape, int]:
    """What a JSON file is, by its first bytes, and where its first element or line starts."""
    array = _ARRAY.match(head)
    if array:
        return "array", array.end()
    lines = [line for line in head.split(b"\n", 64) if line.strip(WHITE)]
    if len(lines) > 1 and _object_lines(lines[0], lines[1]):
        return "lines", 0
    wrapped = _WRAPPED.match(head)
    if wrapped:
        return "wrapped", wrapped.end()
    return ("values", 0) if head.lstrip(WHITE).startswith(b"{") else ("lines", 0)


def _object_lines(first: bytes, second: bytes) -> bool:
    try:
        return isinstance(orjson.loads(first), dict)
    except orjson.JSONDecodeError:
        # A broken first line among good ones; a printed object goes on with a key instead.
        return first.strip(WHITE).startswith(b"{") and second.lstrip(WHITE).startswith(b"{")


def read_json(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """Records of a JSON file: an array's elements, or objects one after the other.

    Raises:
        RecordRejected: the file is cut or cannot be followed from here on.
    """
    blocks, skipped = without_mark(part_blocks(part, options.source))
    head, blocks = _peek(blocks)
    shape, start = shape_of(head)
    if shape == "lines":
        lines = split_lines(blocks, skipped, None, options.limit)
        yield from records_of(lines, part.url, 0, options.limit, options.mend)
        return
    first = next(blocks, b"")
    scanner = ElementScanner(listed=shape != "values", limit=options.limit)
    found = scanner.elements(chain([first[start:]], blocks), skipped + start)
    for row, (offset, raw, length) in enumerate(found):
        if length > options.limit:
            yield too_large(part.url, row, offset, length, options.limit, raw)
        elif not raw:
            detail = "nothing between two commas"
            yield Reject(part.url, row, offset, RejectReason.bad_json, detail, raw)
        else:
            record = parse_record(part.url, row, offset, raw, options.mend)
            if record is not None:
                yield record
    _check_rest(scanner.rest, blocks, shape)


def _check_rest(rest: bytes, blocks: Iterator[bytes], shape: Shape) -> None:
    """Refuse text after an array, and a wrapping object that never ends."""
    last = rest.strip(WHITE)
    for block in blocks:
        last = (last + block).strip(WHITE)[-HEAD:]
    if shape == "array" and last:
        raise RecordRejected(RejectReason.bad_file, f"text follows the end of the array: {last[:60]!r}")
    if shape == "wrapped" and not last.endswith(b"}"):
        raise RecordRejected(RejectReason.cut_file, "the object around the array never ends; the file is cut")


def _peek(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough to tell the shape, and all blocks again."""
    head = b""
    for block in blocks:
        head += block
        if len(head.lstrip(WHITE)) >= HEAD:
            break
    return head[: len(head) - len(head.lstrip(WHITE)) + HEAD], chain([head], blocks)


class ElementScanner:
    """Finds where the elements of a JSON text end, block by block.

    Args:
        listed: the text is what follows ``[``; otherwise values one after the other.
        limit: an element that is longer is not kept in memory.

    Attributes:
        rest: what follows the list's end in the last block read.
    """

    def __init__(self, *, listed: bool, limit: int) -> None:
        self.rest = b""
        self._listed = listed
        self._limit = limit
        self._in_string = False
        self._odd_backslashes = False
        self._depth = 0
        self._held: list[bytes] = []
        self._length = 0
        self._skipped = 0

    def elements(self, blocks: Iterator[bytes], offset: int) -> Iterator[tuple[int, bytes, int]]:
        """Offset, bytes and length of each element, without the white space around it.

        Raises:
            RecordRejected: ``cut_file`` or ``bad_file``.
        """
        begin, count = offset, 0
        for block in blocks:
            last = 0
            for place, closes in self._ends(block):
                upto = place if self._listed else place + 1
                self._hold(block[last:upto])
                start, raw, length = self._take(begin)
                if length or (self._listed and (count or not closes)):
                    yield start, raw, length
                count += 1
                begin, last = offset + place + 1, place + 1
                if closes and self._listed:
                    self._finish(block[place:])
                    return
            self._hold(block[last:])
            offset += len(block)
        _, raw, length = self._take(begin)
        if self._listed or length:
            detail = f"the element that starts at byte {begin} never ends: {raw[:60]!r}"
            raise RecordRejected(RejectReason.cut_file, detail)

    def _hold(self, data: bytes) -> None:
        if not self._length:
            # White space in front of an element is no part of it, however long.
            stripped = data.lstrip(WHITE)
            self._skipped += len(data) - len(stripped)
            data = stripped
        self._length += len(data)
        if self._length <= self._limit + HEAD:
            self._held.append(data)
        else:
            self._held = [(b"".join(self._held) or data)[:HEAD_KEPT]]

    def _take(self, begin: int) -> tuple[int, bytes, int]:
        raw = b"".join(self._held)
        length = self._length
        if length == len(raw):
            raw = raw.rstrip(WHITE)
            length = len(raw)
        start = begin + self._skipped
        self._held, self._length, self._skipped = [], 0, 0
        return start, raw, length

    def _finish(self, rest: bytes) -> None:
        if not rest.startswith(b"]"):
            raise RecordRejected(RejectReason.bad_file, "brackets do not match: } closes what [ opened")
        self.rest = rest[1:]

    def _ends(self, block: bytes) -> list[tuple[int, bool]]:
        """Places in a block where elements end, and whether the list ends there."""
        data = np.frombuffer(block, np.uint8)
        quotes = self._quotes(data)
        folded = data | 0x20  # [ and { look alike now, as do ] and }
        places = np.flatnonzero((folded == ord("{")) | (folded == ord("}")) | (data == ord(",")))
        inside = (np.searchsorted(quotes, places) + self._in_string) & 1
        places = places[inside == 0]
        step = (folded[places] == ord("{")).astype(np.int64) - (folded[places] == ord("}"))
        depth = self._depth + np.cumsum(step)
        self._in_string = bool((len(quotes) + self._in_string) & 1)
        if len(depth):
            self._depth = int(depth[-1])
        return self._boundaries(data, places, step, depth)

    def _boundaries(
        self,
        data: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        step: npt.NDArray[np.int64],
        depth: npt.NDArray[np.int64],
    ) -> list[tuple[int, bool]]:
        if not self._listed:
            ends = places[(step < 0) & (depth == 0)]
            return [(place, False) for place in ends.tolist()]
        closing = np.flatnonzero(depth < 0)
        upto = int(closing[0]) if len(closing) else len(depth)
        commas = places[:upto][(depth[:upto] == 0) & (data[places[:upto]] == ord(","))]
        found = [(place, False) for place in commas.tolist()]
        return [*found, (int(places[upto]), True)] if len(closing) else found

    def _quotes(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Places of quotes that no backslash escapes."""
        quotes = np.flatnonzero(data == ord('"'))
        run = np.zeros(len(quotes), np.int64)
        active = np.arange(len(quotes))
        back = 1
        while len(active):
            before = quotes[active] - back
            at_start = before < 0
            run[active[at_start]] += self._odd_backslashes
            active = active[~at_start]
            active = active[data[before[~at_start]] == ord("\\")]
            run[active] += 1
            back += 1
        tail = len(data)
        while tail and data[tail - 1] == ord("\\"):
            tail -= 1
        odd = (len(data) - tail) & 1
        self._odd_backslashes = bool(odd ^ self._odd_backslashes) if tail == 0 else bool(odd)
        return np.asarray(quotes[run & 1 == 0])
