"""Flat numpy arrays to Arrow columns, without a Python object a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from retok_dask.schema import REJECT_SCHEMA, SEGMENT_TYPE, kind_dictionary, sample_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from retok_dask.types import Encoded, Filtered, Reject

RAW_LIMIT = 64 * 1024
"""Bytes of a rejected record that are stored; a longer one is cut and says so."""


def sample_batch(
    encoded: Encoded,
    mask: npt.NDArray[np.bool_],
    loss_tokens: npt.NDArray[np.int64],
    *,
    sample_ids: Sequence[str],
    truncated: Sequence[bool],
    files: Sequence[str],
    rows: Sequence[int],
    flags: Sequence[str | None],
    kept: Sequence[dict[str, Any]],
    keep: tuple[str, ...],
) -> pa.RecordBatch:
    """Rows of the sample schema; every sequence has one entry a row."""
    schema = sample_schema(keep)
    segments = pa.StructArray.from_arrays(
        [
            pa.array(encoded.seg_start),
            pa.array(encoded.seg_end),
            pa.DictionaryArray.from_arrays(pa.array(encoded.seg_kind), kind_dictionary()),
            pa.array(encoded.seg_message),
        ],
        fields=list(SEGMENT_TYPE),
    )
    file_names = list(dict.fromkeys(files))
    codes = {name: code for code, name in enumerate(file_names)}
    columns = [
        pa.array(sample_ids, pa.string()),
        _list_column(encoded.row_splits, pa.array(encoded.ids), schema.field("input_ids").type),
        _list_column(encoded.row_splits, _bits(mask), schema.field("loss_mask").type),
        _list_column(encoded.seg_splits, segments, schema.field("segments").type),
        pa.array(np.diff(encoded.row_splits).astype(np.int32)),
        pa.array(loss_tokens.astype(np.int32)),
        pa.array(truncated, pa.bool_()),
        pa.DictionaryArray.from_arrays(
            pa.array([codes[name] for name in files], pa.int32()), pa.array(file_names, pa.string())
        ),
        pa.array(rows, pa.int64()),
        pa.array(flags, pa.string()),
    ]
    columns += [pa.array([values.get(name) for values in kept], pa.string()) for name in keep]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def reject_batch(left_out: Sequence[Reject | Filtered]) -> pa.RecordBatch:
    """Rows of the reject schema."""
    raws = [getattr(item, "raw", None) for item in left_out]
    columns = [
        pa.array([item.file for item in left_out], pa.string()),
        pa.array([item.row for item in left_out], pa.int64()),
        pa.array([item.offset for item in left_out], pa.int64()),
        pa.array(["rejected" if hasattr(item, "raw") else "filtered" for item in left_out], pa.string()),
        pa.array([str(item.reason) for item in left_out], pa.string()),
        pa.array([_clean(item.detail) for item in left_out], pa.string()),
        pa.array([raw[:RAW_LIMIT] if raw is not None else None for raw in raws], pa.binary()),
        pa.array([raw is not None and len(raw) > RAW_LIMIT for raw in raws], pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECT_SCHEMA)


def _list_column(splits: npt.NDArray[np.int64], values: pa.Array, kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), values, type=kind)


def _bits(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """A bool a bit, packed many at once; Arrow packs them one by one."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), values.size, [None, packed])


def _clean(text: str) -> str:
    """Text that Arrow can store: half surrogate pairs in an error message become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8")
