"""The token view: what each token of a sample is, and whether it is trained.

A :class:`TokenView` is the one summary that the HTML page, the notebook and
the terminal draw, so that all of them say the same.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from retok_dask.errors import count_of
from retok_dask.views.text import Piece, one_line, pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOX_TOKENS = 12
"""A character has at most four bytes, so more tokens than this in one box is no character."""
_BOX_TEXT = 200
_CONTINUATION = frozenset(bytes([value]) for value in range(0x80, 0xC0))


class Decoder(Protocol):
    """What the token view needs of a tokenizer."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Control tokens and other added ones, text -> id."""

    @property
    def byte_level(self) -> bool:
        """Whether each id has bytes of its own, whatever stands before it."""

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of these ids."""


@dataclass(frozen=True, slots=True)
class Box:
    """The fewest neighbouring tokens that make whole characters; nearly always one.

    Attributes:
        start: position of its first token in the sample.
        ids: ids of its tokens.
        data: their bytes.
        pieces: what to show.
        trained: whether the loss mask is true for them.
        control: whether it is one added token (``<|im_end|>``, ``<think>``).
        line_end: whether a new line of the view starts after it.
    """

    start: int
    ids: tuple[int, ...]
    data: bytes
    pieces: tuple[Piece, ...]
    trained: bool
    control: bool
    line_end: bool

    @property
    def text(self) -> str:
        """What is shown, in one string."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(slots=True)
class Block:
    """One segment as drawn.

    Attributes:
        kind, message: of the segment.
        start, end: its tokens in the sample.
        trained: how many of them are trained.
        head: boxes always shown.
        folded: boxes behind a fold, in the middle.
        folded_tokens: how many tokens these are.
        undrawn: tokens left out altogether, after the folded ones.
        tail: boxes after the fold.
    """

    kind: str
    message: int
    start: int
    end: int
    trained: int
    head: list[Box] = field(default_factory=list)
    folded: list[Box] = field(default_factory=list)
    folded_tokens: int = 0
    undrawn: int = 0
    tail: list[Box] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of tokens of the segment."""
        return self.end - self.start


@dataclass(slots=True, repr=False)
class TokenView:
    """A sample ready to be drawn; shows itself in notebooks and as text.

    Attributes:
        title: the sample's id.
        facts: pairs of label and value about the sample.
        blocks: its segments.
        kinds: kind -> (tokens, trained tokens), in order of appearance.
        skipped: segments left out after the last block.
        skipped_tokens: how many tokens these have.
    """

    title: str
    facts: list[tuple[str, str]]
    blocks: list[Block]
    kinds: dict[str, tuple[int, int]]
    skipped: int = 0
    skipped_tokens: int = 0

    def _repr_html_(self) -> str:
        from retok_dask.views.html import token_fragment  # noqa: PLC0415  text alone needs no templates

        return token_fragment(self)

    def to_page(self) -> str:
        """One HTML file that needs nothing else."""
        from retok_dask.views.html import page, token_fragment  # noqa: PLC0415

        return page(self.title, [token_fragment(self)])

    def to_text(self, *, colour: bool = False, width: int = 100) -> str:
        """The view for a terminal; with ANSI colours if asked."""
        from retok_dask.views.terminal import token_text  # noqa: PLC0415

        return token_text(self, colour=colour, width=width)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def token_view(
    sample: Mapping[str, Any],
    tokenizer: Decoder,
    *,
    long_segment: int = 160,
    max_tokens: int = 4000,
) -> TokenView:
    """Prepare the token view of one sample.

    Args:
        sample: a row of a written data set or of ``retok encode``:
            ``input_ids``, ``loss_mask``, ``segments`` (start, end, kind,
            message, as dicts or tuples); ``sample_id``, ``truncated`` and the
            source if they are there.
        tokenizer: the one that made the ids.
        long_segment: a segment with more tokens is folded in its middle.
        max_tokens: how many tokens are drawn at most, folded ones included;
            the view says how many it leaves out.

    Raises:
        ValueError: ids and mask differ in length.
    """
    ids = [int(token) for token in sample["input_ids"]]
    mask = [bool(flag) for flag in sample["loss_mask"]]
    if len(ids) != len(mask):
        msg = f"{count_of(len(ids), 'id')} but {count_of(len(mask), 'mask entry', 'mask entries')}; this is no sample"
        raise ValueError(msg)
    painter = _Painter(ids, mask, tokenizer)
    blocks: list[Block] = []
    kinds: dict[str, tuple[int, int]] = {}
    budget, skipped, skipped_tokens = max_tokens, 0, 0
    for segment in _given(sample.get("segments")) or _one_segment(len(ids)):
        start, end, kind, message = _segment(segment)
        trained = sum(mask[start:end])
        before = kinds.get(kind, (0, 0))
        kinds[kind] = (before[0] + end - start, before[1] + trained)
        if budget <= 0:
            skipped, skipped_tokens = skipped + 1, skipped_tokens + end - start
            continue
        block = Block(kind, message, start, end, trained)
        budget -= painter.fill(block, long_segment, budget)
        blocks.append(block)
    return TokenView(_title(sample), _facts(sample, ids, mask), blocks, kinds, skipped, skipped_tokens)


def _one_segment(count: int) -> list[tuple[int, int, str, int]]:
    return [(0, count, "other", -1)] if count else []


def _given(segments: Any) -> list[Any]:
    return [] if segments is None else list(segments)


def _segment(segment: Any) -> tuple[int, int, str, int]:
    values = [segment[name] for name in ("start", "end", "kind", "message")] if isinstance(segment, dict) else segment
    start, end, kind, message = values
    return int(start), int(end), str(kind), int(message)


def _title(sample: Mapping[str, Any]) -> str:
    return one_line(sample.get("sample_id") or "sample", 80)


def _facts(sample: Mapping[str, Any], ids: Sequence[int], mask: Sequence[bool]) -> list[tuple[str, str]]:
    trained = sum(mask)
    share = f"{trained / len(ids):.1%}" if ids else "no tokens"
    facts = [("tokens", f"{len(ids):,}"), ("trained", f"{trained:,} ({share})")]
    if sample.get("truncated"):
        facts.append(("truncated", "yes"))
    if sample.get("source_file"):
        row = sample.get("source_row")
        place = str(sample["source_file"]).rsplit("/", 1)[-1]
        facts.append(("source", one_line(place if row is None or row < 0 else f"{place}, row {row}")))
    return facts


class _Painter:
    """Turns stretches of tokens into boxes."""

    def __init__(self, ids: list[int], mask: list[bool], tokenizer: Decoder) -> None:
        self._ids = ids
        self._mask = mask
        self._tokenizer = tokenizer
        self._control = frozenset(tokenizer.added_tokens.values())
        self._byte_level = tokenizer.byte_level
        self._bytes: dict[int, bytes] = {}

    def fill(self, block: Block, long_segment: int, budget: int) -> int:
        """Draw the block within the budget; returns how many tokens were drawn."""
        room = min(block.tokens, budget)
        if room == block.tokens <= long_segment:
            block.head = self.boxes(block.start, block.end)
            return room
        head = self._whole(block.start + min(room, long_segment * 3 // 4), block.end)
        tail = self._whole(max(head, block.end - long_segment // 4), block.end) if room == block.tokens else block.end
        fold_end = tail if room == block.tokens else self._whole(max(head, block.start + room), block.end)
        block.head = self.boxes(block.start, head)
        block.folded = self.boxes(head, fold_end)
        block.folded_tokens = fold_end - head
        block.undrawn = tail - fold_end
        block.tail = self.boxes(tail, block.end)
        return block.tokens - block.undrawn

    def _whole(self, position: int, end: int) -> int:
        """The next position at which no character is in the middle of its bytes."""
        while self._byte_level and position < end and self._data(self._ids[position])[:1] in _CONTINUATION:
            position += 1
        return position

    def boxes(self, start: int, end: int) -> list[Box]:
        """The boxes of a stretch of tokens."""
        found, first = [], start
        for following in range(start + 1, end + 1):
            if (
                following == end
                or following - first == _BOX_TOKENS
                or self._mask[following] != self._mask[first]
                or self._complete(first, following)
            ):
                found.append(self._box(first, following))
                first = following
        return found

    def _complete(self, start: int, end: int) -> bool:
        """Whether these tokens are whole characters, or can no longer become any."""
        if not self._byte_level:
            return not self._text_between(start, end).endswith("\ufffd")
        decoder = codecs.getincrementaldecoder("utf-8")(errors="strict")
        try:
            decoder.decode(b"".join(map(self._data, self._ids[start:end])))
        except UnicodeDecodeError:
            return True
        return not decoder.getstate()[0]

    def _data(self, token: int) -> bytes:
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._tokenizer.decode_bytes([token])
        return data

    def _text_between(self, start: int, end: int) -> str:
        """Text of tokens whose bytes depend on the token before, such as SentencePiece's leading blank."""
        before = self._ids[max(0, start - 1) : start]
        anchor = self._tokenizer.decode_bytes(before) if before else b""
        return self._tokenizer.decode_bytes(before + self._ids[start:end])[len(anchor) :].decode("utf-8", "replace")

    def _box(self, start: int, end: int) -> Box:
        ids = tuple(self._ids[start:end])
        data = b"".join(map(self._data, ids)) if self._byte_level else self._text_between(start, end).encode()
        text = data.decode("utf-8", "backslashreplace")
        shown = pieces(text[:_BOX_TEXT])
        if len(text) > _BOX_TEXT:
            shown.append(Piece(f"…+{len(text) - _BOX_TEXT}", mark=True))
        control = len(ids) == 1 and ids[0] in self._control
        line_end = text.endswith(("\n", "\r"))
        return Box(start, ids, data, tuple(shown), self._mask[start], control, line_end)
