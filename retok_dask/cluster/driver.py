"""Moves units over the cluster until each is committed or given up.

Submits in windows, so that the scheduler holds a bounded number of tasks;
each window is a ``dask.bag`` with one unit a partition. Judges each death of a
worker and each failure of a unit; see :mod:`retok_dask.cluster.isolation`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from retok_dask.cluster.connect import refuse_lost
from retok_dask.cluster.ears import Ears
from retok_dask.cluster.fleet import Flight, Outcome, largest_first
from retok_dask.cluster.trouble import DEATH_DELAY, Trouble
from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from distributed import Client

    from retok_dask.cluster.events import EventLog
    from retok_dask.cluster.isolation import SetAside
    from retok_dask.cluster.tracker import Tracker
    from retok_dask.cluster.worker import Job
    from retok_dask.completions import Unit

REPAIR_SECONDS = 5.0
"""Time between two attempts to bring a cluster of ours back to its size."""

NOTICE_SECONDS = 40.0
"""Time in which a process that ended is there again, if its nanny is; after that there are to be more of both."""

EMPTY_SECONDS = 180.0
"""Longest time that a cluster of ours may have no worker at all."""

LONELY_SECONDS = 10.0
"""Time without any worker after which a run on a cluster that is not ours says what it waits for."""

WINDOW = (64, 4000)
"""Fewest and most tasks that the scheduler holds."""


class Driver(Trouble):
    """One session of a run on one cluster.

    Args:
        client: the Dask client.
        job: what workers do; registered on all of them.
        units: the units to do.
        tracker: told of every count.
        log: told of every event.
        tick: called several times a second from the same thread, to draw and to look for trouble.
        known_bad: records that earlier sessions set aside, by unit id.
    """

    def __init__(
        self,
        client: Client,
        job: Job,
        units: Iterable[Unit],
        *,
        tracker: Tracker,
        log: EventLog,
        seconds_per_record: float,
        tick: Callable[[], None],
        known_bad: dict[str, list[SetAside]] | None = None,
    ) -> None:
        super().__init__(
            client, job.run_id, tracker=tracker, log=log, seconds_per_record=seconds_per_record, known_bad=known_bad
        )
        self.tick = tick
        self._queue = deque(largest_first(list(units)))
        self._ears = Ears(client, job)
        self._next_repair = monotonic() + REPAIR_SECONDS
        self._whole = self._grown = monotonic()
        self._told = False

    def work(self) -> Outcome:
        """Do all units; what cannot be done is in the outcome, with the reason.

        Raises:
            ClusterError: the scheduler is lost, or workers cannot do the job. What Dask itself raises while a
                connection goes is left to :func:`retok_dask.cluster.connect.naming_loss`.
            StorageError: storage refuses one unit after the other.
        """
        try:
            self._open()
            while self._queue or self._fleet.busy or self._later or self._isolations:
                self._turn()
        finally:
            self._close()
        return self.outcome

    def _turn(self) -> None:
        self._run_later()
        self._fill()
        moved = self._hear() + self._collect()
        if moved:
            self._watch.heard()
        self._check_cluster()
        self._check_silence()
        self.tick()
        if not moved:
            sleep(0.02)

    def _open(self) -> None:
        self._ears.open()
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        self.workers = len(info)
        self._read_limits(info)

    def _read_limits(self, info: dict[str, Any]) -> None:
        self._limits = {address: int(worker.get("memory_limit") or 0) for address, worker in info.items()}

    def _close(self) -> None:
        with suppress(Exception):  # a cluster that is gone needs no goodbye
            self._fleet.close()
            if self.client.status == "running":
                self._ears.close()

    # submitting

    def _fill(self) -> None:
        for isolation in list(self._isolations.values()):
            self._advance(isolation)
        low, high = WINDOW
        window = min(high, max(low, 8 * self.workers))
        if len(self._fleet) > window // 2 or not self._queue:
            return
        count = min(window - len(self._fleet), len(self._queue))
        self._submit("encode", [self._queue.popleft() for _ in range(count)])

    # hearing

    def _hear(self) -> int:
        heard = list(self._ears.take())
        for what, message, at in heard:
            match what:
                case "ready":
                    self._hearsay.beat(message["worker"], message["pid"], at, message["clock"])
                case "beat":
                    self._take_beat(message, at)
                case "memory":
                    self._hearsay.over_memory(message["worker"], message["rss"])
                case "silent":
                    for worker in message["workers"]:
                        self._hearsay.no_heartbeat(worker, message["ttl"])
                case "joined":
                    self.workers += 1
                    if not self._limits:
                        self._read_limits(self.client.scheduler_info(n_workers=-1)["workers"])
                case "left" | "died":
                    self.workers = max(0, self.workers - 1)
                    if what == "died":
                        self._after(DEATH_DELAY, partial(self._take_death, message, at))
                    else:
                        self._leave([flight for flight in self._fleet if flight.worker == message["worker"]])
        return len(heard)

    def _take_beat(self, message: dict[str, Any], at: float) -> None:
        self._hearsay.beat(message["worker"], message["pid"], at, message["clock"])
        flight = self._fleet.attempt(message["attempt"])
        if flight is not None:
            flight.worker, flight.heard = message["worker"], at
        if message["task"] == "encode":
            self.tracker.beat(message["unit"], message)

    # results

    def _collect(self) -> int:
        answers, without = self._fleet.landed()
        for flight, answer in answers:
            self._take_answer(flight, answer)
        for flight in without:
            self._take_error(flight)
        return len(answers) + len(without)

    def _take_answer(self, flight: Flight, answer: dict[str, Any]) -> None:
        self._watch.over(flight)
        isolation = self._isolations.get(flight.unit_id)
        if "failed" in answer:
            self._take_failure(flight, answer["failed"])
        elif flight.task == "encode":
            self._commit(flight, answer)
        elif isolation is not None and flight.task == "probe":
            isolation.survived(flight.part)
        elif isolation is not None:
            isolation.counted(answer["records"])

    def _commit(self, flight: Flight, answer: dict[str, Any]) -> None:
        unit = flight.part
        self._in_a_row = 0
        self.outcome.committed += 1
        isolation = self._isolations.pop(unit.id, None)
        self.tracker.finish(unit.id, unit.bytes, answer)
        event = {"unit": unit.id, "dataset": unit.dataset, "worker": flight.worker, "bytes": unit.bytes, **answer}
        self.log.add("unit", **event)
        if isolation is not None and isolation.found:
            self.log.add("isolated", unit=unit.id, records=sorted(isolation.found), deaths=isolation.deaths)

    def _check_cluster(self) -> None:
        refuse_lost(self.client)
        if self.workers >= (1 if self._own is None else self._own.workers):
            self._whole, self._told = monotonic(), False
        elif self._own is None:
            self._tell_empty(monotonic() - self._whole)
        elif monotonic() > self._next_repair:
            self._repair(self._own.workers, monotonic() - self._whole)

    def _tell_empty(self, seconds: float) -> None:
        """Say once that a cluster which somebody else looks after has no worker: it may be growing, or forgotten."""
        if self._told or seconds < LONELY_SECONDS:
            return
        self._told = True
        why, act = "the cluster has no worker", "the run waits for one; start some, or scale the cluster"
        self.tracker.note = f"{why}: {act}"
        self.log.add("stalled", units=[], workers=[], seconds=round(seconds, 1), why=why, act=act)

    def _repair(self, wanted: int, seconds: float) -> None:
        """Bring a cluster of ours back to its size.

        Raises:
            ClusterError: it has no worker for long.
        """
        self._next_repair = monotonic() + REPAIR_SECONDS
        if not self.workers and seconds > EMPTY_SECONDS:
            msg = (
                f"all workers are lost, and no new one came in {seconds:.0f} s: look at this machine's memory and "
                "processes, and start the same command again. Nothing that is committed is lost"
            )
            raise ClusterError(msg)
        cluster = self.client.cluster
        if min(seconds, monotonic() - self._grown) > NOTICE_SECONDS:
            self._grown = monotonic()  # the cluster has not seen that some of its nannies have ended
            cluster.scale(len(cluster.worker_spec) + wanted - self.workers)
        else:
            cluster.scale(max(wanted, len(cluster.worker_spec)))  # makes those anew whose nanny Dask saw end
