"""Why a worker process ended, from everything that was heard about it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dask.utils import format_bytes

from retok_dask.types import RejectReason

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["memory", "time", "crash", "heartbeat", "lost", "error"]

QUIET_SHARE = 0.7
"""Share of the time limit without a sign of life after which a death is the timer's, where no nanny here says so."""

TIMER = f"signal {signal.SIGALRM:d} (SIGALRM)"
"""How a worker ends whose time limit runs out; see :class:`retok_dask.cluster.worker.Teller`."""

OVER_MEMORY = "its nanny, for its memory"
"""How a worker ends whose nanny here saw it grow; the nanny's event may come later than the end."""

CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "exit status")


@dataclass(frozen=True)
class Cause:
    """Why a unit's attempt ended.

    Attributes:
        kind: ``memory`` (its nanny ended it at the limit), ``time`` (a record
            over its time limit), ``crash`` (a signal of its own making),
            ``heartbeat`` (no sign of life past the scheduler's limit),
            ``lost`` (killed from outside, or its host or link went away),
            ``error`` (an exception in our own code or a plug-in).
        text: one clause for people.
        advice: what the user can change.
    """

    kind: Kind
    text: str
    advice: str = ""

    @property
    def of_the_unit(self) -> bool:
        """Whether another try of the same unit would end the same way."""
        return self.kind in {"memory", "time", "crash", "error"}

    @property
    def reason(self) -> RejectReason:
        """The reason for which a record is set aside."""
        if self.kind == "time":
            return RejectReason.too_slow
        return RejectReason.encode_error if self.kind == "error" else RejectReason.killed_worker


@dataclass
class Hearsay:
    """Collects what nannies and the scheduler say about workers, and what workers said last.

    Attributes:
        seconds_per_record: time limit after which a worker ends itself.
        exits: how processes of this machine ended, by pid; filled elsewhere.
    """

    seconds_per_record: float
    exits: Mapping[int, str] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    _ahead: dict[str, float] = field(default_factory=dict)

    def beat(self, worker: str, pid: int, at: float, clock: float) -> None:
        """A worker gave a sign of life.

        Args:
            worker: its address.
            pid: its process.
            at: when it came here, by the monotonic clock of this process.
            clock: when it was sent, by the monotonic clock there. The fastest
                message shows how far the clocks are apart, so a late one
                still counts from when it was sent.
        """
        self.pids[worker] = pid
        ahead = self._ahead[worker] = min(at - clock, self._ahead.get(worker, at - clock))
        self.heard[worker] = clock + ahead

    def awaits_exit(self, worker: str) -> bool:
        """Whether nothing is known yet of how a process ended whose nanny will tell."""
        told = worker in self.memory or worker in self.silent
        return not told and worker in self.pids and self.pids[worker] not in self.exits

    def over_memory(self, worker: str, rss: int) -> None:
        """A nanny ended a worker for its memory."""
        self.memory[worker] = rss

    def no_heartbeat(self, worker: str, ttl: float) -> None:
        """The scheduler gave a worker up."""
        self.silent[worker] = ttl

    def cause(self, worker: str, died_at: float, limits: Mapping[str, int] | None = None) -> Cause:
        """The best explanation for the end of a worker.

        Args:
            worker: its address.
            died_at: when its end was heard of, by the clock of the signs of life; 0 if unknown.
            limits: memory limits by address.
        """
        exited = self.exits.get(self.pids.get(worker, -1), "")
        if worker in self.memory or exited == OVER_MEMORY:
            known = limits or {}
            limit = known.get(worker) or max(known.values(), default=0)
            of = f" of {format_bytes(limit)}" if limit else ""
            rss = format_bytes(self.memory[worker]) if worker in self.memory else "almost all"
            text = f"its memory grew to {rss}{of}, and its nanny ended it"
            return Cause(
                "memory", text, "give workers more memory, or set units.batch_bytes and units.record_bytes lower"
            )
        if worker in self.silent:
            text = f"no heartbeat for {self.silent[worker]:.0f} s, so the scheduler gave it up"
            return Cause("heartbeat", text, "look at the host and its network; see distributed.scheduler.worker-ttl")
        quiet = died_at - self.heard.get(worker, died_at)
        if exited == TIMER or (not exited and quiet >= QUIET_SHARE * self.seconds_per_record):
            text = f"one record took longer than {self.seconds_per_record:g} s, so the worker ended itself"
            return Cause("time", text, "look at the record, or raise units.seconds_per_record")
        if any(word in exited for word in CRASHES):
            return Cause("crash", f"its process ended by {exited}", "look at the record: native code fails on it")
        text = f"its process ended by {exited}" if exited else "its process or its link went away"
        return Cause("lost", text, "look at the worker's log and at the machine's memory; the work was done again")


def error_cause(failed: Mapping[str, Any]) -> Cause:
    """The cause for an exception that a task brought home."""
    text = f"{failed['type']}: {failed['message']}"
    if failed.get("memory"):
        return Cause("memory", text, "give workers more memory")
    return Cause("error", text, "look at the record, and report the error with it")
