"""Writing a unit: batches in, files with their final names and a receipt out."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retok_dask.datasets.digest import ContentDigest
from retok_dask.datasets.receipts import FileRecord, Receipt, write_receipt
from retok_dask.datasets.vocabulary import TokenCounts
from retok_dask.errors import OutputError
from retok_dask.kernel.stats import UnitStats
from retok_dask.schema import REJECT_SCHEMA, sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from retok_dask.datasets.folder import OutputFolder
    from retok_dask.datasets.vocabulary import Counts

MiB = 1024 * 1024
ROW_GROUP_BYTES = 16 * MiB
"""Arrow bytes after which a row group is written; one row larger than this is a group of its own."""

ROW_GROUP_ELEMENTS = 1 << 27
"""Tokens a row group, far below the 2^31 that 32-bit list offsets can count."""

ZSTD_LEVEL = 2
"""Ids take less room than at level 1, in about the same time; level 3 saves little more and takes longer."""

DICTIONARY_COLUMNS = ("source_file", "outcome", "reason", "segments.list.element.kind")
"""Ids are never dictionary-encoded: it costs time and, with this many values, space.

BYTE_STREAM_SPLIT would save time and some space; but DuckDB 1.2 and
fastparquet read no integers in it.
"""


class SampleBatch(Protocol):
    """What the kernel yields; :class:`retok_dask.kernel.Batch`."""

    @property
    def samples(self) -> pa.RecordBatch: ...
    @property
    def rejects(self) -> pa.RecordBatch: ...
    @property
    def stats(self) -> UnitStats: ...
    @property
    def token_counts(self) -> tuple[Counts, Counts] | None: ...


class UnitLike(Protocol):
    """What the writer needs of :class:`retok_dask.completions.Unit`."""

    @property
    def id(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


class ParquetSink:
    """A Parquet file whose row groups are bounded by bytes, whatever the length of rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._bytes = 0
        self._elements = 0
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[name for name in DICTIONARY_COLUMNS if name.partition(".")[0] in schema.names],
            write_statistics=[f.name for f in schema if not pa.types.is_nested(f.type)],
            data_page_size=MiB,
            write_batch_size=MiB // 16,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch; the schema is a contract and is not widened.

        Raises:
            OutputError: the batch has another schema.
        """
        if not batch.schema.equals(self.schema):
            msg = f"a batch has schema\n{batch.schema}\nbut the file has\n{self.schema}"
            raise OutputError(msg)
        for piece, size, elements in _pieces(batch):
            full = self._bytes + size > ROW_GROUP_BYTES or self._elements + elements > ROW_GROUP_ELEMENTS
            if full and self._pending:
                self._flush()
            self._pending.append(piece)
            self._bytes += size
            self._elements += elements
        self.rows += batch.num_rows

    def close(self) -> None:
        """Write what is pending and the footer."""
        if self._pending:
            self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the handle without caring for what is in the file."""
        self._pending.clear()
        self._writer.close()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._pending, self._bytes, self._elements = [], 0, 0


class UnitWriter:
    """Writes one unit; its files and then its receipt appear when the block ends well.

    Two attempts of one unit may run at once: each writes under its own
    temporary name, the content is the same, and the last receipt agrees with
    the files or is not believed.

    Args:
        folder: the run's folder.
        unit: the unit; its id names the files.
        keep: kept columns of the recipe, in its order.
        attempt: a name of this attempt, for the receipt and temporary files.
        fingerprint: digest of the run's fingerprint.

    Example:
        with UnitWriter(folder, unit, keep=(), attempt="1") as writer:
            for batch in kernel.process(records):
                writer.write(batch)
        writer.receipt.summary["rows"]
    """

    def __init__(
        self,
        folder: OutputFolder,
        unit: UnitLike,
        keep: Sequence[str] = (),
        attempt: str = "1",
        *,
        fingerprint: str = "",
    ) -> None:
        self.folder = folder
        self.unit = unit
        self.attempt = attempt
        self.fingerprint = fingerprint
        self.receipt: Receipt | None = None
        self._digest = ContentDigest()
        self._tokens = TokenCounts()
        self._summary = _Summary()
        self._stats = UnitStats()
        self._schemas = {"samples": sample_schema(keep), "rejects": REJECT_SCHEMA}
        self._files: dict[str, Path] = {}
        self._sinks: dict[str, ParquetSink] = {}

    def __enter__(self) -> Self:
        for role, schema in self._schemas.items():
            self._files[role] = self.folder.local_temporary(f"{self.unit.id}-{self.attempt}-{role}")
            self._sinks[role] = ParquetSink(self._files[role], schema)
        return self

    def write(self, batch: SampleBatch) -> None:
        """Append the samples, rejects and counts of a batch."""
        started = perf_counter()
        self._sinks["samples"].write(batch.samples)
        self._digest.update(batch.samples)
        if batch.token_counts is None:
            self._tokens.update(batch.samples)
        else:
            self._tokens.add(*batch.token_counts)
        self._summary.update(batch.samples)
        self.write_rejects(batch.rejects)
        self.add_stats(batch.stats)
        self._stats.seconds["write"] += perf_counter() - started

    def write_rejects(self, rejects: pa.RecordBatch) -> None:
        """Append rejects alone; their counts must come by :meth:`add_stats`."""
        self._sinks["rejects"].write(rejects)

    def add_stats(self, stats: UnitStats) -> None:
        """Add counts alone."""
        self._stats += stats

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            for role, sink in self._sinks.items():
                sink.abandon()
                self._files[role].unlink(missing_ok=True)

    def _publish(self) -> None:
        started = perf_counter()
        outputs = [self._publish_file("samples", self.folder.data(self.unit.dataset, self.unit.id))]
        rejects = self.folder.rejects(self.unit.dataset, self.unit.id)
        if self._sinks["rejects"].rows:
            outputs.append(self._publish_file("rejects", rejects))
        else:
            self.folder.remove([rejects])
        self._stats.seconds["write"] += perf_counter() - started
        outputs.append(self._publish_vocabulary())
        self.receipt = Receipt(
            unit=self.unit.id,
            dataset=self.unit.dataset,
            outputs=tuple(outputs),
            stats=self._stats.to_dict(),
            summary=self._summary.to_dict(),
            content_digest=self._digest.hex,
            source=self.unit.to_dict(),
            fingerprint=self.fingerprint,
            attempt=self.attempt,
        )
        write_receipt(self.folder, self.receipt)

    def _publish_file(self, role: str, relative: str) -> FileRecord:
        sink = self._sinks[role]
        sink.close()
        published = self.folder.publish(self._files[role], relative)
        return FileRecord(role, published.path, published.size, published.sha256, sink.rows)

    def _publish_vocabulary(self) -> FileRecord:
        """The unit's token counts, for vocabulary tables without another pass."""
        table = self._tokens.to_table()
        path = self.folder.local_temporary(f"{self.unit.id}-{self.attempt}-vocabulary")
        try:
            pq.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=False)
            published = self.folder.publish(path, self.folder.vocabulary(self.unit.dataset, self.unit.id))
        finally:
            path.unlink(missing_ok=True)
        return FileRecord("vocabulary", published.path, published.size, published.sha256, table.num_rows)


class _Summary:
    """Smallest, largest and sum of a unit's two counts, for choosing rows without reading them."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums = {"num_tokens": 0, "num_loss_tokens": 0}
        self._ranges: dict[str, tuple[int, int]] = {}

    def update(self, samples: pa.RecordBatch) -> None:
        self.rows += samples.num_rows
        if not samples.num_rows:
            return
        for name in self._sums:
            column = samples.column(name)
            self._sums[name] += pc.sum(column).as_py()
            found = pc.min_max(column).as_py()
            low, high = self._ranges.get(name, (found["min"], found["max"]))
            self._ranges[name] = min(low, found["min"]), max(high, found["max"])

    def to_dict(self) -> dict[str, int]:
        low_high = {name: self._ranges.get(name, (0, 0)) for name in self._sums}
        return {
            "rows": self.rows,
            "tokens": self._sums["num_tokens"],
            "loss_tokens": self._sums["num_loss_tokens"],
            **{f"min_{name}": pair[0] for name, pair in low_high.items()},
            **{f"max_{name}": pair[1] for name, pair in low_high.items()},
        }


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """A batch in pieces, none of them over the budget unless it is one row; each with its bytes and elements."""
    if not batch.num_rows:
        return
    size, elements = batch.nbytes, _elements(batch)
    if batch.num_rows == 1 or (size <= ROW_GROUP_BYTES and elements <= ROW_GROUP_ELEMENTS):
        yield batch, size, elements
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _elements(batch: pa.RecordBatch) -> int:
    if "input_ids" not in batch.schema.names:
        return int(batch.num_rows)
    offsets = batch.column("input_ids").offsets
    return int(offsets[-1].as_py() - offsets[0].as_py()) if len(offsets) else 0
