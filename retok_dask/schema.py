"""The Arrow schemas of what a run writes: one each, the same in every file.

Bottom room, because the kernel fills these columns and the data-set room
writes them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from retok_dask.types import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1

KIND_TYPE = pa.dictionary(pa.int8(), pa.string())
KIND_DICTIONARY = pa.array(KIND_NAMES, pa.string())
SEGMENT_TYPE = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("kind", KIND_TYPE, nullable=False),
        pa.field("message", pa.int32(), nullable=False),
    ]
)


@cache
def _sample_schema(keep: tuple[str, ...]) -> pa.Schema:
    item = "element"
    fields = [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field(item, pa.int32(), nullable=False)), nullable=False),
        pa.field("loss_mask", pa.list_(pa.field(item, pa.bool_(), nullable=False)), nullable=False),
        pa.field("segments", pa.list_(pa.field(item, SEGMENT_TYPE, nullable=False)), nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("num_loss_tokens", pa.int32(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("source_file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("message_flags", pa.string(), nullable=True),
    ]
    fields += [pa.field(name, pa.string(), nullable=True) for name in keep]
    metadata = {
        "retok.schema_version": str(SCHEMA_VERSION),
        "retok.loss_mask": "loss_mask[i] is true where token i itself is a target (unshifted)",
    }
    return pa.schema(fields, metadata=metadata)


def sample_schema(keep: Sequence[str] = ()) -> pa.Schema:
    """Schema of ``data/<dataset>/<unit>.parquet``.

    Args:
        keep: the kept columns of the whole recipe, in its order; null where a
            data set lacks one, so that every file of a run has one schema.
    """
    return _sample_schema(tuple(keep))


REJECT_SCHEMA = pa.schema(
    [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("raw", pa.binary(), nullable=True),
        pa.field("raw_cut", pa.bool_(), nullable=False),
    ],
    metadata={"retok.schema_version": str(SCHEMA_VERSION)},
)
"""Schema of ``rejects/<dataset>/<unit>.parquet``; ``outcome`` is ``rejected`` or ``filtered``."""
