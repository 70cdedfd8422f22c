"""One batch of renderings to ids and segments.

Rows of byte-level tokenizers go through one engine call and one cut of all
spans by byte lengths. The few rows for which that cannot be proved (a mark
that composes across a boundary), and all rows of other tokenizers, are
encoded by the reference with its character offsets.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.errors import count_of
from retok_dask.tokenizers import align
from retok_dask.tokenizers.bytelevel import IdTable
from retok_dask.tokenizers.engines import replace_rows
from retok_dask.tokenizers.huge import PART, WHOLE, can_encode, encode_long
from retok_dask.tokenizers.measure import Measured, lone_surrogate, measure, spans_of, worst_mark
from retok_dask.tokenizers.pieces import CannotEscape, PieceEncoder
from retok_dask.types import Encoded, RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from retok_dask.tokenizers.bytelevel import ByteTable
    from retok_dask.tokenizers.cuts import CutRule
    from retok_dask.tokenizers.engines import Engine, Flat, ReferenceEngine
    from retok_dask.tokenizers.fallback import Prefixes
    from retok_dask.tokenizers.nfc import Composer
    from retok_dask.types import Rendered

    Int32 = npt.NDArray[np.int32]
    Int64 = npt.NDArray[np.int64]

log = logging.getLogger(__name__)

SAMPLED = 1000
"""One row in so many, chosen by its text, is encoded by the reference too."""


class BatchEncoder:
    """Encodes batches for one tokenizer, with whatever engine may be trusted.

    Attributes:
        fast: the fast engine, None where the reference does everything. A
            sampled row that differs switches it off for good.
        composer: what brings texts into NFC for it, where it does not do that itself.
        guards: substrings whose rows the reference encodes.

    Args:
        table: the bytes of each id; None where tokens are placed by their characters.
        byte_level: whether ids are cut from the text's own bytes.
        prefixes: tells of blanks that are put before texts.
    """

    def __init__(
        self,
        reference: ReferenceEngine,
        table: ByteTable | None,
        rule: CutRule,
        *,
        normalize: Callable[[str], str] | None,
        added_tokens: dict[str, int],
        byte_level: bool,
        prefixes: Prefixes | None,
    ) -> None:
        self.fast: Engine | None = None
        self.composer: Composer | None = None
        self.guards: Sequence[str] = ()
        self._reference = reference
        self._table = table
        self._sizes: Int32 = table.lengths << 1 if table is not None else np.zeros(0, np.int32)
        self._size_of = IdTable(self._sizes)
        self._rule = rule
        self._normalize = normalize
        self._pieces = PieceEncoder(reference, added_tokens)
        self._byte_level = byte_level
        self._prefixes = prefixes

    def mark(self, ids: npt.NDArray[np.bool_]) -> None:
        """Note which ids may take their text out of NFC, as the lowest bit of their sizes: one look tells both."""
        self._sizes |= ids
        self._size_of = IdTable(self._sizes)

    def encode(self, rows: Sequence[Rendered]) -> Encoded:
        """Ids and segments of a batch; rows that fail are empty and named."""
        guarded = set(self._guarded(rows)) if self.fast is not None else set()
        leaves = self.fast is not None and (self._normalize is None or self.composer is not None)
        job = _Job(rows, measure(rows, self._normalize, leave=leaves, but_not=guarded), guarded)
        for number, detail in job.measured.failed.items():
            job.fail(number, RejectReason.lone_surrogate, detail)
        if max(map(len, job.texts), default=0) > WHOLE:
            for number, text in enumerate(job.texts):
                if problem := can_encode(text, self._rule):
                    job.fail(number, RejectReason.too_large, problem)
        if self._table is None:
            job.slow.update(number for number in range(len(rows)) if number not in job.failed)
            flat: Flat = np.zeros(0, np.int32), np.zeros(len(rows) + 1, np.int64)
        else:
            flat = self._encode_bytewise(job, self._table)
        return self._assemble(job, flat)

    # --- byte-level rows ---

    def _encode_bytewise(self, job: _Job, table: ByteTable) -> Flat:
        flat = self._engine_ids(job)
        job.ends = token_ends(job.lengths if job.measured_ids is flat[0] else self._lengths(flat, job.texts))
        sums = np.diff(job.ends[flat[1]])
        expected = job.measured.row_bytes()
        wrong = np.flatnonzero(sums != expected)
        suspects = [row for row in wrong.tolist() if row not in job.failed]
        suspects += [
            row
            for row, data in job.measured.normalized.items()
            if row not in suspects and table.decode(_row(flat, row)) != data
        ]
        repaired: dict[int, Int32] = {}
        for number in suspects:
            if self.fast is not None and number not in job.by_reference:
                job.by_reference.add(number)
                repaired[number] = self._reference_ids(job, number)
                ids = repaired[number]
                fits = int(self._lengths((ids, np.array([0, ids.size])), [job.texts[number]]).sum()) == expected[number]
                data = job.measured.normalized.get(number)
                if fits and (data is None or table.decode(repaired[number]) == data):
                    continue
            job.slow.add(number)
        if repaired:
            flat = replace_rows(flat, repaired)
            job.ends = token_ends(self._lengths(flat, job.texts))
        return flat

    def _lengths(self, flat: Flat, texts: Sequence[str]) -> npt.NDArray[np.integer[Any]]:
        """How many bytes of its row each token has; a blank that the tokenizer put there is none of them."""
        lengths = self._size_of.take(flat[0]) >> 1
        if self._prefixes is not None:
            self._prefixes.take_off(lengths, flat, texts)
        return lengths

    def _engine_ids(self, job: _Job) -> Flat:
        """Ids of all rows by the engine in use, sampled rows compared."""
        fast = self.fast
        composed = self._composed(job)
        escaped = {
            n: row
            for n, row in enumerate(job.rows)
            if row.escapes and n not in job.by_reference and n not in job.failed
        }
        aside = escaped.keys() | job.failed.keys() | job.by_reference
        texts = ["" if n in aside else text for n, text in enumerate(job.texts)] if aside else job.texts[:]
        flat = self._first_ids(job, texts, composed)
        if fast is not None and self._sample_differs(texts, flat):
            self.fast = None
            log.warning(
                "the fast engine gave other ids than the reference; this process uses the reference from now on"
            )
            job.by_reference.update(range(len(job.rows)))
            flat = encode_long(texts, self._reference, self._rule)
        replaced: dict[int, Int32] = {}
        engine = self.fast or self._reference
        if escaped:
            replaced, refused = self._pieces.encode_rows(
                escaped, lambda pieces: encode_long(pieces, engine, self._rule)
            )
            for number, why in refused.items():
                job.fail(number, RejectReason.encode_error, why)
        guarded = sorted((aside & job.by_reference) - replaced.keys() - job.failed.keys())
        return replace_rows(flat, replaced | {number: self._reference_ids(job, number) for number in guarded})

    def _first_ids(self, job: _Job, texts: list[str], composed: dict[int, str]) -> Flat:
        """Ids of texts by the engine in use, and what was left unmeasured; a text that is none becomes empty."""
        engine = self.fast or self._reference
        later = job.measured.later
        given = [text and composed.get(n, text) for n, text in enumerate(texts)] if composed else texts
        try:
            flat = encode_long(given, engine, self._rule)
        except UnicodeEncodeError:
            for number in [number for number in later if lone_surrogate(texts[number])]:
                job.fail(number, RejectReason.lone_surrogate, lone_surrogate(texts[number]))
                job.measured.drop(number, job.rows[number])
                texts[number] = given[number] = ""
            flat = encode_long(given, engine, self._rule)
        if not later:
            return flat
        job.measured.measure_later(job.rows)
        return flat if self._normalize is None else self._looked_at(job, flat, self._normalize)

    def _looked_at(self, job: _Job, flat: Flat, normalize: Callable[[str], str]) -> Flat:
        """Ids tell which rows measured later may not be in NFC; those that are not are encoded again."""
        measured = job.measured
        sizes = self._size_of.take(flat[0])
        job.measured_ids, job.lengths = flat[0], sizes >> 1
        places = np.flatnonzero((sizes & 1).astype(np.bool_))  # much faster than of the numbers themselves
        marked = set((np.searchsorted(flat[1], places, side="right") - 1).tolist())
        replaced: dict[int, Int32] = {}
        for number in marked.intersection(measured.later):
            row = job.rows[number]
            measured.settle(number, row, worst_mark(row.text), normalize)
            if number in measured.normalized:
                replaced[number] = self._recomposed(job, number)
        return replace_rows(flat, replaced)

    def _recomposed(self, job: _Job, number: int) -> Int32:
        assert self.fast is not None
        assert self.composer is not None
        text = self.composer.compose(job.rows[number].text)
        if text is None:
            job.by_reference.add(number)
            return self._reference_ids(job, number)
        return encode_long([text], self.fast, self._rule)[0]

    def _composed(self, job: _Job) -> dict[int, str]:
        """The rows that are not in NFC, brought into it for the fast engine; those that resist go to the reference."""
        if self.fast is None or self.composer is None:
            return {}
        found: dict[int, str] = {}
        for number in job.measured.normalized:
            row = job.rows[number]
            text = None if row.escapes else self.composer.compose(row.text)
            if text is None:
                job.by_reference.add(number)
            else:
                found[number] = text
        return found

    def _guarded(self, rows: Sequence[Rendered]) -> Iterator[int]:
        wide = [(number, row.text) for number, row in enumerate(rows) if not row.text.isascii()]
        for guard in self.guards:
            rare = guard[-1]  # the last character of a guard is, and looking for one character is nearly free
            for number, text in wide:
                if rare in text and guard in text:
                    yield number

    def _sample_differs(self, texts: Sequence[str], flat: Flat) -> bool:
        chosen = [number for number, text in enumerate(texts) if 0 < len(text) <= PART and is_sampled(text)]
        if not chosen:
            return False
        ids, splits = self._reference.encode([texts[number] for number in chosen])
        return any(
            not np.array_equal(ids[splits[i] : splits[i + 1]], _row(flat, number)) for i, number in enumerate(chosen)
        )

    def _reference_ids(self, job: _Job, number: int) -> Int32:
        row = job.rows[number]
        if row.escapes:
            return self._reference_row(job, number)[0]
        return encode_long([row.text], self._reference, self._rule)[0]

    # --- rows by character offsets ---

    def _reference_row(self, job: _Job, number: int) -> tuple[Int32, Int64]:
        row = job.rows[number]
        nothing = np.zeros(0, np.int32), np.zeros((0, 2), np.int64)
        if len(row.text) > WHOLE:
            job.fail(
                number,
                RejectReason.too_large,
                f"{count_of(len(row.text), 'character')}, and only character offsets align it",
            )
            return nothing
        if not row.escapes:
            ids, offsets = self._reference.encode_offsets(row.text)
        else:
            try:
                ids, offsets = self._pieces.encode(row.text, row.escapes)
            except CannotEscape as error:
                job.fail(number, RejectReason.encode_error, str(error))
                return nothing
        return ids, align.without_gaps(offsets, len(row.text)) if self._byte_level else offsets

    def _assemble(self, job: _Job, flat: Flat) -> Encoded:
        replaced: dict[int, Int32] = {}
        cuts: dict[int, tuple[align.Spans, Int64, int]] = {}
        for number in sorted(job.slow):
            ids, offsets = self._reference_row(job, number)
            own = align.char_spans(number, job.rows[number])
            placed = align.cuts_by_offsets(own, offsets) if number not in job.failed else None
            if placed is None:
                job.fail(number, RejectReason.alignment_failed, "tokens do not lie in the order of the text")
                continue
            replaced[number] = ids
            cuts[number] = (own, placed[0], placed[1].size)
        replaced |= {number: np.zeros(0, np.int32) for number in job.failed}
        spans = spans_of(job.rows, job.measured)
        if replaced or self._table is None:
            flat = replace_rows(flat, replaced)
            lengths = (
                self._lengths(flat, job.texts).astype(np.int64) if self._table else np.ones(flat[0].size, np.int64)
            )
            spans = align.with_token_cuts(spans, {n: (own, cut) for n, (own, cut, _) in cuts.items()}, set(job.failed))
            for number in cuts:
                lengths[flat[1][number] : flat[1][number + 1]] = 1
            job.ends = np.append(0, np.cumsum(lengths))
        segments = align.segments_by_length(spans, job.ends[1:], flat[1])
        for number, (_, _, shared) in cuts.items():
            segments.shared[number] = shared
        fallback = np.zeros(len(job.rows), np.bool_)
        fallback[sorted(job.by_reference - set(job.failed))] = True
        return Encoded(
            ids=flat[0],
            row_splits=flat[1],
            seg_splits=segments.splits,
            seg_start=segments.start,
            seg_end=segments.end,
            seg_kind=segments.kind,
            seg_message=segments.message,
            shared=segments.shared,
            fallback=fallback,
            text_bytes=job.measured.text_bytes,
            failed=job.failed,
        )


class _Job:
    """The state of one batch on its way.

    Attributes:
        ends: 0, and the bytes (or tokens, in rows cut by tokens) up to the end of each token of the batch.
        measured_ids, lengths: ids whose bytes are counted already, and how many each has.
    """

    def __init__(self, rows: Sequence[Rendered], measured: Measured, by_reference: set[int]) -> None:
        self.rows = rows
        self.texts = [row.text for row in rows]
        self.measured = measured
        self.failed: dict[int, str] = {}
        self.slow: set[int] = set()
        self.by_reference = by_reference
        self.ends: Int64 = np.zeros(1, np.int64)
        self.measured_ids: Int32 | None = None
        self.lengths: npt.NDArray[np.integer[Any]] = np.zeros(0, np.int32)

    def fail(self, number: int, reason: RejectReason, detail: str) -> None:
        self.failed.setdefault(number, f"{reason.value}: {detail}")


def is_sampled(text: str) -> bool:
    """Whether a row is one of those that the reference encodes too; depends on its text alone."""
    start = len(text) // 2  # rows often begin and end alike
    return zlib.crc32(text[start : start + 64].encode(), len(text)) % SAMPLED == 0


def token_ends(lengths: npt.NDArray[np.integer[Any]]) -> Int64:
    """0, and where each token ends in the bytes of all rows together."""
    ends = np.empty(lengths.size + 1, np.int64)
    ends[0] = 0
    ends[1:] = lengths  # before the sum, which is slow where it has to convert
    np.cumsum(ends[1:], out=ends[1:])
    return ends


def _row(flat: Flat, number: int) -> Int32:
    return flat[0][flat[1][number] : flat[1][number + 1]]
