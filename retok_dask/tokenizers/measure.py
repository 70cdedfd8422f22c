"""Span lengths in bytes, as a byte-level tokenizer will see them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from retok_dask.tokenizers.align import Spans
from retok_dask.tokenizers.nfc import IF_IN_ORDER, STAYS, nfc_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from retok_dask.types import Rendered

    Int64 = npt.NDArray[np.int64]
    Unsigned = npt.NDArray[np.unsignedinteger[Any]]

FEW = 3
"""Spans of a row, such as a document's, that are measured one by one."""

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
        bounds: list[int] = []
        for number in self.later:
            row = rows[number]
            text, half = row.text, len(row.text) // 2
            total = len(text.encode())
            for start in row.starts:
                near = text[:start] if start < half else text[start:]
                bounds.append(len(near.encode()) if start < half else total - len(near.encode()))
            bounds.append(total)
            self.text_bytes[number] = total
        chosen = np.zeros(len(rows), np.bool_)
        chosen[self.later] = True
        self.bounds[np.repeat(chosen, self.counts + 1)] = bounds

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
    leave_few: bool = False,
    but_not: Collection[int] = (),
) -> Measured:
    """Measure every span of every row.

    Args:
        rows: the batch.
        normalize: brings one text into NFC, None for tokenizers that do not.
            Each span is normalized by itself; whether that is what the
            tokenizer made of the row is checked on its ids.
        leave_few: leave rows of few spans for later, when an engine has seen them; nothing is known of them till then.
        but_not: rows that no engine will see.
    """
    characters: list[int] = []
    for row in rows:
        characters += row.starts
        characters.append(len(row.text))
    counts = np.array([len(row.starts) for row in rows], np.int64)
    found = Measured(np.array(characters, np.int64), counts)
    wide = [number for number, row in enumerate(rows) if not row.text.isascii()]
    if leave_few:
        found.later = [number for number in wide if _is_simple(rows[number]) and number not in but_not]
        wide = sorted({*wide}.difference(found.later))
    long = [number for number in wide if len(rows[number].text) > STRETCH]
    worst: dict[int, int] = {}
    for units in _code_units(rows, [number for number in wide if number not in long], found.failed):
        worst |= _to_bytes(found, units)
    for number in long:
        worst[number] = _long_to_bytes(found, number, rows[number])
    for number in found.failed:
        found.bounds[found.part(number)] = 0
    found.text_bytes = found.row_bytes()
    for number in found.failed:
        found.text_bytes[number] = len(rows[number].text.encode("utf-8", "replace"))
    for number, marks in worst.items():
        if normalize is not None and number not in found.failed:
            found.settle(number, rows[number], marks, normalize)
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


def _is_simple(row: Rendered) -> bool:
    return len(row.starts) <= FEW and len(row.text) <= STRETCH and not row.escapes


@dataclass(slots=True)
class _Units:
    """The characters of several rows as numbers, one after the other."""

    rows: list[int]
    splits: Int64
    values: Unsigned


def _code_units(rows: Sequence[Rendered], wanted: Iterable[int], failed: dict[int, str]) -> Iterator[_Units]:
    """The rows with 16 bits a character where that is enough, with 32 where a row has an emoji or its like.

    Some at a time, so that all that is computed of them stays in the processor's cache.
    """
    waiting: dict[type[np.unsignedinteger[Any]], dict[int, bytes]] = {np.uint16: {}, np.uint32: {}}
    sizes = dict.fromkeys(waiting, 0)
    for number in wanted:
        text = rows[number].text
        try:
            data = text.encode("utf-16-le")
        except UnicodeEncodeError:
            failed[number] = lone_surrogate(text)
            continue
        narrow = len(data) == 2 * len(text)
        dtype = np.uint16 if narrow else np.uint32
        waiting[dtype][number] = data if narrow else text.encode("utf-32-le")
        sizes[dtype] += len(text)
        if sizes[dtype] >= STRETCH:
            yield _joined(rows, waiting[dtype], dtype)
            waiting[dtype], sizes[dtype] = {}, 0
    for dtype, parts in waiting.items():
        if parts:
            yield _joined(rows, parts, dtype)


def _joined(rows: Sequence[Rendered], parts: dict[int, bytes], dtype: type[np.unsignedinteger[Any]]) -> _Units:
    splits = np.array([0, *accumulate(len(rows[number].text) for number in parts)], np.int64)
    return _Units([*parts], splits, np.frombuffer(b"".join(parts.values()), dtype))


def _to_bytes(found: Measured, units: _Units) -> dict[int, int]:
    """Turn the bounds of some rows from characters into bytes; gives the rows with marks, and of what class."""
    group = np.full(found.counts.size, -1, np.int64)
    group[units.rows] = np.arange(len(units.rows))
    owner = np.repeat(group, found.counts + 1)
    mine = np.flatnonzero(owner >= 0)
    owner = owner[mine]
    wide = _Wide.of(units.values)
    at = found.bounds[mine] + units.splits[owner]
    found.bounds[mine] += wide.extra_before(at) - wide.extra_before(units.splits)[owner]
    classes = nfc_classes().take(wide.points, mode="clip")
    if not classes.any():
        return {}
    marked = np.flatnonzero(classes)
    worst = np.zeros(len(units.rows), np.uint8)
    places = marked if wide.places is None else wide.places[marked]
    np.maximum.at(worst, np.searchsorted(units.splits, places, side="right") - 1, classes[marked])
    return {units.rows[number]: int(worst[number]) for number in np.flatnonzero(worst).tolist()}


@dataclass(slots=True)
class _Wide:
    """Characters of more than one byte.

    Attributes:
        places: where they stand; None where so many are wide that all characters are taken.
        points: what they are.
        extra: 0, and how many bytes more than characters there are up to each of them.
    """

    places: Int64 | None
    points: Unsigned
    extra: Int64

    @classmethod
    def of(cls, values: Unsigned) -> Self:
        is_wide = values >= 0x80
        many = 2 * np.count_nonzero(is_wide) > values.size
        places = None if many else np.flatnonzero(is_wide)
        points = values if places is None else values.take(places)
        more = (points >= 0x800).view(np.int8) + (is_wide.view(np.int8) if places is None else np.int8(1))
        if points.dtype == np.uint32:
            more += points >= 0x10000
        extra = np.zeros(points.size + 1, np.int64)
        np.cumsum(more, out=extra[1:])
        return cls(places, points, extra)

    def extra_before(self, characters: Int64) -> Int64:
        """Bytes more than characters before each of some characters."""
        return self.extra[characters if self.places is None else np.searchsorted(self.places, characters)]


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
