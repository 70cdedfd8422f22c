"""From records to Arrow batches, with every record accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from retok_dask.completions import item_filter, layout_for, record_filter
from retok_dask.kernel.canaries import BYTE_PIECE, UNKNOWN, token_classes
from retok_dask.kernel.columns import reject_batch, sample_batch
from retok_dask.kernel.items import encode_carried, encoded_tokens, row_maker
from retok_dask.kernel.pending import MEMORY, InMemory, Mark, Origin, Pending
from retok_dask.kernel.recover import Recoverer
from retok_dask.kernel.rows import Piece, chunks, cut_of, is_whole, refusal, take_pieces
from retok_dask.kernel.shuffle import shuffled
from retok_dask.kernel.source import load_source, retokenizer_for
from retok_dask.kernel.stats import trained_tokens
from retok_dask.masks import LossMaskPolicy
from retok_dask.schema import SOURCE_TOKENS_COLUMN, kept_columns, sample_id
from retok_dask.types import (
    FilterReason,
    Record,
    RecordFiltered,
    RecordRejected,
    Reject,
    RejectReason,
    TokenRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from retok_dask.kernel.items import Row
    from retok_dask.kernel.source import Source
    from retok_dask.kernel.stats import UnitStats
    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.templates import ChatTemplate
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Encoded, Item


@dataclass(slots=True)
class Batch:
    """What the kernel made of some records.

    Attributes:
        samples: rows of :func:`retok_dask.schema.sample_schema`.
        rejects: rows of :data:`retok_dask.schema.REJECT_SCHEMA`: rejected and filtered records.
        stats: the counts of exactly these records and rows.
    """

    samples: pa.RecordBatch
    rejects: pa.RecordBatch
    stats: UnitStats


class Kernel:
    """Turns records of one data set into rows.

    Pure: the same records give the same rows, however they are split over
    calls. Keeps nothing between records but the rows of the batch at hand, at
    most about ``recipe.units.batch_bytes`` of text plus one record.

    Args:
        recipe: the run's recipe.
        dataset: the data set that the records belong to.
        tokenizer: the tokenizer to encode with.
        template: the chat template; may be None where no conversation is rendered.
        source: what made the rows, for a data set of ids of another tokenizer;
            loaded here where it is not given.

    Raises:
        RecipeError: a plug-in or policy that the data set names does not
            exist, or the table of control tokens is incomplete.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: DatasetSpec,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        source: Source | None = None,
    ) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.tokenizer = tokenizer
        self.policy = LossMaskPolicy(recipe.mask)
        self._layout = layout_for(dataset)
        self._check_record = record_filter(dataset)
        self._check_item = item_filter(dataset)
        self.source = source or load_source(recipe, dataset)
        self._retokenizer = retokenizer_for(dataset, self.source, tokenizer)
        self._rows_of = row_maker(recipe, dataset, tokenizer, template, self._retokenizer)
        self._recover = _recovery(dataset, self.source)
        self._keep = kept_columns(recipe)
        self._classes = token_classes(tokenizer)

    @property
    def token_table(self) -> list[dict[str, Any]]:
        """What becomes of each control token of the source tokenizer; empty where ids are not re-encoded."""
        return [] if self._retokenizer is None else self._retokenizer.table.to_dict()

    def process(self, records: Iterable[Record | Reject], duplicates: Collection[Mark] = ()) -> Iterator[Batch]:
        """Yield a batch for about every ``batch_bytes`` of text.

        Args:
            records: the records, in order.
            duplicates: items that are left out because their content came
                before: file, byte offset (or row), number within the record.

        Where the recipe shuffles documents, the records are those of one unit:
        its counts come batch by batch, its rows at the end.
        """
        if self.dataset.mode == "text" and self.recipe.documents.shuffle:
            yield from shuffled(self._process(records, duplicates), self.dataset.seed)
        else:
            yield from self._process(records, duplicates)

    def _process(self, records: Iterable[Record | Reject], duplicates: Collection[Mark]) -> Iterator[Batch]:
        pending = Pending(duplicates)
        source = iter(records)
        while True:
            started = perf_counter()
            record = next(source, None)
            pending.stats.seconds["read"] += perf_counter() - started
            if record is None:
                break
            self._add(pending, record)
            if pending.size >= self.recipe.units.batch_bytes:
                yield self._finish(pending)
                pending = Pending(duplicates)
        if pending.stats.records_in:
            yield self._finish(pending)

    def process_items(self, items: Iterable[Item]) -> Iterator[Batch]:
        """The same for conversations, documents or rows of ids that are no records of a file."""
        return self.process(InMemory(MEMORY, number, -1, None, None, item=item) for number, item in enumerate(items))

    def _add(self, pending: Pending, record: Record | Reject) -> None:
        pending.stats.records_in += 1
        if isinstance(record, Reject):
            pending.left_out.append(record)
            pending.size += len(record.raw or b"")
            return
        started = perf_counter()
        if record.counts:
            pending.stats.counts.update(record.counts)
        origin = Origin.of(record)
        pending.origins.append(origin)
        items: list[Item] = []
        with origin:
            items = self._items(record)
        parsed = perf_counter()
        pending.stats.seconds["parse"] += parsed - started
        for number, item in enumerate(items):
            with origin:
                self._add_item(pending, origin, number, item)
        pending.stats.seconds["render"] += perf_counter() - parsed

    def _items(self, record: Record) -> list[Item]:
        if isinstance(record, InMemory) and record.item is not None:
            return [record.item]
        self._check_record(record)
        items = self._layout(record)
        if not items:
            raise RecordRejected(RejectReason.empty_conversation, "holds nothing")
        return items

    def _add_item(self, pending: Pending, origin: Origin, number: int, item: Item) -> None:
        if self._recover is not None and isinstance(item, TokenRow):
            item = self._recover(item)
        self._check_item(item)
        pending.check_duplicate(origin.mark(number))
        counts = pending.stats.counts
        for row in self._rows_of(item):
            conflict = self.policy.conflict(row.rendered.flags)
            if conflict:
                origin.leave_out(RecordRejected(RejectReason.flag_conflict, conflict))
                continue
            row.item = number
            pending.rows.append(row)
            pending.owners.append(len(pending.origins) - 1)
            pending.size += row.size
            for name, count in row.rendered.counts.items():
                counts[name] += count
        for name, count in item.counts.items():
            counts[name] += count

    def _finish(self, pending: Pending) -> Batch:
        """Encode, mask, cut and filter the pending rows; count; build the Arrow batches."""
        stats = pending.stats
        started = perf_counter()
        encoded = self._encode(pending.rows, stats)
        stats.fallback_rows += encoded.fallback_rows
        stats.text_bytes += encoded.text_bytes
        encoded_at = perf_counter()
        stats.seconds["encode"] += encoded_at - started
        for row, why in encoded.failed.items():
            # the encoder names its reason in front, see Encoded.failed
            reason, _, detail = why.partition(": ")
            pending.origin(row).leave_out(RecordRejected(RejectReason(reason), detail))
        pieces, chunked = self._pieces(pending, encoded)
        encoded = encoded if is_whole(encoded, pieces) else take_pieces(encoded, pieces)
        mask = self._mask(pending, pieces, encoded)
        pieces, encoded, mask = self._filter_rows(pending, pieces, encoded, mask)
        samples = self._sample_batch(pending, pieces, encoded, mask, chunked)
        stats.seconds["mask"] += perf_counter() - encoded_at
        for piece in pieces:
            pending.origin(piece.row).written += 1
        pending.account()
        return Batch(samples, reject_batch(pending.left_out), stats)

    def _encode(self, rows: list[Row], stats: UnitStats) -> Encoded:
        if self._retokenizer is not None:
            encoded = encode_carried(rows, self._retokenizer, stats.counts)
        elif self.dataset.mode == "tokens":
            encoded = encoded_tokens(rows)
        else:
            encoded = self.tokenizer.encode([row.rendered for row in rows])
        for row, length in zip(rows, np.diff(encoded.row_splits).tolist(), strict=True):
            row.length = length
        return encoded

    def _pieces(self, pending: Pending, encoded: Encoded) -> tuple[list[Piece], bool]:
        """Which tokens of which rows are written, by the truncation and chunking that the recipe asks for."""
        size = self.recipe.documents.chunk_tokens if self.dataset.mode == "text" else None
        overlap = self.recipe.documents.overlap_tokens
        pieces = []
        for row, length in enumerate(np.diff(encoded.row_splits).tolist()):
            if row in encoded.failed:
                continue
            if size is not None:
                pieces += [Piece(row, start, end) for start, end in chunks(length, size, overlap)]
                continue
            start, end = cut_of(encoded, row, length, self.recipe)
            if end <= start < length:
                pending.origin(row).leave_out(
                    RecordFiltered(FilterReason.too_long, f"{length} tokens, limit {self.recipe.max_length}")
                )
                continue
            pieces.append(Piece(row, start, end))
        return pieces, size is not None

    def _mask(self, pending: Pending, pieces: list[Piece], encoded: Encoded) -> npt.NDArray[np.bool_]:
        rows = [pending.rows[piece.row] for piece in pieces]
        mask = self.policy.apply(
            encoded.seg_splits,
            encoded.seg_start,
            encoded.seg_end,
            encoded.seg_kind,
            encoded.seg_message,
            flags=[row.rendered.flags for row in rows] if any(row.rendered.flags for row in rows) else None,
            turns=np.array([row.rendered.turn for row in rows], np.int64),
        )
        for number, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
            if row.mask is not None or not row.trains:
                part = slice(int(encoded.row_splits[number]), int(encoded.row_splits[number + 1]))
                mask[part] = False if row.mask is None else row.mask[piece.start : piece.end]
        return mask

    def _filter_rows(
        self, pending: Pending, pieces: list[Piece], encoded: Encoded, mask: npt.NDArray[np.bool_]
    ) -> tuple[list[Piece], Encoded, npt.NDArray[np.bool_]]:
        """Leave out rows that the filters refuse, each counted with its reason."""
        loss = trained_tokens(mask, encoded.row_splits).tolist()
        stay = []
        for number, piece in enumerate(pieces):
            row = pending.rows[piece.row]
            length = piece.end - piece.start
            refused = refusal(self.dataset.filters, length, loss[number], trains=row.trains, cut=length < row.length)
            if refused is None:
                stay.append(number)
            else:
                pending.origin(piece.row).leave_out(RecordFiltered(*refused))
        if len(stay) == len(pieces):
            return pieces, encoded, mask
        chosen = [Piece(n, 0, int(encoded.row_splits[n + 1] - encoded.row_splits[n])) for n in stay]
        parts = [mask[int(encoded.row_splits[n]) : int(encoded.row_splits[n + 1])] for n in stay]
        kept_mask = np.concatenate(parts) if parts else np.zeros(0, np.bool_)
        return [pieces[n] for n in stay], take_pieces(encoded, chosen), kept_mask

    def _sample_batch(
        self,
        pending: Pending,
        pieces: list[Piece],
        encoded: Encoded,
        mask: npt.NDArray[np.bool_],
        chunked: bool,
    ) -> pa.RecordBatch:
        stats = pending.stats
        rows = [pending.rows[piece.row] for piece in pieces]
        origins = [pending.origin(piece.row) for piece in pieces]
        truncated = [
            not chunked and piece.end - piece.start < row.length for row, piece in zip(rows, pieces, strict=True)
        ]
        loss = stats.add_rows(
            encoded.ids,
            encoded.row_splits,
            mask,
            encoded.seg_kind,
            encoded.seg_end - encoded.seg_start,
            np.repeat(np.arange(len(rows)), np.diff(encoded.seg_splits)),
            self.tokenizer.bos_id,
        )
        classes = self._classes.take(encoded.ids)
        stats.byte_tokens += int(np.count_nonzero(classes == BYTE_PIECE))
        stats.unknown_tokens += int(np.count_nonzero(classes == UNKNOWN))
        stats.truncated += sum(truncated)
        stats.shared_tokens += int(encoded.shared.sum())
        return sample_batch(
            encoded,
            mask,
            loss,
            sample_ids=self._sample_ids(rows, origins, pieces, chunked),
            truncated=truncated,
            files=[origin.record.file for origin in origins],
            rows=[origin.record.row for origin in origins],
            flags=[_flags_text(row.rendered.flags) for row in rows],
            kept=[row.kept for row in rows],
            keep=self._keep,
        )

    def _sample_ids(self, rows: list[Row], origins: list[Origin], pieces: list[Piece], chunked: bool) -> list[str]:
        names = []
        chunk = -1
        for number, (row, origin) in enumerate(zip(rows, origins, strict=True)):
            same_row = number > 0 and pieces[number].row == pieces[number - 1].row
            chunk = (chunk + 1 if same_row else 0) if chunked else -1
            file, position, item = origin.mark(row.item)
            names.append(sample_id(self.dataset.name, file, position, item, row.rendered.turn, chunk))
        return names


def _recovery(dataset: DatasetSpec, source: Source | None) -> Callable[[TokenRow], Item] | None:
    """What makes conversations or documents of the rows of a written run, where they are wanted."""
    if dataset.format != "retok" or dataset.mode == "tokens" or source is None:
        return None
    recoverer = Recoverer(source, prompts=dataset.mode == "prompts")
    read_back = recoverer.document if dataset.mode == "text" else recoverer.conversation

    def recover(row: TokenRow) -> Item:
        item = read_back(row)
        item.kept[SOURCE_TOKENS_COLUMN] = str(len(row.input_ids))
        item.counts["source_tokens"] = len(row.input_ids)
        return item

    return recover


def _flags_text(flags: list[bool | None]) -> str | None:
    return orjson.dumps(flags).decode() if any(flag is not None for flag in flags) else None
