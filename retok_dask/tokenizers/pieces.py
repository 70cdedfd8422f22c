"""Rows whose control-token text is escaped, piece by piece, as the reference does it.

transformers' ``sanitize_control_tokens`` cuts a rendering around each marked
token, encodes the marked text without added tokens and the rest as usual, each
piece after a newline that is taken off again, so that no SentencePiece prefix
comes in between. The same here, with the characters that each id came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from retok_dask.tokenizers.engines import ReferenceEngine

    Int32 = npt.NDArray[np.int32]
    Int64 = npt.NDArray[np.int64]


class CannotEscape(ValueError):
    """Plain text gives the control token's own id, so it cannot be told from it."""


class PieceEncoder:
    """Encodes one row in pieces, by the reference engine."""

    def __init__(self, reference: ReferenceEngine, added_tokens: dict[str, int]) -> None:
        self._reference = reference
        self._added = added_tokens
        self._newline = reference.encode_offsets("\n")[0]
        self._ordinary: dict[str, list[int]] = {}

    def encode(self, text: str, escapes: list[tuple[int, int]]) -> tuple[Int32, Int64]:
        """Ids of a row, and the (start, end) characters of each.

        Raises:
            CannotEscape: as the reference does for such a token.
        """
        ids: list[Int32] = []
        offsets: list[Int64] = []
        for start, end, escaped in pieces_of(len(text), escapes):
            piece = text[start:end]
            if escaped:
                found = np.array(self._as_text(piece), np.int32)
                places = np.tile(np.array([[start, end]], np.int64), (found.size, 1))
            else:
                found, places = self._plain(piece, first=start == 0)
                places = places + start
            ids.append(found)
            offsets.append(places)
        if not ids:
            return np.zeros(0, np.int32), np.zeros((0, 2), np.int64)
        return np.concatenate(ids), np.concatenate(offsets)

    def _plain(self, piece: str, *, first: bool) -> tuple[Int32, Int64]:
        if not first:
            ids, offsets = self._reference.encode_offsets("\n" + piece)
            skip = self._newline.size
            if np.array_equal(ids[:skip], self._newline):
                return ids[skip:], np.maximum(offsets[skip:] - 1, 0)
        return self._reference.encode_offsets(piece)

    def _as_text(self, piece: str) -> list[int]:
        known = self._ordinary.get(piece)
        if known is None:
            ids = self._reference.encode_ordinary("\n" + piece)
            newline = self._newline.tolist()
            known = ids[len(newline) :] if ids[: len(newline)] == newline else self._reference.encode_ordinary(piece)
            if self._added.get(piece) in known:
                msg = f"the tokenizer gives the id of {piece!r} for its plain text too"
                raise CannotEscape(msg)
            if len(self._ordinary) < 4096:
                self._ordinary[piece] = known
        return known


def pieces_of(length: int, escapes: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """(start, end, escaped) of each non-empty piece of a text of `length` characters."""
    found = []
    at = 0
    for start, end in escapes:
        found += [(at, start, False), (start, end, True)]
        at = end
    found.append((at, length, False))
    return [(start, end, escaped) for start, end, escaped in found if start < end]
