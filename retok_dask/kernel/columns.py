"""Flat numpy arrays to Arrow columns, without a Python object a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from retok_dask.schema import REJECT_SCHEMA, SEGMENT_TYPE, bits, kind_dictionary, numbers, sample_schema, texts

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
    truncated: npt.NDArray[np.bool_],
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
            numbers(encoded.seg_start),
            numbers(encoded.seg_end),
            pa.DictionaryArray.from_arrays(numbers(encoded.seg_kind), kind_dictionary()),
            numbers(encoded.seg_message),
        ],
        fields=list(SEGMENT_TYPE),
    )
    file_names = list(dict.fromkeys(files))
    codes = {name: code for code, name in enumerate(file_names)}
    columns = [
        texts(sample_ids),
        _list_column(encoded.row_splits, numbers(encoded.ids), schema.field("input_ids").type),
        _list_column(encoded.row_splits, bits(mask), schema.field("loss_mask").type),
        _list_column(encoded.seg_splits, segments, schema.field("segments").type),
        numbers(np.diff(encoded.row_splits).astype(np.int32)),
        numbers(loss_tokens.astype(np.int32)),
        bits(truncated),
        pa.DictionaryArray.from_arrays(numbers(np.array([codes[name] for name in files], np.int32)), texts(file_names)),
        numbers(np.array(rows, np.int64)),
        texts(flags),
    ]
    columns += [texts([values.get(name) for values in kept]) for name in keep]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def reject_batch(left_out: Sequence[Reject | Filtered]) -> pa.RecordBatch:
    """Rows of the reject schema."""
    raws = [getattr(item, "raw", None) for item in left_out]
    columns = [
        texts([item.file for item in left_out]),
        numbers(np.array([item.row for item in left_out], np.int64)),
        numbers(np.array([item.offset for item in left_out], np.int64)),
        texts(["rejected" if hasattr(item, "raw") else "filtered" for item in left_out]),
        texts([str(item.reason) for item in left_out]),
        texts([_clean(item.detail) for item in left_out]),
        texts([raw[:RAW_LIMIT] if raw is not None else None for raw in raws], pa.binary()),
        bits(np.array([raw is not None and len(raw) > RAW_LIMIT for raw in raws], np.bool_)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECT_SCHEMA)


def _list_column(splits: npt.NDArray[np.int64], values: pa.Array, kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(numbers(splits.astype(np.int32)), values, type=kind)


def _clean(text: str) -> str:
    """Text that Arrow can store: half surrogate pairs in an error message become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8")
