"""The Arrow schemas of what a run writes: one each, the same in every file.

Bottom room, because the kernel fills these columns and the data-set room
writes them.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from retok_dask.errors import count_of
from retok_dask.types import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from retok_dask.recipe import Recipe

SCHEMA_VERSION = 1

SOURCE_TOKENS_COLUMN = "source_tokens"
"""Kept column of rows that were ids of another tokenizer: how many they were."""

LOSSY_COLUMN = "lossy_decode"
"""Kept column of such rows: ``noncanonical`` or ``cut_character`` where their ids were not what their text encodes to."""

PROMPT_COLUMN = "prompt_messages"
"""Kept column of mode ``prompts``: the prompt's messages as JSON text, for an inference server."""

KIND_TYPE = pa.dictionary(pa.int8(), pa.string())
SEGMENT_TYPE = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("kind", KIND_TYPE, nullable=False),
        pa.field("message", pa.int32(), nullable=False),
    ]
)


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array in the same memory.

    Arrays are made from buffers here and below, because `pa.array` imports
    pandas, which costs each process time and memory.
    """
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, _buffer(values)])


def bits(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """A bool a bit, packed many at once."""
    return pa.Array.from_buffers(pa.bool_(), values.size, [None, _buffer(np.packbits(values, bitorder="little"))])


def texts(values: Sequence[str | bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Texts, or with the kind `pa.binary()` bytes; None is null."""
    kind = kind or pa.string()
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    try:
        joined = "".join(values)  # type: ignore[arg-type]  # nearly always texts, and of names that are ASCII
    except TypeError:
        joined = ""
    there = np.ones(len(values), np.bool_)
    if joined and joined.isascii():
        data = joined.encode()
        lengths = [*map(len, values)]  # type: ignore[arg-type]
    else:
        parts = [value.encode() if isinstance(value, str) else value or b"" for value in values]
        there = np.array([value is not None for value in values], np.bool_)
        data = b"".join(parts)
        lengths = [*map(len, parts)]
    if len(data) > _LONGEST:
        msg = f"a column of {count_of(len(data), 'byte')} in one batch; set units.batch_bytes lower"
        raise pa.ArrowCapacityError(msg)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    validity = None if there.all() else _buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [validity, _buffer(offsets), pa.py_buffer(data)])


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))


_LONGEST = 2**31 - 1


@cache
def kind_dictionary() -> pa.Array:
    """The kinds' names in the order of their numbers."""
    return texts(KIND_NAMES)


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


def kept_columns(recipe: Recipe) -> tuple[str, ...]:
    """Kept columns of a whole run, in the recipe's order, and those that retok adds itself."""
    names = [name for spec in recipe.datasets for name in spec.keep]
    if any(spec.mode == "prompts" for spec in recipe.datasets):
        names.append(PROMPT_COLUMN)
    if any(spec.source_tokenizer is not None or spec.format == "retok" for spec in recipe.datasets):
        names += [SOURCE_TOKENS_COLUMN, LOSSY_COLUMN]
    return tuple(dict.fromkeys(names))


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


def sample_id(dataset: str, file: str, position: int, item: int = 0, turn: int = -1, chunk: int = -1) -> str:
    """The stable name of a row: the same input record has it in every run, on any number of workers.

    Args:
        dataset: the data set's name.
        file: the record's file as the recipe's listing names it.
        position: byte offset of the record in its file where it has one, else its row number.
        item: which conversation of the record, for records that hold several.
        turn: the one trained message of a ``per_turn`` row.
        chunk: which piece of a document that was cut.

    >>> sample_id("chat", "a.jsonl", 120, turn=3)
    '0bbd28b8bd52-120-t3'
    """
    name = f"{file_key(dataset, file)}-{position}"
    if item:
        name += f"-i{item}"
    if turn >= 0:
        name += f"-t{turn}"
    if chunk >= 0:
        name += f"-c{chunk}"
    return name


@lru_cache(maxsize=4096)
def file_key(dataset: str, file: str) -> str:
    """Twelve hex digits that stand for a file of a data set in its sample ids."""
    return hashlib.blake2b(f"{dataset}\0{file}".encode(), digest_size=6).hexdigest()


_TURN = re.compile(r"-t(\d+)")
_CHUNK = re.compile(r"-c(\d+)$")


def turn_of(sample: str) -> int:
    """The one trained message of a ``per_turn`` row, from its sample id; -1 for other rows."""
    found = _TURN.search(sample)
    return int(found.group(1)) if found else -1


def chunk_of(sample: str) -> int:
    """Which piece of its document a row is, from its sample id; -1 for rows that are no pieces."""
    found = _CHUNK.search(sample)
    return int(found.group(1)) if found else -1
