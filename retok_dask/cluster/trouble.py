"""What is done about deaths of workers, failures of units, and silence; judged by what was heard of them.

See :mod:`retok_dask.cluster.isolation` for the search for a bad record.
"""

from __future__ import annotations

import heapq
import itertools
import random
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker

from retok_dask.cluster.deaths import Cause, Hearsay, error_cause
from retok_dask.cluster.fleet import Fleet, Flight, Outcome, ident, whole
from retok_dask.cluster.isolation import Isolation, SetAside
from retok_dask.cluster.local import own_cluster
from retok_dask.cluster.replay import command as replay_command
from retok_dask.cluster.stalls import STEPS, Watch, restart_workers
from retok_dask.errors import ClusterError, InputChanged, RetokError, StorageError, first_few

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Client

    from retok_dask.cluster.events import EventLog
    from retok_dask.cluster.tracker import Tracker
    from retok_dask.completions import Unit

STORAGE_TRIES = 6
ERROR_TRIES = 2
LOST_TRIES = 2
"""Deaths from outside that a unit may see before it is searched for a bad record."""

FAILURES_IN_A_ROW = 5
"""Units that are given up with none committed between before the run stops; it can be resumed."""

DEATH_DELAY = 0.5
"""Seconds between a worker's end and its verdict: the nanny's word may come later than the scheduler's."""

EXIT_SECONDS = 10.0
"""Longest wait for the word of a nanny in this process: it says for certain how a worker ended."""


class Trouble:
    """The tasks of a session, and what becomes of those that do not just end well.

    Args:
        client: the Dask client.
        run_id: names the job on the workers.
        tracker: told of every count.
        log: told of every event.
        seconds_per_record: time limit of one record.
        known_bad: records that earlier sessions set aside, by unit id.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        *,
        tracker: Tracker,
        log: EventLog,
        seconds_per_record: float,
        known_bad: dict[str, list[SetAside]] | None,
    ) -> None:
        self.client = client
        self.tracker = tracker
        self.log = log
        self.outcome = Outcome()
        self.workers = 0
        self._known_bad = known_bad or {}
        self._fleet = Fleet(client, run_id)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._isolations: dict[str, Isolation] = {}
        self._lost: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._in_a_row = 0
        self._number = itertools.count()
        self._pausing: set[str] = set()
        self._limits: dict[str, int] = {}
        self._own = own_cluster(client)
        self._hearsay = Hearsay(seconds_per_record, self._own.reasons.by_pid if self._own else {})
        self._watch = Watch(client, self._fleet, seconds_per_record)
        self._restarted: set[str] = set()

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

    # deaths

    def _take_death(self, message: dict[str, Any], at: float) -> None:
        worker = message["worker"]
        if self._own and self._hearsay.awaits_exit(worker) and monotonic() - at < EXIT_SECONDS:
            self._after(DEATH_DELAY, partial(self._take_death, message, at))
            return
        self._judge_death(worker, {ident(key) for key in message["processing-tasks"]}, at)

    # failures

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
        if worker in self._restarted:
            self._leave(aboard, worker)
            return
        begun = [flight for flight in aboard if flight.worker == worker]
        guilty = begun or aboard
        cause = self._hearsay.cause(worker, died, self._limits)
        self.outcome.deaths += 1
        self.tracker.deaths += 1
        units = [flight.part.id for flight in guilty]
        self.tracker.note = f"worker {worker} died on {first_few(units)}: {cause.text}"
        self.log.add("worker_died", worker=worker, units=units, cause=cause.kind, why=cause.text, advice=cause.advice)
        for flight in guilty:
            flight.died_on.add(worker)
            flight.worker = ""
            self._punish(flight, cause)
        self._leave([flight for flight in aboard if flight not in guilty], worker)

    def _leave(self, flights: list[Flight], worker: str = "") -> None:
        """Take tasks off a worker that is gone, without blame: those that have erred, the scheduler has given up."""
        for flight in flights:
            flight.died_on |= {worker} - {""}
            flight.worker = ""
            if flight.erred:
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
        if failed.get("changed"):
            self._give_up(whole(flight.part), failed["message"], InputChanged)
            return
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
        for flight in self._fleet:
            if flight.unit_id == unit.id:
                self._abandon(flight)
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
            if flight.unit_id in self.outcome.failed:
                return
            self._submit(flight.task, [flight.part], suspect=bool(flight.order["suspect"]))

        self._after(pause, submit)

    def _requeue(self, flight: Flight) -> None:
        """Submit the same work under a new key."""
        self._abandon(flight)
        self._again(flight, 0.0)

    def _abandon(self, flight: Flight) -> None:
        self._fleet.abandon(flight)
        self.tracker.drop(flight.unit_id)

    def _check_silence(self) -> None:
        """Get over tasks that give no sign of life; see :mod:`retok_dask.cluster.stalls`."""
        stall = self._watch.look(self.workers)
        if stall is None:
            return
        what = STEPS[stall.step] if stall.step != 1 or self._own else STEPS[0]
        self.tracker.note = f"{stall.text}: {what}"
        seconds = round(stall.seconds, 1)
        self.log.add(
            "stalled", units=stall.units[:20], workers=stall.workers, seconds=seconds, why=stall.text, act=what
        )
        if stall.step == len(STEPS) - 1:
            raise stall.error
        if stall.step == 1 and self._own:
            workers = stall.workers or list(self._hearsay.pids)
            self._restarted |= set(workers)
            restart_workers(self.client, workers)
        for flight in stall.flights:
            self._requeue(flight)
