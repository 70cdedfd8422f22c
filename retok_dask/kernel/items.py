"""From an item (conversation, document, row of ids) to rows that wait for the encoder."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from retok_dask.errors import RecipeError, count_of
from retok_dask.kernel.controls import ControlFinder, control_tokens, document_escapes
from retok_dask.kernel.tooloutput import tool_output
from retok_dask.schema import LOSSY_COLUMN, PROMPT_COLUMN, SOURCE_TOKENS_COLUMN
from retok_dask.templates import prompt_end
from retok_dask.types import (
    KIND_NAMES,
    Conversation,
    Document,
    Encoded,
    Kind,
    RecordRejected,
    RejectReason,
    Rendered,
    TokenRow,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from retok_dask.kernel.retokenize import Carried, Retokenizer
    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.templates import ChatTemplate
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Item

    RowMaker = Callable[[Item], list["Row"]]


@dataclass(slots=True)
class Row:
    """One row on its way to the encoder.

    Attributes:
        rendered: its text and spans; for a row of ids a text-less stand-in.
        kept: values of the kept columns, as text.
        trains: whether the row should have trained tokens: false for prompts.
        tokens: ids that are there already, in place of a text.
        mask: a loss mask that comes with the row and wins over the policy.
        carried: what must come through from a row of another tokenizer.
        item: which item of its record it comes from.
    """

    rendered: Rendered
    kept: dict[str, str | None] = field(default_factory=dict)
    trains: bool = True
    tokens: TokenRow | None = None
    mask: npt.NDArray[np.bool_] | None = None
    carried: Carried | None = None
    item: int = 0

    @property
    def size(self) -> int:
        """About how many bytes of text the row stands for."""
        return 64 + (len(self.rendered.text) if self.tokens is None else 4 * len(self.tokens.input_ids))


def row_maker(
    recipe: Recipe,
    dataset: DatasetSpec,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    retokenizer: Retokenizer | None = None,
) -> RowMaker:
    """The function that turns items of a data set into rows, by the data set's mode.

    Raises:
        RecipeError: the mode needs a chat template and there is none.
    """
    if dataset.mode in ("chat", "prompts") and template is None:
        msg = (
            f"data set {dataset.name!r} holds conversations, but there is no chat template; "
            "name one under template:, or use mode: text"
        )
        raise RecipeError(msg)
    documents = DocumentRows(recipe, tokenizer)
    markers = dataset.tool_output_markers or ()
    mark = tool_output(dataset.tool_output_markers) if dataset.tool_output_markers else None

    def rows_of(item: Item) -> list[Row]:
        if isinstance(item, Document):
            return [documents(item)]
        if isinstance(item, TokenRow):
            return [_token_row(item, tokenizer) if retokenizer is None else _carried_row(item, retokenizer)]
        assert template is not None
        if markers and not item.output_markers:  # it comes from memory, not from a layout
            item = replace(item, output_markers=markers)
        if dataset.mode == "prompts":
            return [_prompt_row(item, template)]
        kept = _kept(item.kept)
        return [Row(rendered if mark is None else mark(rendered), kept) for rendered in template.render(item)]

    return rows_of


class DocumentRows:
    """Documents to rows: BOS where wanted, the text, one separator.

    The separator and BOS are written by us alone, exactly one of each a
    document; control-token text inside a document is ordinary text (D09).
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer) -> None:
        spec = recipe.documents
        wants_bos = tokenizer.adds_bos if spec.bos is None else spec.bos
        self._bos = _control_text(tokenizer, "bos_token", "documents.bos") if wants_bos else ""
        if spec.separator is None:
            self._separator = tokenizer.special_tokens_map.get("eos_token", "")
        else:
            self._separator = spec.separator
        if self._separator and self._separator not in tokenizer.added_tokens:
            msg = (
                f"the separator {self._separator!r} is not one token of this tokenizer; "
                "name one of its added tokens, or an empty text for none"
            )
            raise RecipeError(msg)
        self._byte_level = tokenizer.byte_level
        self._controls = ControlFinder(control_tokens(tokenizer))
        spans = ((self._bos, Kind.bos), ("text", Kind.content), (self._separator, Kind.stop))
        self._kinds = [int(kind) for text, kind in spans if text]

    def __call__(self, document: Document) -> Row:
        text = document.text
        if not text:
            raise RecordRejected(RejectReason.empty_text, "the document has no text")
        start = len(self._bos)
        end = start + len(text)
        starts = [0, start] if start else [0]
        if self._separator:
            starts.append(end)
        found = self._controls.find(text)
        rendered = Rendered(self._bos + text + self._separator, starts, self._kinds[:], [-1] * len(starts))
        if found:
            own = document_escapes(found, len(text), byte_level=self._byte_level)
            rendered.escapes = [(start + a, start + b) for a, b in own]
            rendered.counts = {"control_tokens_in_documents": len(found)}
        return Row(rendered, _kept(document.kept))


def encoded_tokens(rows: Sequence[Row]) -> Encoded:
    """The encoded batch of rows that hold ids already.

    A row without segments gets them from its mask: ``content`` where it is
    trained, ``other`` elsewhere, all in message 0; without a mask everything
    is content.
    """
    ids, counts = [], []
    segments: list[tuple[int, int, str, int]] = []
    for row in rows:
        assert row.tokens is not None
        ids.append(np.asarray(row.tokens.input_ids, np.int32))
        found = row.tokens.segments or _segments_from_mask(row.mask, len(ids[-1]))
        segments += found
        counts.append(len(found))
    lengths = [len(part) for part in ids]
    return Encoded(
        ids=np.concatenate(ids) if ids else np.zeros(0, np.int32),
        row_splits=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        seg_splits=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        seg_start=np.array([segment[0] for segment in segments], np.int32),
        seg_end=np.array([segment[1] for segment in segments], np.int32),
        seg_kind=np.array([Kind[segment[2]] for segment in segments], np.int8),
        seg_message=np.array([segment[3] for segment in segments], np.int32),
        shared=np.zeros(len(rows), np.int32),
        fallback=np.zeros(len(rows), np.bool_),
        text_bytes=np.zeros(len(rows), np.int64),
    )


def _segments_from_mask(mask: npt.NDArray[np.bool_] | None, length: int) -> list[tuple[int, int, str, int]]:
    if mask is None:
        return [(0, length, "content", 0)] if length else []
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), length]
    return [(start, end, "content" if mask[start] else "other", 0) for start, end in pairwise(edges) if end > start]


def _carried_row(item: TokenRow, retokenizer: Retokenizer) -> Row:
    _token_row(item, retokenizer.old)  # refuses what is no row of the old tokenizer
    carried = retokenizer.carry(item)
    return Row(carried.rendered, _kept(item.kept), carried=carried)


def encode_carried(rows: Sequence[Row], retokenizer: Retokenizer, counts: Counter[str]) -> Encoded:
    """Encode rows of another tokenizer: sets their masks and the columns that tell where they come from."""
    carried = [row.carried for row in rows if row.carried is not None]
    encoded, masks = retokenizer.encode(carried)
    for row, one, mask in zip(rows, carried, masks, strict=True):
        row.mask = mask
        row.kept[SOURCE_TOKENS_COLUMN] = str(one.old_length)
        row.kept[LOSSY_COLUMN] = one.lossy
        if one.lossy is not None:
            counts["lossy_decode"] += 1
            counts[f"lossy_decode_{one.lossy}"] += 1
    return encoded


def _token_row(item: TokenRow, tokenizer: Tokenizer) -> Row:
    ids = np.asarray(item.input_ids, np.int64)
    if ids.ndim != 1 or not len(ids):
        raise RecordRejected(RejectReason.bad_tokens, "the row holds no ids")
    _check_ids(ids, tokenizer)
    mask = None if item.loss_mask is None else np.asarray(item.loss_mask, np.bool_)
    if mask is not None and len(mask) != len(ids):
        raise RecordRejected(
            RejectReason.bad_tokens,
            f"{count_of(len(ids), 'id')} but {count_of(len(mask), 'mask entry', 'mask entries')}",
        )
    _check_segments(item, len(ids))
    stand_in = Rendered(text="", starts=[], kinds=[], messages=[])
    return Row(stand_in, _kept(item.kept), tokens=item, mask=mask)


def _check_ids(ids: npt.NDArray[np.int64], tokenizer: Tokenizer) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= tokenizer.vocab_size))
    where = f"outside the vocabulary of {tokenizer.vocab_size}"
    if not len(wrong) and tokenizer.table is not None:
        wrong = np.flatnonzero(tokenizer.table.lengths[ids] == 0)
        where = "in a gap of the vocabulary: no token has it"
    if len(wrong):
        raise RecordRejected(RejectReason.bad_tokens, f"id {ids[wrong[0]]} at token {wrong[0]} is {where}")


def _check_segments(item: TokenRow, length: int) -> None:
    at = 0
    for start, end, kind, _ in item.segments or ():
        if start != at or end <= start or kind not in KIND_NAMES:
            detail = f"segment {start}-{end} of kind {kind!r} does not continue at token {at}"
            raise RecordRejected(RejectReason.bad_tokens, detail)
        at = end
    if item.segments is not None and at != length:
        raise RecordRejected(RejectReason.bad_tokens, f"segments cover {at:,} of {count_of(length, 'token')}")


def _prompt_row(item: Conversation, template: ChatTemplate) -> Row:
    rendered = template.render_prompt(item)
    kept = _kept(item.kept)
    kept[PROMPT_COLUMN] = orjson.dumps(item.messages[: prompt_end(item)]).decode()
    return Row(rendered, kept, trains=False)


def _kept(values: dict[str, Any]) -> dict[str, str | None]:
    """Kept values as text: JSON where they are no text already, base64 for bytes that are no UTF-8."""
    return {name: _as_text(value) for name, value in values.items()} if values else {}


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _of_bytes(value)
    try:
        return orjson.dumps(value, default=_plain).decode()
    except TypeError:  # integers past 64 bits
        return str(value)


def _plain(value: Any) -> str:
    return _of_bytes(value) if isinstance(value, bytes) else str(value)


def _of_bytes(value: bytes) -> str:
    """Columns of bytes hold texts more often than not; else base64, as JSON has them elsewhere."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _control_text(tokenizer: Tokenizer, name: str, setting: str) -> str:
    text = tokenizer.special_tokens_map.get(name, "")
    if not text:
        msg = f"{setting} asks for a {name}, but this tokenizer has none; set it under tokenizer:"
        raise RecipeError(msg)
    return str(text)
