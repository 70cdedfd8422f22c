"""Rows that a run of retok wrote: ids with segments, and what became of their conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.completions.layouts.ids import build_ids
from retok_dask.schema import chunk_of, turn_of
from retok_dask.types import RecordRejected, RejectReason, TokenRow

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

COLUMNS = ("sample_id", "input_ids", "loss_mask", "segments", "message_flags", "truncated")
"""Columns of a written run that are read again."""


def fits_written(record: dict[str, Any]) -> bool:
    """Ids with segments and a sample id."""
    return all(name in record for name in ("sample_id", "input_ids", "segments"))


def build_written(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """One row of ids with its segments, flags, turn, and whether it is whole.

    Raises:
        RecordRejected: ``bad_tokens`` where it is no row that a run writes.
    """
    missing = [name for name in COLUMNS if name not in record]
    if missing:
        raise RecordRejected(RejectReason.bad_tokens, f"no row written by retok: {', '.join(missing)} missing")
    (row,) = build_ids({name: record[name] for name in ("input_ids", "loss_mask", "segments")}, spec)
    assert isinstance(row, TokenRow)
    row.id = record["sample_id"]
    flags = record["message_flags"]
    row.flags = orjson.loads(flags) if flags else []
    row.turn = turn_of(record["sample_id"])
    row.part = bool(record["truncated"]) or chunk_of(record["sample_id"]) >= 0
    return [row]
