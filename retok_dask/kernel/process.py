"""From records to Arrow batches, with every record accounted for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from retok_dask.completions import item_filter, layout_for, problem_of, record_filter
from retok_dask.kernel.canaries import BYTE_PIECE, UNKNOWN, token_classes
from retok_dask.kernel.columns import reject_batch, sample_batch
from retok_dask.kernel.items import encode_carried, encoded_tokens, row_maker
from retok_dask.kernel.pending import MEMORY, InMemory, Mark, Origin, Pending
from retok_dask.kernel.recover import recovery
from retok_dask.kernel.rows import Pieces, chunks, cut_of, lost_by_cut, may_be_refused, refusal, take_pieces
from retok_dask.kernel.shuffle import shuffled
from retok_dask.kernel.source import load_source, retokenizer_for
from retok_dask.kernel.stats import count_tokens, trained_tokens
from retok_dask.masks import LossMaskPolicy
from retok_dask.schema import kept_columns, sample_id
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
    from collections.abc import Collection, Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from retok_dask.kernel.items import Row
    from retok_dask.kernel.source import Source
    from retok_dask.kernel.stats import UnitStats
    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.templates import ChatTemplate
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Encoded, Filtered, Item


TOGETHER = 32
TOGETHER_BYTES = 64 * 1024
"""So many small records are read, then parsed, then rendered: in turns, each step would find the caches cold."""


@dataclass(slots=True)
class Batch:
    """What the kernel made of some records.

    Attributes:
        samples: rows of :func:`retok_dask.schema.sample_schema`.
        rejects: rows of :data:`retok_dask.schema.REJECT_SCHEMA`: rejected and filtered records.
        stats: the counts of exactly these records and rows.
        token_counts: how often each id is in the samples, and how often trained; None where nobody has counted.
    """

    samples: pa.RecordBatch
    rejects: pa.RecordBatch
    stats: UnitStats
    token_counts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None


class Kernel:
    """Turns records of one data set into rows.

    Pure: the same records give the same rows, however they are split over
    calls. Keeps nothing between records but the rows of the batch at hand, at
    most about ``recipe.units.batch_bytes`` of text, and the records taken together.

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
        self._recover = recovery(dataset, self.source)
        self._keep = kept_columns(recipe)
        self._chunks = recipe.documents.chunk_tokens or 0 if dataset.mode == "text" else 0
        classes = token_classes(tokenizer)
        self._ids_of = {found: np.flatnonzero(classes == found) for found in (BYTE_PIECE, UNKNOWN)}
        # the time limit of a record starts when it is read: user code, which may be slow, gets one at a time
        self._together = 1 if ":" in dataset.layout or dataset.filters.function else TOGETHER

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
            taken = self._take(source)
            read = perf_counter()
            pending.stats.seconds["read"] += read - started
            if not taken:
                break
            parsed = [self._parse(record) for record in taken]
            started = perf_counter()
            pending.stats.seconds["parse"] += started - read
            for origin, items in parsed:
                self._add(pending, origin, items)
                if pending.size >= self.recipe.units.batch_bytes:
                    pending.stats.seconds["render"] += perf_counter() - started
                    yield self._finish(pending)
                    pending = Pending(duplicates)
                    started = perf_counter()
            pending.stats.seconds["render"] += perf_counter() - started
        if pending.stats.records_in:
            yield self._finish(pending)

    def _take(self, source: Iterator[Record | Reject]) -> list[Record | Reject]:
        """The next few records; none at the end."""
        taken: list[Record | Reject] = []
        size = 0
        for record in source:
            taken.append(record)
            size += len(record.raw or b"")
            if size >= TOGETHER_BYTES or len(taken) == self._together:
                break
        return taken

    def process_items(self, items: Iterable[Item]) -> Iterator[Batch]:
        """The same for conversations, documents or rows of ids that are no records of a file."""
        return self.process(InMemory(MEMORY, number, -1, None, None, item=item) for number, item in enumerate(items))

    def left_out(self, records: Iterable[Record | Reject]) -> Iterator[Reject | Filtered]:
        """What is left out before anything is encoded; :meth:`process` finds the same, and what only ids tell."""
        for record in records:
            pending = Pending()
            self._add(pending, *self._parse(record))
            for owner in pending.owners:
                pending.origins[owner].written += 1
            pending.account()
            yield from pending.left_out

    def _parse(self, record: Record | Reject) -> tuple[Origin | Reject, list[Item]]:
        """A record's origin and items, none where it is left out."""
        if isinstance(record, Reject):
            return record, []
        origin = Origin.of(record)
        try:
            return origin, self._items(record)
        except Exception as error:  # noqa: BLE001  whatever it is, it costs this record and no other
            origin.fail(error)
        return origin, []

    def _add(self, pending: Pending, origin: Origin | Reject, items: list[Item]) -> None:
        pending.stats.records_in += 1
        if isinstance(origin, Reject):
            pending.left_out.append(origin)
            pending.size += len(origin.raw or b"")
            return
        pending.origins.append(origin)
        for number, item in enumerate(items):
            try:
                self._add_item(pending, origin, number, item)
            except Exception as error:  # noqa: BLE001  likewise
                origin.fail(error)

    def _items(self, record: Record) -> list[Item]:
        if isinstance(record, InMemory) and record.item is not None:
            wrong = problem_of(record.item, self.dataset.mode) if self._recover is None else None
            if wrong:
                raise RecordRejected(RejectReason.bad_layout, f"a {type(record.item).__name__} whose {wrong}")
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
        if pending.duplicates and origin.mark(number) in pending.duplicates:
            raise RecordFiltered(FilterReason.duplicate)
        counts = pending.stats.counts
        for row in self._rows_of(item):
            said = row.rendered
            conflict = self.policy.conflict(said.flags, said.kinds, said.messages, said.turn)
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
        encoded_at = perf_counter()
        stats.seconds["encode"] += encoded_at - started
        for row, why in encoded.failed.items():
            # the encoder names its reason in front, see Encoded.failed
            reason, _, detail = why.partition(": ")
            pending.origin(row).leave_out(RecordRejected(RejectReason(reason), detail))
        lengths = np.diff(encoded.row_splits)
        pieces = self._pieces(pending, encoded, lengths)
        encoded = encoded if pieces.are_all(lengths) else take_pieces(encoded, pieces)
        mask = self._mask(pending, pieces, encoded)
        pieces, encoded, mask = self._filter_rows(pending, pieces, encoded, mask)
        stats.fallback_rows += int(encoded.fallback.sum())
        stats.text_bytes += int(encoded.text_bytes.sum())
        if self.source is not None:
            stats.counts["source_tokens"] += pending.old_tokens(pieces)
        origins = [pending.origin(row) for row in pieces.row.tolist()]
        counts = count_tokens(encoded.ids, mask, self.tokenizer.vocab_size)
        stats.byte_tokens += int(counts[0][self._ids_of[BYTE_PIECE]].sum())
        stats.unknown_tokens += int(counts[0][self._ids_of[UNKNOWN]].sum())
        samples = self._sample_batch(pending, pieces, encoded, mask, origins)
        stats.seconds["mask"] += perf_counter() - encoded_at
        for origin in origins:
            origin.written += 1
        pending.account()
        return Batch(samples, reject_batch(pending.left_out), stats, counts)

    def _encode(self, rows: list[Row], stats: UnitStats) -> Encoded:
        if self._retokenizer is not None:
            return encode_carried(rows, self._retokenizer, stats.counts)
        if self.dataset.mode == "tokens":
            return encoded_tokens(rows)
        return self.tokenizer.encode([row.rendered for row in rows])

    def _pieces(self, pending: Pending, encoded: Encoded, lengths: npt.NDArray[np.int64]) -> Pieces:
        """Which tokens of which rows are written, by the truncation and chunking that the recipe asks for."""
        limit = self.recipe.max_length
        if not self._chunks and not encoded.failed and (limit is None or not (lengths > limit).any()):
            return Pieces.whole(lengths)
        overlap = self.recipe.documents.overlap_tokens
        places = []
        for row, length in enumerate(lengths.tolist()):
            if row in encoded.failed:
                continue
            if self._chunks:
                places += [(row, start, end) for start, end in chunks(length, self._chunks, overlap)]
                continue
            start, end = cut_of(encoded, row, length, self.recipe)
            lost = lost_by_cut(self.policy, encoded, row, (start, end, length), pending.rows[row], limit)
            if lost is not None:
                pending.origin(row).leave_out(lost)
                continue
            places.append((row, start, end))
        return Pieces.of(places, lengths)

    def _mask(self, pending: Pending, pieces: Pieces, encoded: Encoded) -> npt.NDArray[np.bool_]:
        rows = pending.rows_of(pieces)
        flags = [row.rendered.flags for row in rows]
        mask = self.policy.apply(
            encoded.seg_splits,
            encoded.seg_start,
            encoded.seg_end,
            encoded.seg_kind,
            encoded.seg_message,
            flags=flags if any(flags) else None,
            turns=np.array([row.rendered.turn for row in rows], np.int64),
        )
        for number, row in enumerate(rows):
            if row.mask is not None or not row.trains:
                part = slice(int(encoded.row_splits[number]), int(encoded.row_splits[number + 1]))
                mask[part] = False if row.mask is None else row.mask[pieces.start[number] : pieces.end[number]]
        return mask

    def _filter_rows(
        self, pending: Pending, pieces: Pieces, encoded: Encoded, mask: npt.NDArray[np.bool_]
    ) -> tuple[Pieces, Encoded, npt.NDArray[np.bool_]]:
        """Leave out rows that the filters refuse, each counted with its reason."""
        rules = self.dataset.filters
        lengths, loss = pieces.lengths, trained_tokens(mask, encoded.row_splits)
        trains = np.array([row.trains for row in pending.rows_of(pieces)], np.bool_)
        stays = np.ones(len(pieces), np.bool_)
        for number in may_be_refused(rules, lengths, loss, trains).tolist():
            length, cut = int(lengths[number]), bool(pieces.cut[number])
            refused = refusal(rules, length, int(loss[number]), trains=bool(trains[number]), cut=cut)
            if refused is not None:
                pending.origin(int(pieces.row[number])).leave_out(RecordFiltered(*refused))
                stays[number] = False
        if stays.all():
            return pieces, encoded, mask
        stay = np.flatnonzero(stays)
        rest = take_pieces(encoded, Pieces.whole(lengths).take(stay))
        return pieces.take(stay), rest, mask[np.repeat(stays, lengths)]

    def _sample_batch(
        self,
        pending: Pending,
        pieces: Pieces,
        encoded: Encoded,
        mask: npt.NDArray[np.bool_],
        origins: list[Origin],
    ) -> pa.RecordBatch:
        stats = pending.stats
        rows = pending.rows_of(pieces)
        truncated = np.zeros(len(rows), np.bool_) if self._chunks else pieces.cut
        loss = stats.add_rows(
            encoded.ids,
            encoded.row_splits,
            mask,
            encoded.seg_kind,
            encoded.seg_end - encoded.seg_start,
            np.repeat(np.arange(len(rows)), np.diff(encoded.seg_splits)),
            self.tokenizer.bos_id,
        )
        stats.truncated += int(truncated.sum())
        stats.shared_tokens += int(encoded.shared.sum())
        return sample_batch(
            encoded,
            mask,
            loss,
            sample_ids=self._sample_ids(rows, origins, pieces),
            truncated=truncated,
            files=[origin.file for origin in origins],
            rows=[origin.row for origin in origins],
            flags=[_flags_text(row.rendered.flags) for row in rows],
            kept=[row.kept for row in rows] if self._keep else (),
            keep=self._keep,
        )

    def _sample_ids(self, rows: list[Row], origins: list[Origin], pieces: Pieces) -> list[str]:
        """The name of each piece; the chunks of a row are numbered."""
        chunk = itertools.repeat(-1)
        if self._chunks:
            first = np.searchsorted(pieces.row, pieces.row)
            chunk = iter((np.arange(len(pieces)) - first).tolist())
        name = self.dataset.name
        return [
            sample_id(name, *origin.mark(row.item), row.rendered.turn, number)
            for row, origin, number in zip(rows, origins, chunk, strict=False)
        ]


def _flags_text(flags: list[bool | None]) -> str | None:
    return orjson.dumps(flags).decode() if flags and any(flag is not None for flag in flags) else None
