"""What happened in a run, in order: ``_retok/events.jsonl``.

One JSON object a line, appended as things happen. Object stores cannot
append: there the log is a folder of parts, each written whole and again while
it grows. Both forms are read back as one list, and a line that was cut by a
crash is passed over.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retok_dask.datasets.folder import OutputFolder

EVENTS = "_retok/events.jsonl"
PARTS = "_retok/events"
PART_BYTES = 256 * 1024
FLUSH_SECONDS = 5.0
KEPT_LINES = 100_000
"""Lines kept in memory at most while the storage refuses to take them."""


class EventLog:
    """Appends to a run's event log; a storage that fails delays lines, and never stops the run.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self.session = f"{int(time.time()):010d}-{uuid.uuid4().hex[:8]}"
        self._waiting: list[bytes] = []
        self._part: list[bytes] = []
        self._part_bytes = 0
        self._number = 0
        self._flushed = 0.0
        self._lock = threading.Lock()

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append one event; returns it as written."""
        event = {"at": round(time.time(), 3), "kind": kind, "session": self.session, **fields}
        line = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS, default=str) + b"\n"
        with self._lock:
            self._waiting.append(line)
            del self._waiting[:-KEPT_LINES]
        if self.folder.is_local or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()
        return event

    def start(self, **fields: Any) -> None:
        """Append the event that begins a session, with the place it runs at."""
        self.add("start", host=socket.gethostname(), pid=os.getpid(), **fields)

    def flush(self) -> None:
        """Write what waits; what cannot be written goes on waiting."""
        self._flushed = time.monotonic()
        with self._lock, suppress(StorageError, OSError):
            if self.folder.is_local:
                self._append()
            elif self._waiting:
                self._write_part()

    def _append(self) -> None:
        if not self._waiting:
            return
        path = Path(self.folder.path(EVENTS))
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(self._waiting)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if _ends_inside_a_line(handle):
                data = b"\n" + data
            os.write(handle, data)
        finally:
            os.close(handle)
        self._waiting.clear()

    def _write_part(self) -> None:
        part = [*self._part, *self._waiting]
        name = f"{PARTS}/{self.session}-{self._number:06d}.jsonl"
        self.folder.write_bytes(name, b"".join(part))
        self._part, self._waiting = part, []
        self._part_bytes = sum(map(len, part))
        if self._part_bytes > PART_BYTES:
            self._part, self._number = [], self._number + 1


def _ends_inside_a_line(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def read_events(folder: OutputFolder, kinds: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """All events of a folder, oldest first; empty if there are none.

    Args:
        folder: a run's folder.
        kinds: only these.
    """
    contents: list[bytes] = []
    with suppress(FileNotFoundError):
        contents.append(folder.read_bytes(EVENTS))
    parts = sorted(folder.sizes(PARTS))
    contents += [part for part in folder.read_many(parts) if isinstance(part, bytes)]
    wanted = set(kinds) if kinds is not None else None
    events = [event for content in contents for event in _parse(content) if wanted is None or event["kind"] in wanted]
    return sorted(events, key=lambda event: event["at"])


def _parse(content: bytes) -> Iterable[dict[str, Any]]:
    for line in content.splitlines():
        with suppress(orjson.JSONDecodeError):
            event = orjson.loads(line)
            if isinstance(event, dict) and isinstance(event.get("at"), (int, float)) and "kind" in event:
                yield event
