"""Parquet and Arrow files: columns, read a bounded number of rows at a time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.completions.lines import too_large
from retok_dask.completions.storage import is_local, open_fs
from retok_dask.types import Record, RecordRejected, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.completions.blocks import Source
    from retok_dask.completions.options import ReadOptions
    from retok_dask.completions.units import Part

BATCH_BYTES = 8 * 1024 * 1024
MOST_ROWS = 4096
STREAM_BUFFER = 4 * 1024 * 1024

_BAD_ROWS = (pa.ArrowException, UnicodeDecodeError, ValueError, OverflowError)


class RangeFile(io.RawIOBase):
    """A remote file that can be read from anywhere, each read retried by itself."""

    def __init__(self, part: Part, source: Source) -> None:
        super().__init__()
        self._url, self._size, self._source = part.url, part.size, source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        data = self._source.range(self._url, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _open(part: Part, source: Source) -> Any:
    """An Arrow input file; a missing file is the run's problem, an unreadable one the file's."""
    if is_local(part.url):
        _, path = open_fs(part.url)
        try:
            return pa.memory_map(path)
        except OSError:
            source.range(part.url, 0, 1)  # says in our words why it cannot be read
            return pa.BufferReader(b"")
    data = source.fetched(part)
    if data is not None:
        return pa.BufferReader(data)
    return pa.PythonFile(io.BufferedReader(RangeFile(part, source), 256 * 1024), mode="r")


def read_parquet(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of the row groups whose data starts in the part.

    Raises:
        RecordRejected: the file is no Parquet file, or is broken from here on.
    """
    with _open(part, options.source) as source:
        try:
            file = pq.ParquetFile(source, pre_buffer=False, buffer_size=STREAM_BUFFER)
        except (pa.ArrowException, OSError) as error:
            if part.start > 0:
                return  # the part that starts the file rejects it
            raise _broken(error) from None
        columns = _chosen(file.schema_arrow.names, options)
        first = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if part.start <= _data_start(group) < part.end:
                yield from _row_group(file, number, first, columns, part, options)
            first += group.num_rows


def _broken(error: Exception) -> RecordRejected:
    return RecordRejected(RejectReason.bad_file, f"{type(error).__name__}: {error}"[:500])


def _chosen(names: list[str], options: ReadOptions) -> list[str] | None:
    """Columns to read; all of them where none is known, so that the reject can name what there is."""
    if options.columns is None:
        return None
    found = [name for name in names if name in options.columns]
    return found or None


def _data_start(group: Any) -> int:
    if not group.num_columns:
        return 0
    column = group.column(0)
    starts = [start for start in (column.dictionary_page_offset, column.data_page_offset) if start]
    return min(starts) if starts else 0


def _row_group(
    file: Any, number: int, first: int, columns: list[str] | None, part: Part, options: ReadOptions
) -> Iterator[Record | Reject]:
    group = file.metadata.row_group(number)
    rows = _rows_a_batch(group.total_byte_size, group.num_rows)
    try:
        for batch in file.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            yield from batch_records(batch, first, part.url, options)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _broken(error) from None


def _rows_a_batch(total_bytes: int, rows: int) -> int:
    return max(1, min(MOST_ROWS, BATCH_BYTES * rows // max(total_bytes, 1)))


def read_arrow(part: Part, options: ReadOptions) -> Iterator[Record | Reject]:
    """Rows of an Arrow file, in the file or the stream format, whatever its batches.

    Raises:
        RecordRejected: the file is no Arrow file, is broken, or ends too early.
    """
    with _open(part, options.source) as source:
        first = 0
        try:
            for batch in _arrow_batches(source, part, options):
                step = _rows_a_batch(batch.nbytes, batch.num_rows)
                for start in range(0, batch.num_rows, step):
                    yield from batch_records(batch.slice(start, step), first + start, part.url, options)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _broken(error) from None


def _arrow_batches(source: Any, part: Part, options: ReadOptions) -> Iterator[Any]:
    if options.source.range(part.url, 0, 6) == b"ARROW1":
        file = pa.ipc.open_file(source)
        batches = (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        batches = iter(pa.ipc.open_stream(source))
    for batch in batches:
        names = _chosen(batch.schema.names, options)
        yield batch if names is None else batch.select(names)
    tail = options.source.range(part.url, max(0, part.size - 10), part.size)
    if not tail.endswith((b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")):
        raise RecordRejected(RejectReason.cut_file, "the Arrow data ends without its end mark")


def batch_records(batch: Any, first: int, url: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """Records of a batch: each row's values as Python objects of that row alone."""
    if batch.nbytes > options.limit:
        yield from _row_by_row(batch, first, url, options)
        return
    arrays: dict[str, list[Any]] = {}
    for name in batch.schema.names if options.tokens else ():
        numbers = _number_lists(batch.column(name))
        if numbers is not None:
            arrays[name] = numbers
    rest = batch.select([name for name in batch.schema.names if name not in arrays])
    for number, value in enumerate(_rows(rest)):
        if isinstance(value, Exception):
            reason = RejectReason.bad_utf8 if "utf" in str(value).lower() else RejectReason.bad_file
            yield Reject(url, first + number, -1, reason, f"the row cannot be read: {value}"[:500])
            continue
        for name, lists in arrays.items():
            value[name] = lists[number]
        yield Record(url, first + number, -1, None, value)


def _row_by_row(batch: Any, first: int, url: str, options: ReadOptions) -> Iterator[Record | Reject]:
    """A batch in which some row may be larger than a record may be."""
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        if row.nbytes > options.limit:
            yield too_large(url, first + number, -1, row.nbytes, options.limit, None)
        else:
            yield from batch_records(row, first + number, url, options)


def _rows(batch: Any) -> Iterator[Any]:
    """Rows as Python objects; an exception in place of a row that cannot be one."""
    try:
        yield from _objects(batch)
    except _BAD_ROWS:
        for number in range(batch.num_rows):
            try:
                yield _objects(batch.slice(number, 1))[0]
            except _BAD_ROWS as error:
                yield error


def _objects(batch: Any) -> list[Any]:
    # What a file says about its offsets is believed by Arrow and would crash the process if it is wrong.
    batch.validate(full=True)
    return list(batch.to_pylist(maps_as_pydicts="lossy"))


def _number_lists(column: Any) -> list[Any] | None:
    """Lists of integers or booleans as one numpy array a row; None for a column of another type."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    if not (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)):
        return None
    column.validate(full=True)
    if column.values.null_count:
        return None
    flat = column.values.to_numpy(zero_copy_only=False)
    edges = np.asarray(column.offsets)
    valid = column.is_valid().to_pylist()
    return [flat[a:b] if ok else None for a, b, ok in zip(edges[:-1], edges[1:], valid, strict=True)]
