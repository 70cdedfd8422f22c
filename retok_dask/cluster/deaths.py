"""Why a worker process ended, from everything that was heard about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dask.utils import format_bytes

from retok_dask.types import RejectReason

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["memory", "time", "crash", "heartbeat", "lost", "error"]

QUIET_SHARE = 0.7
"""Share of the time limit without a sign of life after which a death is the timer's: signs come with delay."""

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

    def beat(self, worker: str, pid: int, at: float) -> None:
        """A worker gave a sign of life."""
        self.pids[worker] = pid
        self.heard[worker] = at

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
            died_at: when the scheduler missed it, by the clock of the signs of life; 0 if unknown.
            limits: memory limits by address.
        """
        if worker in self.memory:
            known = limits or {}
            limit = known.get(worker) or max(known.values(), default=0)
            of = f" of {format_bytes(limit)}" if limit else ""
            text = f"its memory grew to {format_bytes(self.memory[worker])}{of}, and its nanny ended it"
            return Cause(
                "memory", text, "give workers more memory, or set units.batch_bytes and units.record_bytes lower"
            )
        if worker in self.silent:
            text = f"no heartbeat for {self.silent[worker]:.0f} s, so the scheduler gave it up"
            return Cause("heartbeat", text, "look at the host and its network; see distributed.scheduler.worker-ttl")
        exited = self.exits.get(self.pids.get(worker, -1), "")
        # the timer exits with status 1; a process that holds the interpreter lock may never have been heard
        unheard = worker not in self.heard and exited == "exit status 1"
        quiet = died_at - self.heard.get(worker, died_at)
        if unheard or (quiet >= QUIET_SHARE * self.seconds_per_record and exited in {"", "exit status 1"}):
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
