"""Rows of ids of an old tokenizer to rows of a new one.

Ids are decoded to the bytes they stand for, nothing cleaned up; the text
between control tokens is encoded anew, and control tokens go by a table, never
through text. Mask and segments are carried over by the bytes that they cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.errors import RecipeError
from retok_dask.kernel.controls import ControlFinder, ControlMap, control_tokens
from retok_dask.kernel.spelling import Spelling
from retok_dask.types import KIND_NAMES, SHARED_TOKEN_RANK, Encoded, Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from retok_dask.recipe import DatasetSpec
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import TokenRow

    Int64 = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_RANK = np.array([SHARED_TOKEN_RANK.index(kind) for kind in Kind], np.int64)
_KIND_OF = {name: number for number, name in enumerate(KIND_NAMES)}

NONCANONICAL = "noncanonical"
CUT_CHARACTER = "cut_character"


@dataclass(slots=True)
class Carried:
    """A row of old ids as text for the new tokenizer, with all that must come through.

    Attributes:
        rendered: the text. The message of each span is packed with whether
            it is trained (see :func:`_packed`).
        controls: ids of the new control tokens that the row must have, in order.
        old: the same text for the old tokenizer, from the first ordinary token on.
        old_ids: the ids that it should encode to.
        old_length: tokens of the old row.
        has_mask: the row brought its own mask.
        both: it brought mask and segments, which may disagree in a shared token.
        lossy: why its ids are not what its text encodes to, or None.
    """

    rendered: Rendered
    controls: list[int]
    old: Rendered
    old_ids: Int64
    old_length: int
    has_mask: bool
    both: bool
    lossy: str | None = None


class Retokenizer:
    """Turns rows of old ids into rows of new ones.

    Args:
        dataset: its ``token_map`` and ``lossy_decode`` are followed.
        old, new: the tokenizers.

    Raises:
        RecipeError: the table of control tokens is incomplete, or the old
            tokenizer's ids do not say which bytes they stand for.
    """

    def __init__(self, dataset: DatasetSpec, old: Tokenizer, new: Tokenizer) -> None:
        self.table = ControlMap(old, new, dataset.token_map, dataset.name)
        self.old, self.new = old, new
        self._keep_cut = dataset.lossy_decode == "keep"
        spelling = Spelling.of(old)
        if spelling is None:
            msg = (
                f"data set {dataset.name!r}: ids of {old.definition.source!r} cannot be decoded exactly (its tokens "
                "do not say which bytes they stand for); start from the text that they were made of"
            )
            raise RecipeError(msg)
        self._spelling = spelling
        self._old_bytes = spelling.tokens
        self._new_bytes = list(spelling.tokens)
        for row in self.table.rows:
            self._new_bytes[row.id] = {"token": row.target, "text": row.text}.get(row.fate, "").encode()
        own = control_tokens(new)
        self._find_new, self._find_old = ControlFinder(own), ControlFinder(control_tokens(old))
        self._is_new_control = np.zeros(max([*own.values(), new.vocab_size - 1]) + 1, np.bool_)
        self._is_new_control[list(own.values())] = True

    # --- one row: ids to text ---

    def carry(self, row: TokenRow) -> Carried:
        """Decode a row.

        Raises:
            RecordRejected: ``unmapped_token``, ``lossy_decode``, ``empty_text``.
        """
        ids = np.asarray(row.input_ids, np.int64)
        at = self.table.positions(ids)
        fates = [self.table[index] for index in ids[at].tolist()]
        refused = next((fate for fate in fates if fate.fate == "reject"), None)
        if refused is not None:
            raise RecordRejected(RejectReason.unmapped_token, f"the row holds {refused.text!r} (id {refused.id})")
        stays = np.array([fate.fate == "token" for fate in fates], np.bool_)
        parts = list(map(self._new_bytes.__getitem__, ids.tolist()))
        self._spelling.take_prefix(parts, set(at.tolist()))
        decoded = _Decoded.of(parts)
        if decoded.cut_at >= 0 and not self._keep_cut:
            detail = f"a character is cut at token {decoded.cut_at}; lossy_decode: keep writes U+FFFD in its place"
            raise RecordRejected(RejectReason.lossy_decode, detail)
        if not decoded.text:
            raise RecordRejected(RejectReason.empty_text, "the ids stand for no text")
        rendered = _carried_spans(row, decoded)
        mapped = at[stays]
        own = set(zip(decoded.chars(mapped)[0].tolist(), decoded.chars(mapped + 1)[0].tolist(), strict=True))
        rendered.escapes = [span for span in self._find_new.find(decoded.text) if span not in own]
        old, old_ids = self._old_text(ids, at)
        return Carried(
            rendered,
            [fate.target_id for fate in fates if fate.fate == "token"],
            old,
            old_ids,
            len(ids),
            row.loss_mask is not None,
            row.loss_mask is not None and row.segments is not None,
            CUT_CHARACTER if decoded.cut_at >= 0 else None,
        )

    def _old_text(self, ids: Int64, controls: Int64) -> tuple[Rendered, Int64]:
        """What the old tokenizer must encode to the same ids, leading control tokens left off."""
        leading = int(np.argmax(np.append(controls, -1) != np.arange(controls.size + 1)))
        rest, controls = ids[leading:], controls[leading:] - leading
        parts = list(map(self._old_bytes.__getitem__, rest.tolist()))
        self._spelling.take_prefix(parts, set(controls.tolist()))
        decoded = _Decoded.of(parts)
        own = set(zip(decoded.chars(controls)[0].tolist(), decoded.chars(controls + 1)[0].tolist(), strict=True))
        escapes = [span for span in self._find_old.find(decoded.text) if span not in own]
        return Rendered(decoded.text, [0], [int(Kind.content)], [0], escapes), rest

    # --- a batch: text to new ids ---

    def encode(self, rows: Sequence[Carried]) -> tuple[Encoded, list[Bools | None]]:
        """Encode a batch; returns it with the mask of each row that brought one.

        A row whose control tokens do not come out exactly as the table says is
        in ``failed``. Rows whose old ids are not what the old tokenizer gives
        for their text are marked in ``lossy``.
        """
        encoded = self.new.encode([row.rendered for row in rows])
        trained = (encoded.seg_message & 1).astype(np.bool_)
        token_trained = np.repeat(trained, encoded.seg_end - encoded.seg_start)
        masks: list[Bools | None] = []
        for number, row in enumerate(rows):
            part = slice(int(encoded.row_splits[number]), int(encoded.row_splits[number + 1]))
            ids = encoded.ids[part]
            if number not in encoded.failed and ids[self._is_new_control[ids]].tolist() != row.controls:
                encoded.failed[number] = "alignment_failed: other control tokens came out than the table says"
            mask = token_trained[part] if row.has_mask else None
            if row.both and encoded.shared[number] and number not in encoded.failed:
                mask = self._mask_alone(row, ids.size)
            masks.append(mask)
        self._mark_noncanonical(rows)
        return _unpacked(encoded), masks

    def _mask_alone(self, row: Carried, length: int) -> Bools:
        """The mask where tokens are shared: a token is trained if any trained character is in it."""
        kinds = [int(Kind.content if message & 1 else Kind.other) for message in row.rendered.messages]
        plain = Rendered(row.rendered.text, row.rendered.starts, kinds, [0] * len(kinds), row.rendered.escapes)
        encoded = self.new.encode([plain])
        mask = np.repeat(encoded.seg_kind == Kind.content, encoded.seg_end - encoded.seg_start)
        assert mask.size == length
        return mask

    def _mark_noncanonical(self, rows: Sequence[Carried]) -> None:
        asked = [row for row in rows if row.lossy is None]
        again = self.old.encode([row.old for row in asked])
        for number, row in enumerate(asked):
            ids = again.ids[int(again.row_splits[number]) : int(again.row_splits[number + 1])]
            if not np.array_equal(ids, row.old_ids):
                row.lossy = NONCANONICAL


@dataclass(slots=True)
class _Decoded:
    """Bytes of tokens as text, and where each token begins in it.

    Attributes:
        text: with U+FFFD for each byte that is part of no character.
        byte_offsets: tokens + 1.
        char_starts: byte offset at which each character begins.
        cut_at: the first token with such a byte, or -1.
    """

    text: str
    byte_offsets: Int64
    char_starts: Int64
    cut_at: int = -1

    @classmethod
    def of(cls, parts: list[bytes]) -> _Decoded:
        data = b"".join(parts)
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            cut_at = int(np.searchsorted(offsets, error.start, side="right")) - 1
            text = data.decode("utf-8", "surrogateescape")
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            broken = (codes >= 0xDC80) & (codes <= 0xDCFF)
            widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
            widths[broken] = 1
            starts = np.cumsum(widths) - widths
            text = np.where(broken, np.uint32(0xFFFD), codes).astype(np.uint32).tobytes().decode("utf-32-le")
            return cls(text, offsets, starts, cut_at)
        raw = np.frombuffer(data, np.uint8)
        return cls(text, offsets, np.flatnonzero((raw & 0xC0) != 0x80))

    def chars(self, tokens: Int64) -> tuple[Int64, Bools]:
        """Character offset before each token; and whether it lies inside a character, which then is the one before."""
        offsets = self.byte_offsets[tokens]
        places = np.searchsorted(self.char_starts, offsets, side="left")
        starts = np.append(self.char_starts, self.byte_offsets[-1])
        return places, starts[places] != offsets


def _packed(message: npt.ArrayLike, trained: npt.ArrayLike) -> Int64:
    """Message and mask in one number that is not negative."""
    return 2 * (np.asarray(message, np.int64) + 1) + np.asarray(trained, np.int64)


def _carried_spans(row: TokenRow, decoded: _Decoded) -> Rendered:
    """Runs of tokens of one kind, message and mask, as spans of characters."""
    length = decoded.byte_offsets.size - 1
    mask = None if row.loss_mask is None else np.asarray(row.loss_mask, np.bool_)
    trained = np.zeros(length, np.bool_) if mask is None else mask
    if row.segments is not None:
        runs = np.array([(s[0], s[1], _KIND_OF[s[2]], s[3]) for s in row.segments], np.int64).reshape(-1, 4)
        sizes = runs[:, 1] - runs[:, 0]
        kinds, messages = np.repeat(runs[:, 2], sizes), np.repeat(runs[:, 3], sizes)
    else:
        kinds = (
            np.where(trained, int(Kind.content), int(Kind.other))
            if mask is not None
            else np.full(length, int(Kind.content))
        )
        messages = np.zeros(length, np.int64)
    packed = _packed(messages, trained)
    changes = np.flatnonzero((kinds[1:] != kinds[:-1]) | (packed[1:] != packed[:-1])) + 1
    starts = np.concatenate([[0], changes])
    places, inside = decoded.chars(starts)
    _share_characters(places, np.flatnonzero(inside), ~trained[starts], _RANK[kinds[starts]])
    return Rendered(decoded.text, places.tolist(), kinds[starts].tolist(), packed[starts].tolist())


def _share_characters(places: Int64, inside: Int64, untrained: Bools, rank: Int64) -> None:
    """Give each character that holds starts of runs to one run alone, in place: to a trained one, then by its kind.

    Args:
        places: character at which each run begins; of runs that begin inside one, the character after it.
        inside: the runs that begin inside a character.
        untrained, rank: of each run.
    """
    for group in np.split(inside, np.flatnonzero(np.diff(places[inside]) != 0) + 1) if inside.size else ():
        runs = range(int(group[0]) - 1, int(group[-1]) + 1)
        best = min(runs, key=lambda run: (untrained[run], rank[run]))
        places[group[group <= best]] -= 1


def _unpacked(encoded: Encoded) -> Encoded:
    """Messages as they were; neighbours that differed in their mask alone become one segment."""
    message = (encoded.seg_message >> 1) - 1
    rows = np.repeat(np.arange(encoded.row_splits.size - 1), np.diff(encoded.seg_splits))
    fresh = np.ones(message.size, np.bool_)
    fresh[1:] = (
        (rows[1:] != rows[:-1]) | (encoded.seg_kind[1:] != encoded.seg_kind[:-1]) | (message[1:] != message[:-1])
    )
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], message.size) - 1 if first.size else first
    return Encoded(
        ids=encoded.ids,
        row_splits=encoded.row_splits,
        seg_splits=np.searchsorted(rows[first], np.arange(encoded.row_splits.size)).astype(np.int64),
        seg_start=encoded.seg_start[first],
        seg_end=encoded.seg_end[last],
        seg_kind=encoded.seg_kind[first],
        seg_message=message[first].astype(np.int32),
        shared=encoded.shared,
        fallback=encoded.fallback,
        text_bytes=encoded.text_bytes,
        failed=encoded.failed,
    )
