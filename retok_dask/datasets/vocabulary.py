"""Which tokens a run holds, how often, and how often trained: for draft vocabularies and a look at the data."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.digest import list_values
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.rows import read_batches
from retok_dask.errors import OutputError, count_of
from retok_dask.kernel.stats import count_tokens
from retok_dask.schema import numbers, sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.datasets.reader import TokenDataset
    from retok_dask.recipe import StorageSpec

Counts = npt.NDArray[np.int64]

VOCABULARY_SCHEMA = pa.schema(
    [
        pa.field("token", pa.int32(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("trained", pa.int64(), nullable=False),
    ]
)
"""Schema of ``_retok/vocabulary/<dataset>/<unit>.parquet``: only tokens that occur, ascending."""


class TokenCounts:
    """How often each token occurs, and how often it is trained.

    Attributes:
        count, trained: int64, by token id; as long as the largest id seen.
    """

    def __init__(self, count: Counts | None = None, trained: Counts | None = None) -> None:
        self.count: Counts = np.zeros(0, np.int64) if count is None else count
        self.trained: Counts = np.zeros(0, np.int64) if trained is None else trained

    def update(self, samples: pa.RecordBatch) -> None:
        """Count the rows of a batch with the columns ``input_ids`` and ``loss_mask``."""
        ids, _ = list_values(samples.column("input_ids"))
        mask, _ = list_values(samples.column("loss_mask"))
        self.add(*count_tokens(ids, mask))

    def add(self, count: Counts, trained: Counts) -> None:
        """Add what somebody else has counted."""
        self.count = _sum(self.count, count)
        self.trained = _sum(self.trained, trained)

    def __iadd__(self, other: TokenCounts) -> Self:
        self.add(other.count, other.trained)
        return self

    def to_table(self) -> pa.Table:
        """As a table of :data:`VOCABULARY_SCHEMA`."""
        tokens = np.flatnonzero(self.count != 0)  # much faster than of the numbers themselves
        trained = np.zeros(len(self.count), np.int64)
        trained[: len(self.trained)] = self.trained
        columns = [numbers(tokens.astype(np.int32)), numbers(self.count[tokens]), numbers(trained[tokens])]
        return pa.Table.from_arrays(columns, schema=VOCABULARY_SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table) -> TokenCounts:
        tokens = table.column("token").to_numpy()
        size = int(tokens.max()) + 1 if len(tokens) else 0
        made = cls(np.zeros(size, np.int64), np.zeros(size, np.int64))
        made.count[tokens] = table.column("count").to_numpy()
        made.trained[tokens] = table.column("trained").to_numpy()
        return made


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a drafter may write, and its maps to the target's vocabulary.

    Attributes:
        tokens: int64, ids of the target's vocabulary, ascending; place is the drafter's id.
        coverage: share of the counted tokens that are among them.
        d2t: int64, one a draft id: what to add to it to get the target's id.
        t2d: bool, one a target id: whether the drafter has it.
    """

    tokens: Counts
    coverage: float
    d2t: Counts
    t2d: npt.NDArray[np.bool_]

    def save(self, folder: str | Path, storage: StorageSpec | None = None) -> list[str]:
        """Write ``draft_tokens.npy``, ``d2t.npy`` and ``t2d.npy``, each whole or not at all; gives their URLs."""
        target = OutputFolder(str(folder), storage, temporary=".")
        written = []
        for name, values in (("draft_tokens", self.tokens), ("d2t", self.d2t), ("t2d", self.t2d)):
            buffer = io.BytesIO()
            np.save(buffer, values)
            written.append(target.url_of(target.write_bytes(f"{name}.npy", buffer.getvalue()).path))
        return written


def token_counts(data: TokenDataset) -> dict[str, TokenCounts]:
    """Token counts of each data set of a view (row bounds are not looked at).

    Merged from what each unit counted while it was written; a unit without
    that file is read.
    """
    found: dict[str, TokenCounts] = {name: TokenCounts() for name in data.dataset_names}
    for unit, counts in zip(
        data.units, data.folder.parallel(lambda u: unit_counts(data.folder, u), data.units), strict=True
    ):
        found[unit.dataset] += counts
    return found


def unit_counts(folder: OutputFolder, unit: UnitEntry) -> TokenCounts:
    """Token counts of one unit."""
    record = unit.output("vocabulary")
    if record is not None:
        with folder.open_input(record.path) as source:
            return TokenCounts.from_table(pq.read_table(source))
    counts = TokenCounts()
    samples = unit.output("samples")
    schema = pa.schema([sample_schema().field(name) for name in ("input_ids", "loss_mask")])
    for batch in read_batches(folder, samples.path, schema) if samples is not None else ():
        counts.update(batch)
    return counts


def total_counts(parts: Iterable[TokenCounts]) -> TokenCounts:
    """The sum of several counts."""
    total = TokenCounts()
    for part in parts:
        total += part
    return total


def coverage_curve(counts: Counts, sizes: Sequence[int]) -> list[float]:
    """Share of all occurrences that the most frequent ``size`` tokens make up, for each size."""
    ordered = np.sort(counts)[::-1]
    sums = np.concatenate([[0], np.cumsum(ordered)])
    total = max(int(sums[-1]), 1)
    return [float(sums[min(size, len(ordered))]) / total for size in sizes]


def draft_vocabulary(
    counts: TokenCounts, size: int, vocab_size: int, *, trained: bool = True, always: Sequence[int] = ()
) -> DraftVocabulary:
    """The most frequent tokens, and the maps that EAGLE-3 drafters use.

    Of equally frequent tokens the one with the smaller id is taken.

    Args:
        counts: of the data the drafter will see.
        size: tokens of the drafter's vocabulary.
        vocab_size: tokens of the target's.
        trained: count only trained tokens: a drafter writes nothing else.
        always: ids that must be in, such as stop tokens.

    Raises:
        OutputError: the sizes do not fit.
    """
    used = counts.trained if trained else counts.count
    if not max(1, len(always)) <= size <= vocab_size or len(used) > vocab_size:
        msg = f"a draft vocabulary of {count_of(size, 'token')} ({len(always):,} always) does not fit a vocabulary of {vocab_size:,}"
        raise OutputError(msg)
    frequency = np.zeros(vocab_size, np.int64)
    frequency[: len(used)] = used
    rank = frequency.copy()
    rank[list(always)] = np.iinfo(np.int64).max
    tokens = np.sort(np.argsort(-rank, kind="stable")[:size]).astype(np.int64)
    member = np.zeros(vocab_size, np.bool_)
    member[tokens] = True
    coverage = float(frequency[tokens].sum()) / max(int(frequency.sum()), 1)
    return DraftVocabulary(tokens, coverage, tokens - np.arange(size), member)


def _sum(total: Counts, more: Any) -> Counts:
    """The first of two counts with the second added, in its own memory where that is long enough."""
    if len(total) < len(more):
        total, grown = np.zeros(len(more), np.int64), total
        total[: len(grown)] = grown
    total[: len(more)] += more
    return total
