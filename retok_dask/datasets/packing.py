"""Best-fit packing: documents into rows of a context length, boundaries kept."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.datasets.exits.base import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Piece:
    """Tokens ``start`` to ``end`` of a row."""

    row: int
    start: int
    end: int


def best_fit(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Put documents into bins: the longest first, each into the fullest bin that still takes it.

    The same lengths always give the same bins.

    Args:
        lengths: tokens of each document, none above `context`.
        context: tokens a bin takes.

    Returns:
        The documents of each bin.

    >>> best_fit([3, 7, 2, 5], 10)
    [[1, 0], [3, 2]]
    """
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, bin), ascending
    for document in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = bisect_left(free, (lengths[document], -1))
        if place == len(free):
            bins.append([document])
            room, number = context - lengths[document], len(bins) - 1
        else:
            room, number = free.pop(place)
            bins[number].append(document)
            room -= lengths[document]
        if room:
            insort(free, (room, number))
    return bins


def pack(rows: Rows, context: int) -> Rows:
    """Pack rows; one that is longer than the context is first cut into pieces of it.

    Every token is kept, once. Packed rows come in the order of their first
    documents, documents in the order of length within a packed row; ``documents``
    of the result has their lengths.
    """
    pieces = [
        Piece(row, start, min(start + context, length))
        for row, length in enumerate(rows.lengths.tolist())
        for start in range(0, length, context)
    ]
    # rows in the order of their first documents: training that does not shuffle must not see the long ones first
    bins = sorted(best_fit([piece.end - piece.start for piece in pieces], context), key=min)
    base = rows.splits
    order = [pieces[number] for members in bins for number in members]
    spans = [slice(int(base[p.row]) + p.start, int(base[p.row]) + p.end) for p in order]
    documents = [[pieces[n].end - pieces[n].start for n in members] for members in bins]
    return Rows(
        ids=_join([rows.ids[span] for span in spans], np.int32),
        mask=_join([rows.mask[span] for span in spans], np.bool_),
        splits=np.concatenate([[0], np.cumsum([sum(members) for members in documents], dtype=np.int64)]).astype(
            np.int64
        ),
        names=[_name(rows, pieces[members[0]], context) for members in bins],
        documents=documents,
    )


def pack_parts(parts: Sequence[Rows], context: int) -> Rows:
    """Pack several parts as one, and count what went in."""
    whole = Rows(
        np.concatenate([part.ids for part in parts]) if parts else np.empty(0, np.int32),
        np.concatenate([part.mask for part in parts]) if parts else np.empty(0, np.bool_),
        np.concatenate([[0], np.cumsum([n for part in parts for n in part.lengths.tolist()])]).astype(np.int64),
        [name for part in parts for name in part.names],
    )
    packed = pack(whole, context)
    packed.sources = len(whole)
    packed.cut = int(np.count_nonzero(whole.lengths > context))
    return packed


def _name(rows: Rows, piece: Piece, context: int) -> str:
    """The document's name, and the piece's number from the second on: no two rows may have one name."""
    name = rows.names[piece.row]
    return f"{name}-p{piece.start // context}" if piece.start else name


def _join(parts: list[np.ndarray[Any, Any]], dtype: Any) -> np.ndarray[Any, Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
