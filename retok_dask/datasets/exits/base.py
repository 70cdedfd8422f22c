"""What all exits share: rows as flat arrays, and files that appear whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from retok_dask.datasets.digest import list_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from retok_dask.datasets.folder import OutputFolder, Published

IGNORED = -100
"""Label of a token that is no target, as PyTorch's cross entropy has it."""


@dataclass
class Rows:
    """Some rows, all arrays flat.

    Attributes:
        ids: int32, the tokens of all rows.
        mask: bool, trained or not, unshifted.
        splits: int64, rows + 1.
        names: sample id of each row; of its first document for packed rows, with
            ``-p1``, ``-p2``, ... where that is a later piece of a cut document.
        documents: tokens of each document of each row, for packed rows.
        sources: rows that packed rows were made of.
        cut: how many of those were longer than the context.
    """

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    splits: npt.NDArray[np.int64]
    names: list[str]
    documents: list[list[int]] | None = None
    sources: int | None = None
    cut: int = 0

    @classmethod
    def of(cls, samples: pa.RecordBatch) -> Rows:
        """Rows of a batch with the columns ``sample_id``, ``input_ids`` and ``loss_mask``."""
        ids, splits = list_values(samples.column("input_ids"))
        mask, _ = list_values(samples.column("loss_mask"))
        return cls(ids, mask, np.array(splits, np.int64), samples.column("sample_id").to_pylist())

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.splits)

    def row(self, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Ids and mask of one row."""
        part = slice(int(self.splits[number]), int(self.splits[number + 1]))
        return self.ids[part], self.mask[part]

    def positions(self) -> npt.NDArray[np.int32]:
        """Position of every token in its document (in its row, if rows are not packed)."""
        lengths = (
            self.lengths if self.documents is None else np.array([n for row in self.documents for n in row], np.int64)
        )
        starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
        positions: npt.NDArray[np.int32] = (np.arange(len(self.ids)) - np.repeat(starts, lengths)).astype(np.int32)
        return positions

    def labels(self) -> npt.NDArray[np.int64]:
        """Unshifted labels: the id where the token is trained, else -100.

        The first token of a document is never a label: a model that shifts
        labels by one would predict it from the document before.
        """
        labels = np.where(self.mask, self.ids, IGNORED).astype(np.int64)
        labels[self.positions() == 0] = IGNORED
        return labels


def shifted_targets(ids: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Targets for training code that does not shift by itself.

    ``targets[i]`` is what position ``i`` must predict: the next token if that
    one is trained, else -100; the last position predicts nothing.

    >>> shifted_targets(np.array([5, 6, 7]), np.array([False, True, False])).tolist()
    [6, -100, -100]
    """
    targets = np.full(len(ids), IGNORED, np.int64)
    targets[:-1] = np.where(mask[1:], ids[1:], IGNORED)
    return targets


@dataclass
class Shard:
    """Where one shard's files go.

    Attributes:
        folder: the export's folder.
        index, total: number of this shard, and of all.
        facts: ``vocab_size``, ``tokenizer`` and the like, of the run.
        files: what was published.
    """

    folder: OutputFolder
    index: int
    total: int
    facts: dict[str, Any]
    files: list[Published] = field(default_factory=list)
    _pending: list[tuple[Path, str]] = field(default_factory=list)

    def create(self, relative: str) -> Path:
        """A local path to write; it gets its final name with :meth:`publish`."""
        path = self.folder.local_temporary(f"shard-{self.index:05d}")
        self._pending.append((path, relative))
        return path

    def publish(self) -> None:
        """Give all files their final names."""
        for path, relative in self._pending:
            self.files.append(self.folder.publish(path, relative))
        self._pending.clear()

    def abandon(self) -> None:
        """Delete what was not published."""
        for path, _ in self._pending:
            path.unlink(missing_ok=True)
        self._pending.clear()


class Exit(Protocol):
    """A format. Stateless: one object may write many shards, also on many workers."""

    def write(self, rows: Iterator[Rows], shard: Shard, /) -> dict[str, Any]:
        """Write a shard's rows to files of :meth:`Shard.create`; returns what :meth:`finish` needs, as JSON values."""
        ...

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any], /) -> None:
        """Write what belongs to all shards: an index, a description."""
        ...
