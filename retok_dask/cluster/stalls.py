"""Tasks that give no sign of life: found, told, and got over by rising steps.

A running task reports with its records, and a record has a time limit that
its process does not survive. So a task that is silent for longer has a worker
that stands still, or a message stream that does: Dask times its streams by
the clock of the machine, and one that is set back stops them for as long.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from retok_dask.cluster.patience import in_time
from retok_dask.errors import ClusterError, first_few

if TYPE_CHECKING:
    from distributed import Client

    from retok_dask.cluster.fleet import Fleet, Flight

SHORTEST = 60.0
"""Fewest seconds of silence that are called a stall."""

RECORDS = 1.5
"""Time limits of a record that a running task may be silent: the worker of one that hangs ends itself before."""

STEPS = ("submitted anew", "submitted anew, its workers restarted", "the run stops")
"""What is done about a task that stalls for the first, second and third time."""

RESTART_SECONDS = 10.0
"""Time that a process has to end by itself before its nanny kills it."""

HELD_SECONDS = 5.0
"""Time in which a scheduler that works says what its workers do."""


@dataclass(frozen=True)
class Stall:
    """Tasks that have been silent for too long.

    Attributes:
        flights: the tasks.
        workers: addresses of those that have them, as far as is known.
        seconds: how long nothing was heard of them.
        step: 0 to 2, an index of :data:`STEPS`.
        scheduler_answers: whether the scheduler says what its workers do.
    """

    flights: list[Flight]
    workers: list[str]
    seconds: float
    step: int
    scheduler_answers: bool = True

    @property
    def units(self) -> list[str]:
        """Names of the units, or of parts of them."""
        return [flight.part.id for flight in self.flights]

    @property
    def text(self) -> str:
        """One clause for people."""
        where = f" on {first_few(self.workers)}" if self.workers else ""
        said = "" if self.scheduler_answers else "; the scheduler does not answer either"
        return f"no sign of life from {first_few(self.units)}{where} for {self.seconds:.0f} s{said}"

    @property
    def error(self) -> ClusterError:
        """What ends the run when nothing helped."""
        return ClusterError(
            f"{self.text}. Sending the work again did not help, so the run stops. A worker, a link or a clock stands "
            "still: look at those hosts, and start the same command again, on a new cluster if need be. "
            "Nothing that is committed is lost"
        )


class Watch:
    """Looks for silence among the tasks that are under way.

    Args:
        client: the Dask client.
        fleet: the tasks.
        seconds_per_record: time limit of one record.
    """

    def __init__(self, client: Client, fleet: Fleet, seconds_per_record: float) -> None:
        self.client = client
        self.fleet = fleet
        self.patience = max(SHORTEST, RECORDS * seconds_per_record)
        self._heard = monotonic()
        self._stalls: Counter[str] = Counter()

    def heard(self) -> None:
        """Something was heard of the cluster."""
        self._heard = monotonic()

    def over(self, flight: Flight) -> None:
        """A task has brought an answer."""
        self._stalls.pop(flight.part.id, None)

    def look(self, workers: int) -> Stall | None:
        """The tasks that are silent for too long, if any.

        A task that has begun must be heard of. One that has not may wait for
        its turn: it is missed when nothing runs and nothing is heard though
        there are workers, and those are not busy with the work of others.

        Args:
            workers: how many there are.
        """
        now = monotonic()
        begun = [flight for flight in self.fleet if flight.worker]
        silent = [flight for flight in begun if now - flight.heard > self.patience]
        if silent:
            return self._stall(silent, {flight.worker for flight in silent}, now - min(f.heard for f in silent))
        if begun or not len(self.fleet) or not workers or now - self._heard <= self.patience:
            return None
        quiet = now - self._heard
        held = self._held()
        if held is None:
            return self._stall(list(self.fleet), set(), quiet, answers=False)
        # a task that was given up is not the work of others: where the client's stream stands still, nobody was told
        if not all(self.fleet.sent(key) for keys in held.values() for key in keys):
            self.heard()
            return None
        return self._stall(list(self.fleet), {worker for worker, keys in held.items() if keys}, quiet)

    def _stall(self, flights: list[Flight], workers: set[str], seconds: float, *, answers: bool = True) -> Stall:
        self.heard()  # what is sent anew has its own time
        self._stalls.update(flight.part.id for flight in flights)
        step = min(len(STEPS), max(self._stalls[flight.part.id] for flight in flights)) - 1
        return Stall(flights, sorted(workers), seconds, step, answers)

    def _held(self) -> dict[str, set[Any]] | None:
        """What the workers have to do, by the scheduler's word; None if it does not answer."""
        with suppress(Exception):
            held = in_time(self.client.processing, HELD_SECONDS)
            if held is not None:
                return {worker: set(keys) for worker, keys in held.items()}
        return None


def restart_workers(client: Client, workers: list[str]) -> None:
    """Ask the nannies of some workers for new processes, without waiting for them."""

    def restart() -> None:
        with suppress(Exception):  # what it brings about is heard, and what it does not is the next stall
            client.restart_workers(workers, timeout=RESTART_SECONDS, raise_for_error=False)

    in_time(restart, 0)
