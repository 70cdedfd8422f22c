"""Where a run stands, from its own summaries and signs of life; no Dask in here."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTED = ("records", "samples", "tokens", "loss_tokens", "rejected", "filtered")
RATE_SECONDS = 60.0
"""Stretch of time over which the shown speed is taken."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        units_done, units_total: committed units, of all.
        records, samples, tokens, loss_tokens, rejected, filtered: counts, running units included.
        share_done: part of the input's bytes that is done, 0 to 1.
        tokens_per_second: over the last minute.
        seconds: since the start of this session.
        seconds_left: estimate; None while nothing is known.
        workers: worker processes now.
        deaths: worker processes lost while running a unit.
        dashboard: link for the reader, empty if there is none.
        note: the last thing worth saying.
    """

    units_done: int
    units_total: int
    records: int
    samples: int
    tokens: int
    loss_tokens: int
    rejected: int
    filtered: int
    share_done: float
    tokens_per_second: float
    seconds: float
    seconds_left: float | None
    workers: int = 0
    deaths: int = 0
    dashboard: str = ""
    note: str = ""

    @property
    def trained_share(self) -> float:
        """Trained tokens of all tokens, 0 to 1."""
        return self.loss_tokens / self.tokens if self.tokens else 0.0


@dataclass
class Tracker:
    """Adds up what is done and what is running.

    Args:
        units_total: units of the whole run.
        bytes_total: text bytes of the whole run, as the listing expects them.
    """

    units_total: int
    bytes_total: int
    units_done: int = 0
    bytes_done: int = 0
    deaths: int = 0
    note: str = ""
    done: Counter[str] = field(default_factory=Counter)
    running: dict[str, dict[str, int]] = field(default_factory=dict)
    started: float = field(default_factory=monotonic)
    _bytes_before: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def already(self, units: int, text_bytes: int, counts: Mapping[str, int]) -> None:
        """Count what earlier sessions committed."""
        self.units_done += units
        self.bytes_done += text_bytes
        self._bytes_before += text_bytes
        self.done.update(counts)

    def beat(self, unit: str, counts: Mapping[str, Any]) -> None:
        """Note what a running unit has done so far; never less than it said before."""
        before = self.running.get(unit, {})
        self.running[unit] = {name: max(int(counts.get(name, 0)), before.get(name, 0)) for name in COUNTED}

    def finish(self, unit: str, text_bytes: int, counts: Mapping[str, int]) -> None:
        """Count a committed unit."""
        self.running.pop(unit, None)
        self.units_done += 1
        self.bytes_done += text_bytes
        self.done.update({name: counts.get(name, 0) for name in COUNTED})

    def drop(self, unit: str) -> None:
        """Forget what a unit had done: its attempt is over without a commit."""
        self.running.pop(unit, None)

    def snapshot(self, *, workers: int = 0, dashboard: str = "") -> Snapshot:
        """The present state."""
        now = monotonic()
        totals = Counter(self.done)
        for counts in self.running.values():
            totals.update(counts)
        share = self._share(totals)
        seconds = now - self.started
        here = share - self._bytes_before / max(1, self.bytes_total)
        left = seconds * (1 - share) / here if here > 1e-6 and seconds > 1 else None
        if self.units_done >= self.units_total:
            share, left = 1.0, 0.0
        return Snapshot(
            units_done=self.units_done,
            units_total=self.units_total,
            **{name: totals[name] for name in COUNTED},
            share_done=share,
            tokens_per_second=self._rate(now, totals["tokens"]),
            seconds=seconds,
            seconds_left=left,
            workers=workers,
            deaths=self.deaths,
            dashboard=dashboard,
            note=self.note,
        )

    def _share(self, totals: Counter[str]) -> float:
        """Done bytes, the running units' part guessed by their tokens, of all bytes."""
        if self.bytes_total <= 0:
            return self.units_done / max(1, self.units_total)
        running = totals["tokens"] - self.done["tokens"]
        per_token = self.bytes_done / self.done["tokens"] if self.done["tokens"] else 4.0
        return min(0.999, (self.bytes_done + running * per_token) / self.bytes_total)

    def _rate(self, now: float, tokens: int) -> float:
        self._marks.append((now, tokens))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        return max(0.0, (tokens - before) / (now - since)) if now - since > 0.2 else 0.0
