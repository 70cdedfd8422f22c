"""Rows of a unit in an order that a seed decides, in bounded memory.

The order is that of a hash of seed and sample id: the same for the same rows,
however they came in batches, and whether they fitted into memory or not.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from retok_dask.kernel.stats import UnitStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from retok_dask.kernel.process import Batch

MEMORY_BYTES = 256 * 1024 * 1024
"""Rows held in memory; a unit with more goes through files on the local disk."""

BUCKETS = 64
"""Parts that such a unit is cut into by the first bits of its rows' hashes; one of them is in memory at a time."""

ROWS_A_BATCH = 4096


def shuffled(batches: Iterable[Batch], seed: int, *, memory: int = MEMORY_BYTES) -> Iterator[Batch]:
    """The same batches with their counts at once and their rows at the end, shuffled.

    Args:
        batches: of one unit.
        seed: the data set's.
        memory: bytes of rows that may be held.
    """
    with tempfile.TemporaryDirectory(prefix="retok-shuffle-") as scratch:
        store = _Store(Path(scratch), seed, memory)
        last = None
        for batch in batches:
            store.add(batch.samples)
            last = batch
            yield type(batch)(batch.samples.slice(0, 0), batch.rejects, batch.stats)
        if last is None:
            return
        for samples in store.ordered():
            yield type(last)(samples, last.rejects.slice(0, 0), UnitStats())


class _Store:
    """Rows with their hashes, in memory until there are too many."""

    def __init__(self, folder: Path, seed: int, memory: int) -> None:
        self._folder = folder
        self._seed = str(seed).encode()
        self._memory = memory
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def add(self, samples: pa.RecordBatch) -> None:
        if not samples.num_rows:
            return
        self._held.append(samples)
        self._bytes += samples.nbytes
        if self._bytes > self._memory:
            self._spill()

    def ordered(self) -> Iterator[pa.RecordBatch]:
        """All rows by their hash."""
        if not self._writers:
            yield from self._sorted(self._held)
            return
        self._spill()
        for bucket in sorted(self._writers):
            self._writers[bucket].close()
            with pa.OSFile(str(self._path(bucket))) as file, pa.ipc.open_stream(file) as stream:
                yield from self._sorted(list(stream))
            self._path(bucket).unlink()

    def _spill(self) -> None:
        """Move what is held to the file of its bucket."""
        for batch in self._held:
            buckets = self._keys(batch) // np.uint64(2**64 // BUCKETS)
            for bucket in np.unique(buckets).tolist():
                if bucket not in self._writers:
                    self._writers[bucket] = pa.ipc.new_stream(str(self._path(bucket)), batch.schema)
                self._writers[bucket].write_batch(batch.take(pa.array(np.flatnonzero(buckets == bucket))))
        self._held, self._bytes = [], 0

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket}.arrow"

    def _keys(self, batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        names = batch.column("sample_id").to_pylist()
        digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8, key=self._seed).digest() for name in names)
        return np.frombuffer(digests, ">u8").astype(np.uint64)

    def _sorted(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        keys = np.concatenate([self._keys(batch) for batch in batches])
        order = np.argsort(keys, kind="stable")
        firsts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        for start in range(0, len(order), ROWS_A_BATCH):
            yield _taken(batches, firsts, order[start : start + ROWS_A_BATCH])


def _taken(batches: list[pa.RecordBatch], firsts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows by number over several batches; no more of them is copied than is asked for."""
    owners = np.searchsorted(firsts, rows, side="right") - 1
    places: dict[int, list[int]] = defaultdict(list)
    for place, owner in enumerate(owners.tolist()):
        places[owner].append(place)
    pieces, at = [], np.zeros(len(rows), np.int64)
    done = 0
    for owner, mine in places.items():
        pieces.append(batches[owner].take(pa.array(rows[mine] - firsts[owner])))
        at[mine] = np.arange(done, done + len(mine))
        done += len(mine)
    joined = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
    return joined.take(pa.array(at))
