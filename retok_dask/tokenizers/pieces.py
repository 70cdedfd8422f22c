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
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from retok_dask.tokenizers.engines import Flat, ReferenceEngine
    from retok_dask.types import Rendered

    Int32 = npt.NDArray[np.int32]
    Int64 = npt.NDArray[np.int64]


KEPT = 4096
"""Escaped texts whose ids are remembered; they are the same few control tokens again and again."""


class CannotEscape(ValueError):
    """Plain text gives the control token's own id, so it cannot be told from it."""


class PieceEncoder:
    """Encodes rows in pieces."""

    def __init__(self, reference: ReferenceEngine, added_tokens: dict[str, int]) -> None:
        self._reference = reference
        self._added = added_tokens
        self._newline = reference.encode_offsets("\n")[0]
        self._ordinary: dict[str, Int32] = {}

    def encode_rows(
        self, rows: Mapping[int, Rendered], encode: Callable[[Sequence[str]], Flat]
    ) -> tuple[dict[int, Int32], dict[int, str]]:
        """Ids of several rows by any encoder, with few calls of it.

        Returns:
            Ids by row number, and for rows that cannot be escaped the reason.
        """
        plan = {number: pieces_of(len(row.text), row.escapes) for number, row in rows.items()}
        plain = [(n, start, end) for n, pieces in plan.items() for start, end, escaped in pieces if not escaped]
        texts = [rows[n].text[start:end] if not start else "\n" + rows[n].text[start:end] for n, start, end in plain]
        parts = dict(zip(plain, _split(encode(texts)), strict=True))
        merged = [key for key in plain if key[1] and not self._has_newline(parts[key])]
        again = _split(encode([rows[n].text[start:end] for n, start, end in merged])) if merged else []
        skip = self._newline.size
        parts = {key: ids if not key[1] else ids[skip:] for key, ids in parts.items()} | dict(
            zip(merged, again, strict=True)
        )
        found: dict[int, Int32] = {}
        failed: dict[int, str] = {}
        for number, pieces in plan.items():
            text = rows[number].text
            try:
                row = [self._as_text(text[a:b]) if escaped else parts[number, a, b] for a, b, escaped in pieces]
            except CannotEscape as error:
                failed[number] = str(error)
                continue
            found[number] = np.concatenate([np.zeros(0, np.int32), *row]).astype(np.int32, copy=False)
        return found, failed

    def encode(self, text: str, escapes: list[tuple[int, int]]) -> tuple[Int32, Int64]:
        """Ids of a row by the reference, and the (start, end) characters of each.

        Raises:
            CannotEscape: as the reference does for such a token.
        """
        ids: list[Int32] = []
        offsets: list[Int64] = []
        for start, end, escaped in pieces_of(len(text), escapes):
            piece = text[start:end]
            if escaped:
                found = self._as_text(piece)
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
            if self._has_newline(ids):
                return ids[skip:], np.maximum(offsets[skip:] - 1, 0)
        return self._reference.encode_offsets(piece)

    def _has_newline(self, ids: Int32) -> bool:
        return np.array_equal(ids[: self._newline.size], self._newline)

    def _as_text(self, piece: str) -> Int32:
        known = self._ordinary.get(piece)
        if known is None:
            ids = self._reference.encode_ordinary("\n" + piece)
            newline = self._newline.tolist()
            ids = ids[len(newline) :] if ids[: len(newline)] == newline else self._reference.encode_ordinary(piece)
            if self._added.get(piece) in ids:
                msg = f"the tokenizer gives the id of {piece!r} for its plain text too"
                raise CannotEscape(msg)
            known = np.array(ids, np.int32)
            if len(self._ordinary) < KEPT:
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


def _split(flat: Flat) -> list[Int32]:
    ids, splits = flat
    return [ids[start:end] for start, end in zip(splits[:-1].tolist(), splits[1:].tolist(), strict=True)]
