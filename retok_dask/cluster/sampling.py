"""A sample of a data set's records, and how many times it goes into the whole."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import orjson

from retok_dask.completions import layout_for, read_records
from retok_dask.datasets.writer import ParquetSink
from retok_dask.schema import kept_columns, sample_schema
from retok_dask.types import Conversation, Record, RecordRejected

if TYPE_CHECKING:
    import pyarrow as pa

    from retok_dask.completions import Unit
    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.types import Reject

SAMPLE_RECORDS = 300
SAMPLE_BYTES = 8 * 1024 * 1024
SAMPLE_UNITS = 30
"""A data set's sample is taken from so many units, evenly spread, so that a sorted input is not misread."""


def sample_records(recipe: Recipe, spec: DatasetSpec, units: list[Unit]) -> tuple[list[Record | Reject], float]:
    """Records from units that are evenly spread, and the seconds that reading them took."""
    count = min(SAMPLE_UNITS, len(units))
    chosen = {number * (len(units) - 1) // max(1, count - 1) for number in range(count)}
    share = -(-SAMPLE_RECORDS // max(1, count))
    records: list[Record | Reject] = []
    started = perf_counter()
    for number in sorted(chosen):
        taken = 0
        for record in islice(read_records(units[number], spec, recipe), share):
            records.append(record)
            taken += record_size(record)
            if taken > SAMPLE_BYTES / count:
                break
    return records, perf_counter() - started


def record_size(record: Record | Reject) -> int:
    """Bytes of a record as it lies in its file, its line end included; as JSON where it has none."""
    if record.raw is not None:
        return len(record.raw) + 1
    return len(orjson.dumps(record.value, default=str)) if isinstance(record, Record) else 0


def sample_scale(units: list[Unit], records: list[Record | Reject], sizes: list[int]) -> float:
    """How many times the sample goes into the data set, by bytes, and by a limit where one ends in a unit."""
    if not records:
        return 0.0
    mean = max(1, sum(sizes)) / len(records)
    expected = [unit.bytes / mean for unit in units]
    limited = [n if unit.limit is None else min(n, unit.limit) for n, unit in zip(expected, units, strict=True)]
    return max(1.0, sum(limited) / len(records))


def conversations(spec: DatasetSpec, records: list[Record | Reject]) -> list[Conversation]:
    """The sample's records that are conversations."""
    layout = layout_for(spec)
    found: list[Conversation] = []
    for record in records:
        if isinstance(record, Record) and record.value is not None:
            try:
                found += [item for item in layout(record) if isinstance(item, Conversation)]
            except RecordRejected:
                continue
    return found


def written_bytes(recipe: Recipe, batches: list[pa.RecordBatch]) -> tuple[int, float]:
    """Size of the sample as the run would write it, and the seconds of writing."""
    with tempfile.TemporaryDirectory(prefix="retok-plan-") as folder:
        path = Path(folder) / "sample.parquet"
        started = perf_counter()
        parquet = ParquetSink(path, sample_schema(kept_columns(recipe)))
        for batch in batches:
            parquet.write(batch)
        parquet.close()
        return path.stat().st_size, perf_counter() - started
