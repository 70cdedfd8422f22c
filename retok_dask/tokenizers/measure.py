"""Span lengths in bytes, as a byte-level tokenizer will see them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.tokenizers.align import Spans
from retok_dask.tokenizers.nfc import IF_IN_ORDER, STAYS, nfc_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy.typing as npt

    from retok_dask.types import Rendered

    Int64 = npt.NDArray[np.int64]

_FIRST = -64
"""Bytes of UTF-8 that begin a character are from here on, as signed numbers; those below continue one."""

_WORD = 64
_ALL = np.uint64(2**64 - 1)

STRETCH = 1 << 18
"""Characters that are looked at in one go: of a long text, or of several rows."""


@dataclass(slots=True)
class Measured:
    """Where the spans of a batch end, row after row.

    Attributes:
        bounds: for each row its span starts and then its end, in bytes.
        counts: spans of each row (its entries in `bounds`, less one).
        failed: rows whose text is not text (lone surrogates), with the reason.
        normalized: for rows that are not in NFC, the bytes that their spans become.
        text_bytes: UTF-8 bytes of each text as it was given.
        later: rows for :meth:`measure_later`; their bounds are characters until then.
    """

    bounds: Int64
    counts: Int64
    failed: dict[int, str] = field(default_factory=dict)
    normalized: dict[int, bytes] = field(default_factory=dict)
    text_bytes: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    later: list[int] = field(default_factory=list)

    def part(self, row: int) -> slice:
        """Where the row's entries lie in `bounds`."""
        end = int(self.counts[: row + 1].sum()) + row + 1
        return slice(end - int(self.counts[row]) - 1, end)

    def row_bytes(self) -> Int64:
        """Bytes of each row."""
        return self.bounds[np.cumsum(self.counts + 1) - 1]

    def measure_later(self, rows: Sequence[Rendered]) -> None:
        """Measure the rows that were left, once an engine has seen their texts: Python keeps the bytes that it made."""
        _to_bytes(self, rows, self.later)
        self.text_bytes[self.later] = self.row_bytes()[self.later]

    def drop(self, number: int, row: Rendered) -> None:
        """Forget a row that was left for later, whose text is no text."""
        self.later.remove(number)
        self.text_bytes[number] = len(row.text.encode("utf-8", "replace"))
        self.bounds[self.part(number)] = 0

    def settle(self, number: int, row: Rendered, marks: int, normalize: Callable[[str], str]) -> None:
        """Look at a row with marks of a class; one that is not in NFC gets the bounds of what its spans become."""
        if marks != STAYS and not _is_normalized(row, marks, normalize):
            _normalize(self, number, row, normalize)


def measure(
    rows: Sequence[Rendered],
    normalize: Callable[[str], str] | None,
    *,
    leave: bool = False,
    but_not: Collection[int] = (),
) -> Measured:
    """Measure every span of every row.

    Args:
        rows: the batch.
        normalize: brings one text into NFC, None for tokenizers that do not.
            Each span is normalized by itself; whether that is what the
            tokenizer made of the row is checked on its ids.
        leave: leave ordinary rows for later, when an engine has seen them; nothing is known of them till then.
        but_not: rows that no engine will see.
    """
    characters: list[int] = []
    for row in rows:
        characters += row.starts
        characters.append(len(row.text))
    counts = np.array([len(row.starts) for row in rows], np.int64)
    found = Measured(np.array(characters, np.int64), counts)
    wide = [number for number, row in enumerate(rows) if not row.text.isascii()]
    if leave:
        found.later = [number for number in wide if _is_ordinary(rows[number]) and number not in but_not]
    now = sorted({*wide}.difference(found.later))
    short = [number for number in now if len(rows[number].text) <= STRETCH]
    found.failed = {number: problem for number in short if (problem := lone_surrogate(rows[number].text))}
    short = [number for number in short if number not in found.failed]
    _to_bytes(found, rows, short)
    worst = {number: _long_to_bytes(found, number, rows[number]) for number in {*now}.difference(short, found.failed)}
    for number in found.failed:
        found.bounds[found.part(number)] = 0
    found.text_bytes = found.row_bytes()
    for number in found.failed:
        found.text_bytes[number] = len(rows[number].text.encode("utf-8", "replace"))
    if normalize is not None:
        worst |= {number: worst_mark(rows[number].text) for number in short}
        for number in worst.keys() - found.failed.keys():
            found.settle(number, rows[number], worst[number], normalize)
    return found


def lone_surrogate(text: str) -> str:
    """Where a text is no text, empty if it is."""
    try:
        text.encode("utf-16-le")
    except UnicodeEncodeError as error:
        return f"lone surrogate {text[error.start]!a} at character {error.start}"
    return ""


def worst_mark(text: str) -> int:
    """The class in NFC of the worst character of a text."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return int(nfc_classes().take(points, mode="clip").max())


def _is_ordinary(row: Rendered) -> bool:
    return len(row.text) <= STRETCH and not row.escapes


def _to_bytes(found: Measured, rows: Sequence[Rendered], numbers: Sequence[int]) -> None:
    """Turn the bounds of some rows from characters into bytes; the rows in ascending order."""
    if not numbers:
        return
    chosen = np.zeros(len(rows), np.bool_)
    chosen[numbers] = True
    mine = np.repeat(chosen, found.counts + 1)
    each = found.counts[chosen] + 1
    data = [rows[number].text.encode() for number in numbers]
    characters = np.array([0, *accumulate(len(rows[number].text) for number in numbers)][:-1], np.int64)
    size = np.array([0, *accumulate(map(len, data))][:-1], np.int64)
    places = byte_places(b"".join(data), found.bounds[mine] + np.repeat(characters, each))
    found.bounds[mine] = places - np.repeat(size, each)


def byte_places(text: bytes, characters: Int64) -> Int64:
    """At which byte of a text in UTF-8 each of some characters begins; its length for the one after the last.

    The bytes that begin a character are the ones of 64-bit words: those are counted, and of the word in
    which a character lies half after half is left, so that no number is made for each byte.
    """
    begins = np.packbits(np.frombuffer(text, np.int8) >= _FIRST, bitorder="little")
    words = np.full(len(text) // _WORD + 1, -1, np.int64).view(np.uint64)
    words.view(np.uint8)[: begins.size] = begins
    words[-1] |= _ALL << np.uint64(len(text) % _WORD)  # as if characters of one byte followed
    before = np.zeros(words.size + 1, np.int64)
    np.cumsum(np.bitwise_count(words), out=before[1:])
    inside = np.searchsorted(before, characters, side="right") - 1
    word, rank, place = words[inside], characters - before[inside], inside * _WORD
    for width in (32, 16, 8, 4, 2, 1):
        low = word & np.uint64((1 << width) - 1)
        count = np.bitwise_count(low)
        is_high = rank >= count
        word = np.where(is_high, word >> np.uint64(width), low)
        rank -= count * is_high
        place += width * is_high
    return place


def _long_to_bytes(found: Measured, number: int, row: Rendered) -> int:
    """The same for one row, a stretch at a time, so that its numbers need no memory; gives the class of its marks."""
    worst = STAYS
    lengths = []
    for start, end in pairwise([*row.starts, len(row.text)]):
        lengths.append(0)
        for at in range(start, end, STRETCH):
            piece = row.text[at : min(at + STRETCH, end)]
            try:
                lengths[-1] += len(piece.encode())
            except UnicodeEncodeError as error:
                found.failed[number] = f"lone surrogate {piece[error.start]!a} at character {at + error.start}"
                return STAYS
            if not piece.isascii():
                worst = max(worst, worst_mark(piece))
    found.bounds[found.part(number)] = [0, *accumulate(lengths)]
    return worst


def _is_normalized(row: Rendered, marks: int, normalize: Callable[[str], str]) -> bool:
    """Whether a text with marks is in NFC all the same."""
    if marks <= IF_IN_ORDER:
        return unicodedata.is_normalized("NFC", row.text)
    return normalize(row.text) == row.text


def _normalize(found: Measured, number: int, row: Rendered, normalize: Callable[[str], str]) -> None:
    parts = [row.text[start:end] for start, end in pairwise([*row.starts, len(row.text)])]
    encoded = [normalize(part).encode() for part in parts]
    found.normalized[number] = b"".join(encoded)
    found.bounds[found.part(number)] = [0, *accumulate(map(len, encoded))]


def spans_of(rows: Sequence[Rendered], measured: Measured) -> Spans:
    """The batch's non-empty spans, flat."""
    lengths = np.diff(measured.bounds)
    inside = np.ones(lengths.size, bool)
    inside[np.cumsum(measured.counts + 1)[:-1] - 1] = False  # the step from one row's end to the next row's start
    lengths = lengths[inside]
    kinds: list[int] = []
    messages: list[int] = []
    for row in rows:
        kinds += row.kinds
        messages += row.messages
    keep = lengths > 0
    return Spans(
        row=np.repeat(np.arange(len(rows)), measured.counts)[keep],
        length=lengths[keep],
        kind=np.array(kinds, np.int8)[keep],
        message=np.array(messages, np.int32)[keep],
    )
