"""Character spans to token segments.

Spans and tokens both cut one row; a span boundary that falls inside a token
makes that token shared, and :data:`~retok_dask.types.SHARED_TOKEN_RANK` says
which span owns it. Everything works on all rows of a batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.types import SHARED_TOKEN_RANK, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from retok_dask.types import Rendered

    Int32 = npt.NDArray[np.int32]
    Int64 = npt.NDArray[np.int64]

RANK_OF_KIND: Int64 = np.array([SHARED_TOKEN_RANK.index(kind) for kind in Kind], np.int64)


@dataclass(slots=True)
class Spans:
    """Non-empty spans of a batch, flat; lengths in the unit that tokens are measured in (bytes).

    Attributes:
        row: the row of each span, ascending.
        length: its length, at least 1.
        kind, message: see :class:`~retok_dask.types.Rendered`.
    """

    row: Int64
    length: Int64
    kind: npt.NDArray[np.int8]
    message: Int32


@dataclass(slots=True)
class Segments:
    """Token segments of a batch, flat; see :class:`~retok_dask.types.Encoded`."""

    splits: Int64
    start: Int32
    end: Int32
    kind: npt.NDArray[np.int8]
    message: Int32
    shared: Int32


def segments_by_length(spans: Spans, token_ends: Int64, row_splits: Int64) -> Segments:
    """Segments where every token has a known length and rows are covered exactly.

    Args:
        spans: for each row, lengths that sum up to the row's tokens' lengths.
        token_ends: where each token ends in the bytes of the whole batch; none is empty.
        row_splits: rows + 1 offsets into the tokens.

    The caller has checked the sums; rows without tokens have no spans.
    """
    span_ends = np.cumsum(spans.length)
    # The token in which each span ends; equal ends mean a clean cut.
    last = np.searchsorted(token_ends, span_ends, side="left")
    clean = token_ends[last] == span_ends if last.size else np.zeros(0, bool)
    cut = last + 1
    shared_tokens = _give_shared_tokens(cut, last, clean, spans.kind)
    return segments_from_cuts(spans, cut, shared_tokens, row_splits)


def _give_shared_tokens(cut: Int64, last: Int64, clean: npt.NDArray[np.bool_], kind: npt.NDArray[np.int8]) -> Int64:
    """Move `cut` so that each shared token lies in its owner's segment; return the shared tokens."""
    unclean = np.flatnonzero(~clean)
    if not unclean.size:
        return unclean
    tokens, first = np.unique(last[unclean], return_index=True)
    ends = np.append(first[1:], unclean.size)
    alone = ends - first == 1  # one boundary in the token, as nearly always: the first of two equals owns it
    boundary, inside = unclean[first[alone]], tokens[alone]
    ranks = RANK_OF_KIND[kind[boundary]], RANK_OF_KIND[kind[boundary + 1]]
    cut[boundary] = np.where(ranks[0] <= ranks[1], inside + 1, inside)
    several = zip(tokens[~alone].tolist(), first[~alone].tolist(), ends[~alone].tolist(), strict=True)
    for token, begin, end in several:
        boundaries = unclean[begin:end]  # spans that end inside the token; the next one begins in it
        members = np.append(boundaries, boundaries[-1] + 1)
        owner = members[int(np.argmin(RANK_OF_KIND[kind[members]]))]
        cut[boundaries] = np.where(boundaries < owner, token, token + 1)
    return tokens


def segments_from_cuts(spans: Spans, cut: Int64, shared_tokens: Int64, row_splits: Int64) -> Segments:
    """Segments from the token offset (in the batch) at which each span ends.

    Spans that got no token vanish; neighbours of one kind and message merge.
    """
    rows = row_splits.size - 1
    start = np.empty_like(cut)
    start[1:] = cut[:-1]
    if start.size:
        start[0] = 0
    keep = cut > start
    start, end, row = start[keep], cut[keep], spans.row[keep]
    kind, message = spans.kind[keep], spans.message[keep]
    fresh = np.ones(start.size, bool)
    fresh[1:] = (row[1:] != row[:-1]) | (kind[1:] != kind[:-1]) | (message[1:] != message[:-1])
    first = np.flatnonzero(fresh)
    closing = np.append(first[1:], start.size) - 1 if first.size else first
    row = row[first]
    base = row_splits[row]
    shared_rows = np.searchsorted(row_splits, shared_tokens, side="right") - 1
    return Segments(
        splits=np.searchsorted(row, np.arange(rows + 1)).astype(np.int64),
        start=(start[first] - base).astype(np.int32),
        end=(end[closing] - base).astype(np.int32),
        kind=kind[first],
        message=message[first],
        shared=np.bincount(shared_rows, minlength=rows).astype(np.int32),
    )


def cuts_by_offsets(spans: Spans, offsets: Int64) -> tuple[Int64, Int64] | None:
    """Cuts of one row from the (start, end) characters of its tokens.

    Tokens may leave characters out (blanks that a pre-tokenizer drops), and
    several may share one character (byte fallback). A token without characters
    goes with the character that it stands before.

    Args:
        spans: the row's spans, lengths in characters.
        offsets: shape (tokens, 2).

    Returns:
        The token offset at which each span ends, and the shared tokens; None
        if the tokens do not lie in the order of the text.
    """
    count = spans.length.size
    if not count:
        return (np.zeros(0, np.int64), np.zeros(0, np.int64)) if not offsets.size else None
    ends = np.cumsum(spans.length)
    begin, stop = offsets[:, 0], offsets[:, 1]
    first = np.minimum(np.searchsorted(ends, begin, side="right"), count - 1)
    final = np.minimum(np.searchsorted(ends, np.maximum(stop - 1, begin), side="right"), count - 1)
    owner = first.copy()
    shared = np.flatnonzero(final != first)
    for token in shared.tolist():
        members = np.arange(first[token], final[token] + 1)
        owner[token] = members[int(np.argmin(RANK_OF_KIND[spans.kind[members]]))]
    if np.any(owner[1:] < owner[:-1]):
        return None
    return np.searchsorted(owner, np.arange(count), side="right"), shared


def without_gaps(offsets: Int64, length: int) -> Int64:
    """Offsets of a tokenizer that drops no character, each token reaching to where the next one begins.

    A letter and its mark that NFC makes one character come with the letter's
    place alone; the token has characters of both.
    """
    if not offsets.size:
        return offsets
    begin = offsets[:, 0]
    after = np.searchsorted(begin, begin, side="right")
    following = np.append(begin, length)[after]
    return np.stack([begin, np.maximum(offsets[:, 1], following)], axis=1)


def char_spans(number: int, row: Rendered) -> Spans:
    """The non-empty spans of one row, lengths in characters."""
    bounds = np.array([*row.starts, len(row.text)], np.int64)
    lengths = bounds[1:] - bounds[:-1]
    keep = lengths > 0
    return Spans(
        row=np.full(int(keep.sum()), number, np.int64),
        length=lengths[keep],
        kind=np.array(row.kinds, np.int8)[keep],
        message=np.array(row.messages, np.int32)[keep],
    )


def with_token_cuts(spans: Spans, cuts: dict[int, tuple[Spans, Int64]], dropped: set[int]) -> Spans:
    """Spans of a batch where some rows are cut by token counts instead of bytes, and some are dropped.

    Args:
        spans: the batch's spans, lengths in bytes.
        cuts: rows to take in this form: their spans and the token at which each ends.
        dropped: rows without tokens.
    """
    others = ~np.isin(spans.row, [*cuts, *dropped])
    parts = [Spans(spans.row[others], spans.length[others], spans.kind[others], spans.message[others])]
    for own, cut in cuts.values():
        tokens = np.diff(cut, prepend=0)
        keep = tokens > 0
        parts.append(Spans(own.row[keep], tokens[keep], own.kind[keep], own.message[keep]))
    joined = [np.concatenate([getattr(part, name) for part in parts]) for name in ("row", "length", "kind", "message")]
    order = np.argsort(joined[0], kind="stable")
    row, length, kind, message = (column[order] for column in joined)
    return Spans(row, length, kind, message)
