"""Reading files as large blocks of bytes, fetched ahead where they are far away."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from retok_dask.completions.decompress import decompressed
from retok_dask.completions.storage import is_local, read_range
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from retok_dask.completions.units import Part
    from retok_dask.recipe import StorageSpec

LOCAL_BLOCK = 1024 * 1024
REMOTE_BLOCK = 8 * 1024 * 1024
BLOCKS_AHEAD = 2
FILES_AHEAD = 8
BYTES_AHEAD = 32 * 1024 * 1024


class Source:
    """Reads the files of one unit, in the unit's order.

    Download and work overlap: of a large remote file the next blocks are
    fetched by a thread while the last one is worked on, of small remote files
    the next files. Each fetch is retried by itself.

    Args:
        storage: the recipe's storage part.
        parts: what will be read, in order.
    """

    def __init__(self, storage: StorageSpec | None = None, parts: Iterable[Part] = ()) -> None:
        self.storage = storage
        small = (part for part in parts if part.whole and part.size <= REMOTE_BLOCK and not is_local(part.url))
        self._waiting = deque(small)
        self._fetching: dict[str, Future[bytes]] = {}
        self._bytes = 0
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Give up what is being fetched."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def range(self, url: str, start: int, end: int) -> bytes:
        """Some bytes of a file; see :func:`retok_dask.completions.storage.read_range`."""
        return read_range(url, start, end, self.storage)

    def fetched(self, part: Part) -> bytes | None:
        """All bytes of a small remote file that was fetched ahead; None for other files."""
        self._fetch_more()
        future = self._fetching.pop(part.url, None)
        if future is None:
            return None
        data = future.result()
        self._bytes -= part.size
        self._fetch_more()
        return data

    def _fetch_more(self) -> None:
        while self._waiting and len(self._fetching) < FILES_AHEAD:
            if self._fetching and self._bytes + self._waiting[0].size > BYTES_AHEAD:
                return
            part = self._waiting.popleft()
            self._pool = self._pool or ThreadPoolExecutor(FILES_AHEAD, thread_name_prefix="retok-read")
            self._bytes += part.size
            self._fetching[part.url] = self._pool.submit(read_range, part.url, 0, part.size, self.storage)

    def blocks(self, part: Part, start: int, end: int) -> Iterator[bytes]:
        """Bytes ``start`` to ``end`` of a file, in order, in blocks.

        Raises:
            RecordRejected: ``cut_file`` if the file is shorter than ``end``.
        """
        data = self.fetched(part) if (start, end) == (0, part.size) else None
        if data is not None:
            yield from [data] if data else []
            _check_length(len(data), end)
            return
        step = LOCAL_BLOCK if is_local(part.url) else REMOTE_BLOCK
        ranges = [(at, min(at + step, end)) for at in range(start, end, step)]
        blocks = self._one_by_one(part.url, ranges) if is_local(part.url) else self._ahead(part.url, ranges)
        for (a, b), block in zip(ranges, blocks, strict=True):
            if block:
                yield block
            if len(block) < b - a:
                _check_length(a + len(block), end)

    def _one_by_one(self, url: str, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
        return (self.range(url, a, b) for a, b in ranges)

    def _ahead(self, url: str, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
        if len(ranges) < 2:
            yield from self._one_by_one(url, ranges)
            return
        pool = ThreadPoolExecutor(BLOCKS_AHEAD, thread_name_prefix="retok-read")
        try:
            waiting: deque[Any] = deque()
            for a, b in ranges:
                waiting.append(pool.submit(self.range, url, a, b))
                if len(waiting) > BLOCKS_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _check_length(got: int, listed: int) -> None:
    if got < listed:
        detail = f"the file ends at byte {got}, but had at least {listed} when it was listed"
        raise RecordRejected(RejectReason.cut_file, detail)


def part_blocks(part: Part, source: Source) -> Iterator[bytes]:
    """All bytes of a whole-file part, decompressed."""
    blocks = source.blocks(part, 0, part.size)
    return decompressed(blocks, part.compression) if part.compression else blocks
