"""Digest of the content of samples, whatever their order and however files are cut."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from retok_dask.types import KIND_NAMES

_MODULUS = 1 << 256
_SEGMENT_BYTES = 16
_KIND_INDEX = {name: index for index, name in enumerate(KIND_NAMES)}


class ContentDigest:
    """Sum modulo 2^256 of the sha256 of each sample.

    A sum and not an exclusive or: a row that is there twice shows. What is
    hashed of a sample: its id, ids, loss mask, segments, per-message flags and
    whether it was truncated. Kept columns and places in files are not in it.
    """

    def __init__(self, value: int = 0, rows: int = 0) -> None:
        self.value = value
        self.rows = rows

    @property
    def hex(self) -> str:
        return f"{self.value:064x}"

    def update(self, samples: pa.RecordBatch) -> None:
        """Add the rows of a batch of :func:`retok_dask.schema.sample_schema`."""
        self.value = (self.value + _sum(row_digests(samples))) % _MODULUS
        self.rows += samples.num_rows

    def add_hex(self, value: str, rows: int = 0) -> None:
        """Add the digest of another set of rows."""
        self.value = (self.value + int(value, 16)) % _MODULUS
        self.rows += rows


def _sum(digests: list[bytes]) -> int:
    """The sum of numbers of 32 bytes, in parts of 32 bits that none can overflow in."""
    parts = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 8).sum(axis=0, dtype=np.uint64).tolist()
    return sum(part << (32 * place) for place, part in enumerate(reversed(parts)))


def row_digests(samples: pa.RecordBatch) -> list[bytes]:
    """sha256 of each row's content, 32 bytes each."""
    ids, id_splits = list_values(samples.column("input_ids"))
    mask, mask_splits = list_values(samples.column("loss_mask"))
    segments, seg_splits = segment_matrix(samples.column("segments"))
    names = samples.column("sample_id").to_pylist()
    flags = samples.column("message_flags").to_pylist()
    truncated = samples.column("truncated").to_pylist()
    id_bytes, mask_bytes = ids.view(np.uint8).data, mask.view(np.uint8).data
    places = zip(pairwise(id_splits), pairwise(mask_splits), pairwise(seg_splits), strict=True)
    segment_bytes = segments.tobytes()
    return [
        sha256(
            b"".join(
                (
                    f"{name}\0{flag or ''}\0{cut:d}\0{last - first}\0".encode(),
                    id_bytes[4 * first : 4 * last],
                    mask_bytes[begin:end],
                    segment_bytes[_SEGMENT_BYTES * start : _SEGMENT_BYTES * stop],
                )
            )
        ).digest()
        for name, flag, cut, ((first, last), (begin, end), (start, stop)) in zip(
            names, flags, truncated, places, strict=True
        )
    ]


def list_values(column: pa.ListArray) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Flat values of a list column and its rows + 1 splits, counted from 0."""
    offsets = flat_values(column.offsets)
    if not len(offsets):
        return flat_values(column.values), [0]
    return flat_values(column.values.slice(offsets[0], offsets[-1] - offsets[0])), (offsets - offsets[0]).tolist()


def flat_values(array: pa.Array) -> np.ndarray[Any, Any]:
    """Numbers or bools of an array without nulls, numbers in the same memory.

    Read from the buffer, because `to_numpy` imports pandas; and bools, which
    are a bit each, are unpacked many at once.
    """
    is_bool = pa.types.is_boolean(array.type)
    if array.null_count or not (is_bool or pa.types.is_integer(array.type)):
        return np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
    if not len(array):
        return np.zeros(0, np.bool_ if is_bool else str(array.type))
    buffer = array.buffers()[1]
    if not is_bool:
        dtype = np.dtype(str(array.type))
        return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    byte, bit = divmod(array.offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[byte:]
    return np.unpackbits(packed, count=bit + len(array), bitorder="little")[bit:].view(np.bool_)


def segment_matrix(column: pa.ListArray) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Segments as an int32 matrix (segments x [start, end, kind, message]) and the rows + 1 splits."""
    offsets = flat_values(column.offsets)
    struct = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    kind = struct.field("kind")
    if isinstance(kind, pa.DictionaryArray):
        table = np.array([_KIND_INDEX.get(name, -1) for name in kind.dictionary.to_pylist()] or [0], np.int32)
        kinds = table[flat_values(kind.indices)]
    else:
        kinds = np.array([_KIND_INDEX.get(name, -1) for name in kind.to_pylist()], np.int32)
    matrix = np.empty((len(struct), 4), np.int32)
    matrix[:, 0] = flat_values(struct.field("start"))
    matrix[:, 1] = flat_values(struct.field("end"))
    matrix[:, 2] = kinds
    matrix[:, 3] = flat_values(struct.field("message"))
    return matrix, (offsets - offsets[0]).tolist()
