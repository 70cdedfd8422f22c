"""Moves units over the cluster until each is committed or given up.

Submits in windows, so that the scheduler holds a bounded number of tasks;
each window is a ``dask.bag`` with one unit a partition. Judges each death of a
worker and each failure of a unit; see :mod:`retok_dask.cluster.isolation`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker

from retok_dask.cluster.connect import own_cluster, refuse_lost
from retok_dask.cluster.deaths import Cause, Hearsay, error_cause
from retok_dask.cluster.ears import Ears
from retok_dask.cluster.fleet import Fleet, Flight, Outcome, ident, largest_first, whole
from retok_dask.cluster.isolation import Isolation, SetAside
from retok_dask.cluster.replay import command as replay_command
from retok_dask.errors import ClusterError, RetokError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from distributed import Client

    from retok_dask.cluster.events import EventLog
    from retok_dask.cluster.tracker import Tracker
    from retok_dask.cluster.worker import Job
    from retok_dask.completions import Unit

STORAGE_TRIES = 6
ERROR_TRIES = 2
LOST_TRIES = 2
"""Deaths from outside that a unit may see before it is searched for a bad record."""

FAILURES_IN_A_ROW = 5
"""Units that are given up with none committed between before the run stops; it can be resumed."""

DEATH_DELAY = 0.5
"""Seconds between a worker's end and its verdict: the nanny's word may come later than the scheduler's."""

REPAIR_SECONDS = 5.0
"""Time between two attempts to bring a cluster of ours back to its size."""

WINDOW = (64, 4000)
"""Fewest and most tasks that the scheduler holds."""


class Driver:
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
        self.client = client
        self.tracker = tracker
        self.log = log
        self.tick = tick
        self.outcome = Outcome()
        self.workers = 0
        self._known_bad = known_bad or {}
        self._queue = deque(largest_first(list(units)))
        self._fleet = Fleet(client, job.run_id)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._isolations: dict[str, Isolation] = {}
        self._lost: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._in_a_row = 0
        self._number = itertools.count()
        self._pausing: set[str] = set()
        self._ears = Ears(client, job)
        self._limits: dict[str, int] = {}
        self._next_repair = monotonic() + REPAIR_SECONDS
        self._own = own_cluster(client)
        self._hearsay = Hearsay(seconds_per_record, self._own.reasons.by_pid if self._own else {})

    def work(self) -> Outcome:
        """Do all units; what cannot be done is in the outcome, with the reason.

        Raises:
            ClusterError: the scheduler is lost, or workers cannot do the job.
            StorageError: storage refuses one unit after the other.
        """
        try:
            self._open()
            while self._queue or self._fleet.busy or self._later or self._isolations:
                self._run_later()
                self._fill()
                moved = self._hear() + self._collect()
                self._check_cluster()
                self.tick()
                if not moved:
                    sleep(0.02)
        except RetokError:
            raise
        except Exception as error:
            # whatever Dask raises while its connection goes: the lost connection is the news
            self._check_cluster(error)
            raise
        finally:
            self._close()
        return self.outcome

    def _open(self) -> None:
        self._ears.open()
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        self.workers = len(info)
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

    def _submit(self, task: str, parts: list[Unit], *, suspect: bool = False) -> None:
        self._fleet.submit(task, [(part, self._aside(part.base_id)) for part in parts], suspect=suspect)

    def _aside(self, unit_id: str) -> list[SetAside]:
        isolation = self._isolations.get(unit_id)
        found = {item.ordinal: item for item in self._known_bad.get(unit_id, [])}
        if isolation is not None:
            found |= isolation.found
        return [found[ordinal] for ordinal in sorted(found)]

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (monotonic() + seconds, next(self._number), action))

    def _run_later(self) -> None:
        while self._later and self._later[0][0] <= monotonic():
            heapq.heappop(self._later)[2]()

    # hearing

    def _hear(self) -> int:
        heard = list(self._ears.take())
        for what, message, at in heard:
            match what:
                case "beat":
                    self._take_beat(message, at)
                case "memory":
                    self._hearsay.over_memory(message["worker"], message["rss"])
                case "silent":
                    for worker in message["workers"]:
                        self._hearsay.no_heartbeat(worker, message["ttl"])
                case "joined":
                    self.workers += 1
                case "left" | "died":
                    self.workers = max(0, self.workers - 1)
                    if what == "died":
                        self._take_death(message, at)
        return len(heard)

    def _take_death(self, message: dict[str, Any], at: float) -> None:
        keys = {ident(key) for key in message["processing-tasks"]}
        self._after(DEATH_DELAY, lambda: self._judge_death(message["worker"], keys, at))

    def _take_beat(self, message: dict[str, Any], at: float) -> None:
        self._hearsay.beat(message["worker"], message["pid"], at)
        flight = self._fleet.attempt(message["attempt"])
        if flight is not None:
            flight.worker = message["worker"]
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
        if "failed" in answer:
            self._take_failure(flight, answer["failed"])
        elif flight.task == "encode":
            self._commit(flight, answer)
        elif flight.task == "probe":
            self._isolations[flight.unit_id].survived(flight.part)
        else:
            self._isolations[flight.unit_id].counted(answer["records"])

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

    # trouble

    def _take_error(self, flight: Flight) -> None:
        """A future that ended without an answer: its worker died, or the scheduler forgot it."""
        if not flight.erred:
            self._requeue(flight)
            return
        error = flight.future.exception()
        if not isinstance(error, KilledWorker):
            failed = {"type": type(error).__name__, "message": str(error), "storage": False, "fatal": False}
            self._fleet.forget(flight)
            self._take_failure(flight, failed)
            return
        worker = error.last_worker.address
        if worker in flight.died_on:
            self._requeue(flight)
        else:
            # the scheduler's word about the death comes too; without it the unit is judged alone
            self._after(10 * DEATH_DELAY, lambda: self._judge_unheard(flight, worker))

    def _judge_unheard(self, flight: Flight, worker: str) -> None:
        if flight in self._fleet and worker not in flight.died_on:
            self._judge_death(worker, {ident(flight.future.key)}, 0.0)

    def _judge_death(self, worker: str, keys: set[Any], died: float) -> None:
        """Find the unit that a worker died of, and decide what is done with each that it had."""
        # what it had finished is not to blame, though its answer may not be here yet
        aboard = [flight for flight in self._fleet if ident(flight.future.key) in keys]
        if not aboard:
            return
        begun = [flight for flight in aboard if flight.worker == worker]
        guilty = begun or aboard
        cause = self._hearsay.cause(worker, died, self._limits)
        self.outcome.deaths += 1
        self.tracker.deaths += 1
        units = [flight.part.id for flight in guilty]
        self.tracker.note = f"worker {worker} died on {', '.join(units[:3])}: {cause.text}"
        self.log.add("worker_died", worker=worker, units=units, cause=cause.kind, why=cause.text, advice=cause.advice)
        for flight in aboard:
            flight.died_on.add(worker)
            if flight in guilty:
                self._punish(flight, cause)
            elif flight.erred:
                self._requeue(flight)

    def _punish(self, flight: Flight, cause: Cause) -> None:
        isolation = self._isolations.get(flight.unit_id)
        if isolation is not None:
            isolation.deaths += 1
        if flight.task != "encode":
            self._abandon(flight)
            if isolation is not None:
                isolation.failed(flight.part, cause.reason, self._detail(cause, flight.part))
            return
        lost = self._lost[flight.unit_id] = self._lost.get(flight.unit_id, 0) + 1
        if cause.of_the_unit or lost >= LOST_TRIES:
            self._suspect(flight, cause)
        elif flight.erred:
            self._requeue(flight)
        else:
            self.tracker.drop(flight.unit_id)  # the scheduler runs it again by itself

    def _suspect(self, flight: Flight, cause: Cause) -> None:
        self._abandon(flight)
        self._lost[flight.unit_id] = 0
        isolation = self._isolations.get(flight.unit_id)
        if isolation is not None:
            isolation.encode_failed(cause.text)
            return
        self._isolations[flight.unit_id] = Isolation(flight.part, cause.text, deaths=1)
        self.log.add("suspected", unit=flight.unit_id, dataset=flight.part.dataset, cause=cause.kind, why=cause.text)

    def _advance(self, isolation: Isolation) -> None:
        """Start the next trials of a search, or end it."""
        for ordinal, item in isolation.found.items():
            if ordinal not in {known.ordinal for known in self._known_bad.get(isolation.unit.id, [])}:
                self._known_bad.setdefault(isolation.unit.id, []).append(item)
                self.outcome.set_aside += 1
                self.log.add("set_aside", unit=isolation.unit.id, dataset=isolation.unit.dataset, record=item.to_list())
        if any(flight.task == "encode" and flight.unit_id == isolation.unit.id for flight in self._fleet):
            return
        if isolation.unit.id in self._pausing:
            return
        while (step := isolation.next_step()) is not None:
            task, part = step
            if task == "failed":
                self._give_up(isolation.unit, isolation.given_up)
                return
            self._submit(task, [part], suspect=True)
            if task != "probe":
                return

    def _detail(self, cause: Cause, part: Unit) -> str:
        replay = replay_command(self.log.folder.url, part.base_id, part.first or 0)
        return f"{cause.text}; found by halving unit {part.base_id}; to replay it alone: {replay}"

    def _take_failure(self, flight: Flight, failed: dict[str, Any]) -> None:
        """An exception that a task brought home."""
        self.tracker.drop(flight.unit_id)
        if failed.get("fatal"):
            msg = f"workers cannot do the job: {failed['type']}: {failed['message']}"
            raise ClusterError(msg)
        tries = self._tries[flight.unit_id] = self._tries.get(flight.unit_id, 0) + 1
        if failed["storage"]:
            self._retry_storage(flight, failed, tries)
            return
        cause = error_cause(failed)
        isolation = self._isolations.get(flight.unit_id)
        self.log.add("failed_try", unit=flight.part.id, task=flight.task, why=cause.text, trace=failed.get("trace", ""))
        if flight.task != "encode" and isolation is not None:
            isolation.failed(flight.part, cause.reason, self._detail(cause, flight.part))
        elif isolation is not None or cause.kind == "memory" or tries >= ERROR_TRIES:
            self._suspect(flight, cause)
        else:
            self._again(flight, 0.0)

    def _retry_storage(self, flight: Flight, failed: dict[str, Any], tries: int) -> None:
        why = f"{failed['type']}: {failed['message']}"
        if tries < STORAGE_TRIES:
            pause = min(60.0, 0.5 * 2**tries) * random.uniform(0.5, 1.5)  # noqa: S311  spreads retries
            self.log.add("retry", unit=flight.part.id, tries=tries, pause=round(pause, 1), cause="storage", why=why)
            self.tracker.note = f"{flight.part.id}: {why[:200]}; trying again in {pause:.0f} s"
            self._again(flight, pause)
            return
        self._give_up(whole(flight.part), f"storage refused it {tries} times; the last time: {why}", StorageError)

    def _give_up(self, unit: Unit, why: str, kind: type[RetokError] = ClusterError) -> None:
        """Note that a unit cannot be done; stop the run if that happens to one after the other."""
        self._isolations.pop(unit.id, None)
        self.outcome.failed[unit.id] = why
        self.tracker.drop(unit.id)
        self.tracker.note = f"unit {unit.id} is given up: {why}"
        self.log.add("unit_failed", unit=unit.id, dataset=unit.dataset, why=why, urls=[p.url for p in unit.parts[:5]])
        self._in_a_row += 1
        if self._in_a_row >= FAILURES_IN_A_ROW:
            msg = (
                f"{self._in_a_row} units failed one after the other, so the run stops; the last one: {why}. "
                "Nothing that is committed is lost: start the same command again when the cause is gone"
            )
            raise kind(msg)

    def _again(self, flight: Flight, pause: float) -> None:
        self.outcome.retries += 1
        self._pausing.add(flight.unit_id)

        def submit() -> None:
            self._pausing.discard(flight.unit_id)
            self._submit(flight.task, [flight.part], suspect=bool(flight.order["suspect"]))

        self._after(pause, submit)

    def _requeue(self, flight: Flight) -> None:
        """Submit the same work under a new key."""
        self._abandon(flight)
        self._again(flight, 0.0)

    def _abandon(self, flight: Flight) -> None:
        self._fleet.abandon(flight)
        self.tracker.drop(flight.unit_id)

    def _check_cluster(self, error: Exception | None = None) -> None:
        refuse_lost(self.client, error)
        if self._own is not None and self.workers < self._own.workers and monotonic() > self._next_repair:
            self._next_repair = monotonic() + REPAIR_SECONDS
            self.client.cluster.scale(self._own.workers)  # makes those anew whose nanny has ended too
