"""Span lengths in bytes, as a byte-level tokenizer will see them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.tokenizers.align import Spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from retok_dask.types import Rendered


@dataclass(slots=True)
class Measured:
    """Where the spans of a batch end, row after row.

    Attributes:
        bounds: for each row its span starts and then its end, in bytes.
        counts: spans of each row (its entries in `bounds`, less one).
        failed: rows whose text is not text (lone surrogates), with the reason.
        normalized: for rows that are not in NFC, the bytes that their spans become.
    """

    bounds: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    normalized: dict[int, bytes] = field(default_factory=dict)

    def row_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each row."""
        ends = np.cumsum(np.array(self.counts, np.int64) + 1) - 1
        return np.array(self.bounds, np.int64)[ends]


def measure(rows: Sequence[Rendered], normalize: Callable[[str], str] | None) -> Measured:
    """Measure every span of every row.

    Args:
        rows: the batch.
        normalize: brings one text into NFC, None for tokenizers that do not.
            Each span is normalized by itself; whether that is what the
            tokenizer made of the row is checked on its ids.
    """
    found = Measured()
    for number, row in enumerate(rows):
        text = row.text
        if text.isascii():
            found.bounds += row.starts
            found.bounds.append(len(text))
            found.counts.append(len(row.starts))
            continue
        try:
            bounds = _byte_bounds(number, row, normalize, found)
        except UnicodeEncodeError as error:
            found.failed[number] = f"lone surrogate {text[error.start]!a} at character {error.start}"
            bounds = [0] * (len(row.starts) + 1)
        found.bounds += bounds
        found.counts.append(len(row.starts))
    return found


def _byte_bounds(number: int, row: Rendered, normalize: Callable[[str], str] | None, found: Measured) -> list[int]:
    text, starts = row.text, row.starts
    parts = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    if normalize is not None and not _is_normalized(text, parts):
        encoded = [normalize(part).encode() for part in parts]
        found.normalized[number] = b"".join(encoded)
        lengths = [len(part) for part in encoded]
    else:
        lengths = [len(part) if part.isascii() else len(part.encode()) for part in parts]
    return [0, *accumulate(lengths)]


COMBINES = "\u0300"
"""The first character that can change with what stands before it."""


def _is_normalized(text: str, parts: list[str]) -> bool:
    """Whether a text is in NFC; most of its parts need no look, if no boundary can compose."""
    if any(part[:1] >= COMBINES for part in parts):
        return unicodedata.is_normalized("NFC", text)
    return all(part.isascii() or unicodedata.is_normalized("NFC", part) for part in parts)


def spans_of(rows: Sequence[Rendered], measured: Measured) -> Spans:
    """The batch's non-empty spans, flat."""
    counts = np.array(measured.counts, np.int64)
    bounds = np.array(measured.bounds, np.int64)
    lengths = bounds[1:] - bounds[:-1]
    inside = np.ones(lengths.size, bool)
    inside[np.cumsum(counts + 1)[:-1] - 1] = False  # the step from one row's end to the next row's start
    lengths = lengths[inside]
    kinds: list[int] = []
    messages: list[int] = []
    for row in rows:
        kinds += row.kinds
        messages += row.messages
    keep = lengths > 0
    return Spans(
        row=np.repeat(np.arange(len(rows)), counts)[keep],
        length=lengths[keep],
        kind=np.array(kinds, np.int8)[keep],
        message=np.array(messages, np.int32)[keep],
    )
