"""Cutting rows of an encoded batch: truncation, chunking, leaving rows out.

The surviving tokens keep their segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from retok_dask.errors import count_of
from retok_dask.types import Encoded, FilterReason, RecordFiltered

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from retok_dask.kernel.items import Row
    from retok_dask.masks import LossMaskPolicy
    from retok_dask.recipe import FilterSpec, Recipe
    from retok_dask.types import Rendered

    Int64 = npt.NDArray[np.int64]

_Int = TypeVar("_Int", np.int8, np.int32)


@dataclass(slots=True)
class Pieces:
    """What is written of a batch: tokens ``start`` to ``end`` of its rows; ``cut`` where that is not all of the row."""

    row: Int64
    start: Int64
    end: Int64
    cut: npt.NDArray[np.bool_]

    @classmethod
    def whole(cls, lengths: Int64) -> Self:
        """All rows, from end to end."""
        rows = np.arange(lengths.size)
        return cls(rows, np.zeros_like(rows), lengths, np.zeros(rows.size, np.bool_))

    @classmethod
    def of(cls, places: Iterable[tuple[int, int, int]], lengths: Int64) -> Self:
        """From (row, start, end) of each."""
        row, start, end = np.array([*places], np.int64).reshape(-1, 3).T
        return cls(row, start, end, end - start < lengths[row])

    def __len__(self) -> int:
        return self.row.size

    @property
    def lengths(self) -> Int64:
        return self.end - self.start

    def take(self, which: Int64) -> Pieces:
        """Some of them."""
        return Pieces(self.row[which], self.start[which], self.end[which], self.cut[which])

    def are_all(self, lengths: Int64) -> bool:
        """Whether they are all rows of these lengths, uncut, in order."""
        return np.array_equal(self.row, np.arange(lengths.size)) and not self.cut.any()


def take_pieces(encoded: Encoded, pieces: Pieces) -> Encoded:
    """A batch made of pieces of another one's rows, in the order given; a piece has its tokens' share of the text."""
    ids, kinds, messages, starts, ends = [], [], [], [], []
    lengths = np.diff(encoded.row_splits)
    seg_counts = np.zeros(len(pieces), np.int64)
    places = zip(pieces.row.tolist(), pieces.start.tolist(), pieces.end.tolist(), strict=True)
    for number, (row, start, end) in enumerate(places):
        base = int(encoded.row_splits[row])
        ids.append(encoded.ids[base + start : base + end])
        part = slice(int(encoded.seg_splits[row]), int(encoded.seg_splits[row + 1]))
        seg_start, seg_end = encoded.seg_start[part], encoded.seg_end[part]
        inside = (seg_end > start) & (seg_start < end)
        starts.append(np.maximum(seg_start[inside], start) - start)
        ends.append(np.minimum(seg_end[inside], end) - start)
        kinds.append(encoded.seg_kind[part][inside])
        messages.append(encoded.seg_message[part][inside])
        seg_counts[number] = int(inside.sum())
    return Encoded(
        ids=_join(ids, np.int32),
        row_splits=_splits(pieces.lengths),
        seg_splits=_splits(seg_counts),
        seg_start=_join(starts, np.int32),
        seg_end=_join(ends, np.int32),
        seg_kind=_join(kinds, np.int8),
        seg_message=_join(messages, np.int32),
        shared=encoded.shared[pieces.row],
        fallback=encoded.fallback[pieces.row],
        text_bytes=encoded.text_bytes[pieces.row] * pieces.lengths // np.maximum(lengths[pieces.row], 1),
    )


def message_end(encoded: Encoded, row: int, limit: int) -> int:
    """Largest cut of a row that is at most `limit` tokens and ends with a message; 0 for none."""
    part = slice(int(encoded.seg_splits[row]), int(encoded.seg_splits[row + 1]))
    message, end = encoded.seg_message[part], encoded.seg_end[part]
    last_of_message = np.append(message[1:] != message[:-1], True)
    good = end[last_of_message & (message >= 0) & (end <= limit)]
    return int(good[-1]) if len(good) else 0


def cut_of(encoded: Encoded, row: int, length: int, recipe: Recipe) -> tuple[int, int]:
    """Which tokens of a row stay under the recipe's ``max_length``; (0, 0) if none do."""
    limit = recipe.max_length
    if limit is None or length <= limit:
        return 0, length
    if recipe.truncation == "right":
        return 0, limit
    if recipe.truncation == "left":
        return length - limit, length
    if recipe.truncation == "message":
        return 0, message_end(encoded, row, limit)
    return 0, 0


def lost_by_cut(
    policy: LossMaskPolicy, encoded: Encoded, row: int, cut: tuple[int, int, int], of: Row, limit: int | None
) -> RecordFiltered | None:
    """Why a row is left out that is cut to tokens `start` to `end` of `length`; None if it is written."""
    start, end, length = cut
    if end <= start < length:
        return RecordFiltered(FilterReason.too_long, f"{count_of(length, 'token')}, limit {limit:,}")
    if (
        end < length
        and policy.needs_end
        and of.trains
        and of.mask is None
        and _trains_other(policy, encoded, row, end, of.rendered)
    ):
        why = f"what {policy.name} trains is cut off: {count_of(length, 'token')}, cut at {end:,}"
        return RecordFiltered(FilterReason.no_trained_tokens_after_truncation, why)
    return None


def _trains_other(policy: LossMaskPolicy, encoded: Encoded, row: int, end: int, rendered: Rendered) -> bool:
    """Whether a policy trains other segments of a row's first `end` tokens than it would of the whole row.

    Not of a document, in which no policy has a message to choose.
    """
    part = slice(int(encoded.seg_splits[row]), int(encoded.seg_splits[row + 1]))
    kinds, messages = encoded.seg_kind[part], encoded.seg_message[part]
    if (messages < 0).all():
        return False
    kept = int(np.count_nonzero(encoded.seg_start[part] < end))
    flags = [rendered.flags] if rendered.flags else None
    turns = np.array([rendered.turn])
    whole, left = (
        policy.trained_segments(np.array([0, size]), kinds[:size], messages[:size], flags=flags, turns=turns)
        for size in (len(kinds), kept)
    )
    return not np.array_equal(whole[:kept], left)


def may_be_refused(rules: FilterSpec, length: Int64, loss: Int64, trains: npt.NDArray[np.bool_]) -> Int64:
    """The rows that :func:`refusal` has to look at: it refuses no other."""
    untrained = loss < rules.min_trained_tokens
    if rules.min_trained_share is not None or rules.max_trained_share is not None:
        untrained[:] = True
    refused = untrained & trains
    if rules.max_tokens is not None:
        refused |= length > rules.max_tokens
    if rules.min_tokens is not None:
        refused |= length < rules.min_tokens
    return np.flatnonzero(refused)


def refusal(rules: FilterSpec, length: int, loss: int, *, trains: bool, cut: bool) -> tuple[FilterReason, str] | None:
    """Why a row is left out, or None.

    Args:
        rules: the data set's filters.
        length, loss: tokens of the row, and trained ones.
        trains: whether the row should have trained tokens at all.
        cut: whether the row was truncated.
    """
    if rules.max_tokens is not None and length > rules.max_tokens:
        return FilterReason.too_long, f"{count_of(length, 'token')}, limit {rules.max_tokens:,}"
    if rules.min_tokens is not None and length < rules.min_tokens:
        return FilterReason.too_short, f"{count_of(length, 'token')}, at least {rules.min_tokens:,}"
    if not trains:
        return None
    if loss < rules.min_trained_tokens:
        reason = FilterReason.no_trained_tokens_after_truncation if cut else FilterReason.no_trained_tokens
        return reason, f"{count_of(loss, 'trained token')} of {length:,}, at least {rules.min_trained_tokens:,}"
    share = loss / length if length else 0.0
    low, high = rules.min_trained_share, rules.max_trained_share
    if (low is not None and share < low) or (high is not None and share > high):
        return FilterReason.trained_share, f"{share:.4f} of the tokens are trained"
    return None


def chunks(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Cut `length` tokens into runs of at most `size`, each beginning `overlap` before the last one's end.

    >>> chunks(10, 4, 1)
    [(0, 4), (3, 7), (6, 10)]
    """
    step = size - overlap
    last = max(length - overlap, 1)
    return [(start, min(start + size, length)) for start in range(0, last, step)]


def _splits(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def _join(parts: list[npt.NDArray[_Int]], dtype: type[_Int]) -> npt.NDArray[_Int]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
