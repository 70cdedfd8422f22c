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
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import dask.bag
from distributed import KilledWorker, as_completed, futures_of, span

from retok_dask.cluster.connect import own_cluster
from retok_dask.cluster.deaths import Cause, Hearsay, error_cause
from retok_dask.cluster.isolation import Isolation, SetAside
from retok_dask.cluster.replay import command as replay_command
from retok_dask.cluster.worker import TASKS, JobPlugin, topic
from retok_dask.errors import ClusterError, RetokError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from distributed import Client, Future

    from retok_dask.cluster.events import EventLog
    from retok_dask.cluster.tracker import Tracker
    from retok_dask.cluster.worker import Job
    from retok_dask.completions import Unit

STORAGE_TRIES = 6
ERROR_TRIES = 2
LOST_TRIES = 2
"""Deaths from outside that a unit may see before it is searched for a bad record."""

STORAGE_FAILURES = 5
"""Units in a row that storage refuses for good before the run stops; it can be resumed."""

DEATH_DELAY = 0.5
"""Seconds between a worker's end and its verdict: the nanny's word may come later than the scheduler's."""

REPAIR_SECONDS = 5.0
"""Time between two attempts to bring a cluster of ours back to its size."""

WINDOW = (64, 4000)
"""Fewest and most tasks that the scheduler holds."""


@dataclass
class Flight:
    """One task that is under way."""

    task: str
    part: Unit
    order: dict[str, Any]
    future: Any
    worker: str = ""
    died_on: set[str] = field(default_factory=set)

    @property
    def unit_id(self) -> str:
        return self.part.base_id


@dataclass
class Outcome:
    """What became of the units of one session."""

    committed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    deaths: int = 0
    retries: int = 0
    set_aside: int = 0


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
        self.job = job
        self.tracker = tracker
        self.log = log
        self.tick = tick
        self.outcome = Outcome()
        self.workers = 0
        self._known_bad = known_bad or {}
        self._queue = deque(largest_first(list(units)))
        self._units: dict[str, Unit] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._flights: dict[Any, Flight] = {}
        self._isolations: dict[str, Isolation] = {}
        self._lost: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._storage_failures = 0
        self._number = itertools.count()
        self._pausing: set[str] = set()
        self._messages: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._completed = as_completed(loop=client.loop)
        self._thread = ThreadPoolExecutor(2, thread_name_prefix="retok-gather")
        self._gathering: set[ThreadFuture[Any]] = set()
        self._limits: dict[str, int] = {}
        self._next_repair = monotonic() + REPAIR_SECONDS
        self._own = own_cluster(client)
        self._hearsay = Hearsay(seconds_per_record, self._own.reasons.by_pid if self._own else {})

    # life

    def work(self) -> Outcome:
        """Do all units; what cannot be done is in the outcome, with the reason.

        Raises:
            ClusterError: the scheduler is lost, or workers cannot do the job.
            StorageError: storage refuses one unit after the other.
        """
        try:
            self._open()
            while self._queue or self._flights or self._later or self._gathering or self._isolations:
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
        for name, handler in self._topics().items():
            self.client.subscribe_topic(name, handler)
        try:
            self.client.register_plugin(JobPlugin(self.job))
        except Exception as error:
            msg = f"the workers cannot take the job: {type(error).__name__}: {error}"
            raise ClusterError(msg) from error
        self._ask_workers()

    def _topics(self) -> dict[str, Callable[[Any], None]]:
        def hear(name: str) -> Callable[[Any], None]:
            return lambda event: self._messages.put((name, event[1]))

        names = (topic(self.job.run_id), "all", "scheduler", "worker-restart-memory")
        return {name: hear(name) for name in names}

    def _close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.client.status != "running":
            return
        with suppress(Exception):
            self.client.cancel([flight.future for flight in self._flights.values()], force=True)
            for name in self._topics():
                self.client.unsubscribe_topic(name)
            self.client.unregister_worker_plugin(f"retok-{self.job.run_id}")

    # submitting

    def _fill(self) -> None:
        for isolation in list(self._isolations.values()):
            self._advance(isolation)
        low, high = WINDOW
        window = min(high, max(low, 8 * self.workers))
        if len(self._flights) > window // 2 or not self._queue:
            return
        count = min(window - len(self._flights), len(self._queue))
        self._submit("encode", [self._queue.popleft() for _ in range(count)])

    def _submit(self, task: str, parts: list[Unit], *, suspect: bool = False) -> None:
        by_dataset: dict[str, list[Unit]] = {}
        for part in parts:
            self._units.setdefault(part.base_id, part)
            by_dataset.setdefault(part.dataset, []).append(part)
        for dataset, group in by_dataset.items():
            orders = [self._order(part, suspect) for part in group]
            with span(dataset):
                bag = dask.bag.from_sequence(orders, npartitions=len(orders)).map(TASKS[task])
                bag = self.client.persist(bag, priority=10 if suspect else 0)
            for future in futures_of(bag):
                number = future.key[1]
                self._flights[future.key] = Flight(task, group[number], orders[number], future)
                self._completed.add(future)

    def _order(self, part: Unit, suspect: bool) -> dict[str, Any]:
        aside = self._aside(part.base_id)
        order = {"run": self.job.run_id, "unit": part.to_dict(), "attempt": next(self._number), "suspect": suspect}
        return order | {"aside": [item.to_list() for item in aside]} if aside else order

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
        heard = 0
        with suppress(Empty):
            while heard < 1000:
                name, message = self._messages.get_nowait()
                heard += 1
                self._take_message(name, message)
        return heard

    def _take_message(self, name: str, message: Any) -> None:
        if not isinstance(message, dict):
            return
        action = message.get("action")
        if name == topic(self.job.run_id):
            self._take_beat(message)
        elif name == "worker-restart-memory":
            self._hearsay.over_memory(message["worker"], message["rss"])
        elif name == "scheduler" and action == "worker-ttl-timed-out":
            for worker in message["workers"]:
                self._hearsay.no_heartbeat(worker, message["ttl"])
        elif name == "all" and action == "remove-worker":
            self.workers = max(0, self.workers - 1)
            if not message.get("expected"):
                died, keys = monotonic(), {_ident(key) for key in message["processing-tasks"]}
                self._after(DEATH_DELAY, lambda: self._judge_death(message["worker"], keys, died))
        elif name == "all" and action == "add-worker":
            self.workers += 1

    def _take_beat(self, message: dict[str, Any]) -> None:
        self._hearsay.beat(message["worker"], message["pid"])
        for flight in self._flights.values() if message["what"] == "start" else ():
            if flight.order["attempt"] == message["attempt"]:
                flight.worker = message["worker"]
        if message["task"] == "encode":
            self.tracker.beat(message["unit"], message)

    # results

    def _collect(self) -> int:
        if self._completed.has_ready():
            finished: list[Future] = []
            others: list[Future] = []
            for future in self._completed.next_batch(block=False):
                if future.key in self._flights:
                    (finished if future.status == "finished" else others).append(future)
            if finished:
                self._gathering.add(self._thread.submit(self._gather, finished))
            for future in others:
                self._take_error(self._flights[future.key])
            return len(finished) + len(others)
        done = {item for item in self._gathering if item.done()}
        self._gathering -= done
        for item in done:
            for key, answer in item.result():
                flight = self._flights.pop(key, None)
                if flight is not None:
                    self._take_answer(flight, answer)
        return len(done)

    def _gather(self, futures: list[Future]) -> list[tuple[Any, dict[str, Any]]]:
        answers = self.client.gather(futures, errors="skip")
        if len(answers) == len(futures):
            return [(future.key, answer[0]) for future, answer in zip(futures, answers, strict=True)]
        pairs = []
        for future in futures:
            try:
                pairs.append((future.key, future.result()[0]))
            except Exception as error:  # noqa: BLE001  its worker died with the answer: do it again
                failed = {"type": type(error).__name__, "message": str(error), "storage": True, "errno": 0}
                pairs.append((future.key, {"failed": failed}))
        return pairs

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
        self._storage_failures = 0
        self.outcome.committed += 1
        isolation = self._isolations.pop(unit.id, None)
        self.tracker.finish(unit.id, unit.bytes, answer)
        event = {"unit": unit.id, "dataset": unit.dataset, "worker": flight.worker, "bytes": unit.bytes, **answer}
        self.log.add("unit", **event)
        if isolation is not None and isolation.found:
            self.log.add("isolated", unit=unit.id, records=sorted(isolation.found), deaths=isolation.deaths)
        self._units.pop(unit.id, None)

    # trouble

    def _take_error(self, flight: Flight) -> None:
        """A future that ended without an answer: its worker died, or the scheduler forgot it."""
        if flight.future.status != "error":
            self._requeue(flight)
            return
        error = flight.future.exception()
        if not isinstance(error, KilledWorker):
            failed = {"type": type(error).__name__, "message": str(error), "storage": False, "errno": 0}
            self._flights.pop(flight.future.key)
            self._take_failure(flight, failed)
            return
        worker = error.last_worker.address
        if worker in flight.died_on:
            self._requeue(flight)
        else:
            # the scheduler's word about the death comes too; without it the unit is judged alone
            self._after(10 * DEATH_DELAY, lambda: self._judge_unheard(flight, worker))

    def _judge_unheard(self, flight: Flight, worker: str) -> None:
        if self._flights.get(flight.future.key) is flight and worker not in flight.died_on:
            self._judge_death(worker, {_ident(flight.future.key)}, monotonic())

    def _judge_death(self, worker: str, keys: set[Any], died: float) -> None:
        """Find the unit that a worker died of, and decide what is done with each that it had."""
        aboard = [flight for key, flight in self._flights.items() if _ident(key) in keys or flight.worker == worker]
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
            elif flight.future.status == "error":
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
        elif flight.future.status == "error":
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
        if any(flight.task == "encode" and flight.unit_id == isolation.unit.id for flight in self._flights.values()):
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
        self._storage_failures += 1
        self._give_up(self._units[flight.unit_id], f"storage refused it {tries} times; the last time: {why}")
        if self._storage_failures >= STORAGE_FAILURES:
            msg = (
                f"storage refused {self._storage_failures} units one after the other, so the run stops; the last time: {why}. "
                "Nothing that is committed is lost: start the same command again when storage works"
            )
            raise StorageError(msg)

    def _give_up(self, unit: Unit, why: str) -> None:
        self._isolations.pop(unit.id, None)
        self.outcome.failed[unit.id] = why
        self.tracker.drop(unit.id)
        self.tracker.note = f"unit {unit.id} is given up: {why}"
        self.log.add("unit_failed", unit=unit.id, dataset=unit.dataset, why=why, urls=[p.url for p in unit.parts[:5]])

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
        self._flights.pop(flight.future.key, None)
        self.tracker.drop(flight.unit_id)
        with suppress(Exception):
            flight.future.cancel(force=True)

    # the cluster

    def _check_cluster(self, error: Exception | None = None) -> None:
        if self.client.status in {"closed", "closing", "connecting"}:
            msg = (
                "the connection to the Dask scheduler is lost: it has ended, or its host or network has. "
                "Nothing that is committed is lost: start the same command again, on a new cluster if need be"
            )
            raise ClusterError(msg) from error
        if self._own is not None and self.workers < self._own.workers and monotonic() > self._next_repair:
            self._next_repair = monotonic() + REPAIR_SECONDS
            self.client.cluster.scale(self._own.workers)  # makes those anew whose nanny has ended too

    def _ask_workers(self) -> None:
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        self.workers = len(info)
        self._limits = {address: int(worker.get("memory_limit") or 0) for address, worker in info.items()}


def largest_first(units: list[Unit]) -> list[Unit]:
    """Units in order, but those far above the usual size first, so that none of them runs alone at the end."""
    if not units:
        return units
    usual = sorted(unit.bytes for unit in units)[len(units) // 2]
    return sorted(units, key=lambda unit: -unit.bytes if unit.bytes > 2 * usual else 0)


def _ident(key: Any) -> Any:
    """What the key of a bag's partition and that of the task it was fused into have in common."""
    return (key[0].rpartition("-")[2], key[1]) if isinstance(key, tuple) and len(key) > 1 else key
