"""One client at a time on one output folder.

The lock spares work, it does not keep data right: two attempts of a unit are
harmless by themselves. So a plain lease with a heartbeat is enough, also on
stores without conditional writes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson
import psutil

from retok_dask.datasets.folder import LOCK, OutputFolder
from retok_dask.errors import OutputLocked

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_SECONDS = 60.0
"""A lock without a heartbeat for so long is taken over; refresh it several times in that time."""


@dataclass(frozen=True)
class LockInfo:
    """Who holds a lock, as its file says.

    Attributes:
        owner: random name of the holder.
        host, pid: where it runs.
        acquired, heartbeat: seconds since 1970, by the holder's clock.
        lease: seconds after the heartbeat at which others may take over.
    """

    owner: str
    host: str
    pid: int
    acquired: float
    heartbeat: float
    lease: float

    @classmethod
    def from_dict(cls, data: Any) -> LockInfo | None:
        try:
            return cls(**data)
        except TypeError:
            return None

    def is_alive(self, now: float) -> bool:
        """Whether the holder must be believed to live: heartbeat fresh, and no dead process of this host."""
        if now - self.heartbeat > self.lease:
            return False
        return self.host != socket.gethostname() or psutil.pid_exists(self.pid)


class OutputLock:
    """A lease on an output folder.

    Args:
        folder: the run's folder.
        lease: seconds without a heartbeat after which others may take over.
        clock: gives the time in seconds since 1970.

    Example:
        lock = OutputLock(folder)
        lock.acquire()
        try:
            ...                # call lock.refresh() now and then
        finally:
            lock.release()
    """

    def __init__(
        self, folder: OutputFolder, lease: float = LEASE_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.owner = uuid.uuid4().hex
        self._clock = clock
        self._acquired = 0.0

    def holder(self) -> LockInfo | None:
        """Who holds the lock, dead or alive; None if nobody does."""
        with contextlib.suppress(FileNotFoundError, orjson.JSONDecodeError):
            return LockInfo.from_dict(orjson.loads(self.folder.read_bytes(LOCK)))
        return None

    def acquire(self, *, takeover: bool = False) -> None:
        """Take the lock, also that of a dead client.

        Args:
            takeover: take it even from one that seems to live.

        Raises:
            OutputLocked: a live client holds it, with its host, process and age.
        """
        holder = self.holder()
        if holder is not None and holder.owner != self.owner and not takeover and holder.is_alive(self._clock()):
            raise OutputLocked(self._refusal(holder))
        self._acquired = self._clock()
        if holder is not None or not self._create():
            self._write()
        self._confirm()

    def refresh(self) -> None:
        """Say that this client lives.

        Raises:
            OutputLocked: another client has taken the lock over; stop writing.
        """
        self._confirm()
        self._write()

    def release(self) -> None:
        """Give the lock back, if it is still this client's."""
        holder = self.holder()
        if holder is not None and holder.owner == self.owner:
            self.folder.remove([LOCK])

    def _create(self) -> bool:
        """Create the lock file only if there is none; where the store knows no such write, just write."""
        try:
            self.folder.create_bytes(LOCK, self._content())
        except FileExistsError:
            holder = self.holder()
            if holder is not None and holder.owner != self.owner and holder.is_alive(self._clock()):
                raise OutputLocked(self._refusal(holder)) from None
            return False
        return True

    def _write(self) -> None:
        self.folder.write_bytes(LOCK, self._content())

    def _content(self) -> bytes:
        info = LockInfo(self.owner, socket.gethostname(), os.getpid(), self._acquired, self._clock(), self.lease)
        return orjson.dumps(asdict(info))

    def _confirm(self) -> None:
        """Read the lock back: of two that wrote at once, the one that does not find its name gives way."""
        holder = self.holder()
        if holder is not None and holder.owner != self.owner:
            raise OutputLocked(self._refusal(holder))

    def _refusal(self, holder: LockInfo) -> str:
        age = max(0.0, self._clock() - holder.heartbeat)
        return (
            f"{self.folder.url} is being written by process {holder.pid} on {holder.host} (last sign of life {age:.0f} s ago); "
            f"wait for it or stop it. If it is dead, the lock ends by itself {holder.lease:.0f} s after its last sign of life"
        )
