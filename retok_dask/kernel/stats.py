"""What a unit counts: additive, so that units, data sets and runs are sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from retok_dask.types import KIND_NAMES, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

DECILES = 10
"""Positions within a row at which the trained share is counted."""

SHARES = 20
"""Classes of the trained share of a row: 0-5 %, 5-10 %, ..."""

_NUMBERS = (
    "records_in",
    "records_out",
    "samples",
    "truncated",
    "tokens",
    "loss_tokens",
    "text_bytes",
    "bos_rows",
    "stop_rows",
    "fallback_rows",
    "shared_tokens",
    "byte_tokens",
    "unknown_tokens",
)


@dataclass
class UnitStats:
    """Counts of a batch, a unit, a data set or a run; ``a + b`` adds them.

    ``records_in == records_out + sum(rejected) + sum(filtered)`` always holds.

    Attributes:
        records_in, records_out: input records seen, and those that gave at least one row.
        samples: rows written.
        tokens, loss_tokens: tokens of the rows, and those trained.
        text_bytes: UTF-8 bytes of the rows' text; of a row that was cut, its tokens' share.
        bos_rows, stop_rows: rows that begin with BOS / that have a stop token: canaries.
        fallback_rows: rows that the reference engine encoded in place of the fast one.
        shared_tokens: tokens that span a boundary between two spans.
        byte_tokens: tokens that are one byte of a longer character; unknown_tokens: the unknown token.
        rejected, filtered: records left out, by reason.
        counts: things changed or noticed on the way, by name.
        kind_tokens: tokens by segment kind.
        lengths: rows by length class; class ``k`` holds lengths from 2**k to 2**(k+1) - 1.
        shares: rows by trained share, in twenty classes of 5 %.
        position_tokens, position_loss_tokens: tokens, and trained ones, by
            tenth of their row.
        first_tokens: how often a row begins with an id.
        seconds: time spent, by stage.
    """

    records_in: int = 0
    records_out: int = 0
    samples: int = 0
    truncated: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    text_bytes: int = 0
    bos_rows: int = 0
    stop_rows: int = 0
    fallback_rows: int = 0
    shared_tokens: int = 0
    byte_tokens: int = 0
    unknown_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    kind_tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)
    position_tokens: Counter[str] = field(default_factory=Counter)
    position_loss_tokens: Counter[str] = field(default_factory=Counter)
    first_tokens: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __iadd__(self, other: UnitStats) -> Self:
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for item in fields(self):
            mine = getattr(self, item.name)
            if isinstance(mine, dict):
                for key, value in getattr(other, item.name).items():
                    mine[key] += value
        return self

    def __add__(self, other: UnitStats) -> UnitStats:
        total = UnitStats()
        total += self
        total += other
        return total

    @property
    def balanced(self) -> bool:
        """Whether every input record is accounted for."""
        left_out = sum(self.rejected.values()) + sum(self.filtered.values())
        return self.records_in == self.records_out + left_out

    @property
    def trained_share(self) -> float:
        """Share of tokens that are trained; 0.0 where there are none."""
        return self.loss_tokens / self.tokens if self.tokens else 0.0

    @property
    def reject_share(self) -> float:
        """Share of input records rejected; 0.0 where there are none."""
        return sum(self.rejected.values()) / self.records_in if self.records_in else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, empty tables left out."""
        data: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict) and value:
                data[item.name] = {key: value[key] for key in sorted(value)}
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Back from :meth:`to_dict`; unknown names are ignored, so that old readers read new receipts."""
        stats = cls()
        for name in _NUMBERS:
            setattr(stats, name, int(data.get(name, 0)))
        for item in fields(cls):
            if item.name in data and item.name not in _NUMBERS:
                getattr(stats, item.name).update(data[item.name])
        return stats

    def add_rows(
        self,
        ids: npt.NDArray[np.int32],
        row_splits: npt.NDArray[np.int64],
        mask: npt.NDArray[np.bool_],
        seg_kind: npt.NDArray[np.int8],
        seg_lengths: npt.NDArray[np.int32],
        seg_rows: npt.NDArray[np.int64],
        bos_id: int | None,
    ) -> npt.NDArray[np.int64]:
        """Count written rows; returns the trained tokens of each.

        Args:
            ids, row_splits, mask: the rows' tokens and loss mask, flat.
            seg_kind, seg_lengths, seg_rows: kind, tokens and row of each segment.
            bos_id: the tokenizer's BOS, if it has one.
        """
        rows = len(row_splits) - 1
        lengths = np.diff(row_splits)
        edges = row_splits[:-1, None] + (lengths[:, None] * np.arange(DECILES + 1)) // DECILES
        trained = trained_tokens(mask, edges)
        loss: npt.NDArray[np.int64] = trained.sum(axis=1)
        self.samples += rows
        self.tokens += int(lengths.sum())
        self.loss_tokens += int(loss.sum())
        kinds = np.bincount(seg_kind, weights=seg_lengths, minlength=len(Kind))
        self.kind_tokens.update({KIND_NAMES[k]: int(n) for k, n in enumerate(kinds) if n})
        stop_rows = np.zeros(rows, np.bool_)
        stop_rows[seg_rows[seg_kind == Kind.stop]] = True
        self.stop_rows += int(stop_rows.sum())
        filled = lengths > 0
        first = ids[row_splits[:-1][filled]]
        if bos_id is not None:
            self.bos_rows += int((first == bos_id).sum())
        _count(self.first_tokens, first)
        _count(self.lengths, np.log2(lengths[filled]).astype(np.int64))
        _count(self.shares, np.minimum((loss[filled] * SHARES) // lengths[filled], SHARES - 1))
        for tenth, (tokens, hits) in enumerate(
            zip(np.diff(edges, axis=1).sum(axis=0), trained.sum(axis=0), strict=True)
        ):
            self.position_tokens[str(tenth)] += int(tokens)
            self.position_loss_tokens[str(tenth)] += int(hits)
        return loss


def trained_tokens(mask: npt.NDArray[np.bool_], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Trained tokens between neighbours of the last axis of `edges`: offsets that cut the mask from end to end."""
    sizes = np.diff(edges, axis=-1)
    found = np.zeros(sizes.shape, np.int64)
    filled = sizes > 0  # of an empty stretch `reduceat` gives the token that it stands before
    if filled.any():
        found[filled] = np.add.reduceat(mask.view(np.int8), edges[..., :-1][filled], dtype=np.int32)
    return found


def count_tokens(
    ids: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_], vocab_size: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often each id is there, and how often it is trained."""
    count = np.bincount(ids, minlength=vocab_size)
    hits = np.count_nonzero(mask)
    if hits == ids.size:
        return count, count
    if 2 * hits > ids.size:  # the smaller part is counted
        return count, count - np.bincount(ids[~mask], minlength=count.size)
    return count, np.bincount(ids[mask], minlength=count.size)


def _count(counter: Counter[str], values: npt.NDArray[np.integer]) -> None:
    names, numbers = np.unique(values, return_counts=True)
    counter.update({str(name): int(number) for name, number in zip(names, numbers, strict=True)})
