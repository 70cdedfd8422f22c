"""The tasks that are under way: submitted as bags, and their answers brought home."""

from __future__ import annotations

import itertools
import uuid
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import dask
from dask.bag import Bag
from distributed import as_completed, futures_of, span

from retok_dask.cluster.worker import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from distributed import Client, Future

    from retok_dask.cluster.isolation import SetAside
    from retok_dask.completions import Unit


GATHERING = 8
"""Batches of answers brought home at once: one whose worker stands still must not hold up the others."""

FIRST = 10
"""Priority of what may end its worker; that of others is 0 and less."""


@dataclass(eq=False)
class Flight:
    """One task that is under way.

    Attributes:
        task: ``encode``, ``probe`` or ``count``.
        part: the unit, or the part of it.
        order: what was sent.
        future: its future.
        worker: where it has begun, as far as it has said so.
        heard: when it gave its last sign of life, by the monotonic clock.
        died_on: workers whose death has been judged for it.
    """

    task: str
    part: Unit
    order: dict[str, Any]
    future: Any
    worker: str = ""
    heard: float = field(default_factory=monotonic)
    died_on: set[str] = field(default_factory=set)

    @property
    def unit_id(self) -> str:
        """The unit that it belongs to."""
        return self.part.base_id

    @property
    def erred(self) -> bool:
        """Whether the scheduler has given the task up; else it runs it again by itself."""
        return bool(self.future.status == "error")


@dataclass
class Outcome:
    """What became of the units of one session."""

    committed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    deaths: int = 0
    retries: int = 0
    set_aside: int = 0


class Fleet:
    """Submits parts of units, and keeps track of them until their answer is here.

    Args:
        client: the Dask client.
        run_id: names the job on the workers.
    """

    def __init__(self, client: Client, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._number = itertools.count()
        self._flights: dict[Any, Flight] = {}
        self._attempts: dict[int, Flight] = {}
        self._bags: set[str] = set()
        self._completed = as_completed(loop=client.loop)
        self._threads = ThreadPoolExecutor(GATHERING, thread_name_prefix="retok-gather")
        self._gathering: set[ThreadFuture[list[tuple[Any, dict[str, Any]]]]] = set()

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    def __contains__(self, flight: Flight) -> bool:
        return self._flights.get(flight.future.key) is flight

    def sent(self, key: Any) -> bool:
        """Whether a task that a worker has was sent from here, be it forgotten meanwhile."""
        return key[0].rpartition("-")[2] in self._bags if isinstance(key, tuple) else False

    @property
    def busy(self) -> bool:
        """Whether a task is under way, or an answer that is still waited for is on its way here."""
        return bool(self._flights)

    def attempt(self, number: int) -> Flight | None:
        """The flight with an attempt's number, if it is still under way."""
        return self._attempts.get(number)

    def submit(self, task: str, parts: Iterable[tuple[Unit, list[SetAside]]], *, suspect: bool = False) -> None:
        """Send parts off: one bag a data set, one part a partition.

        Args:
            task: a name of :data:`TASKS`.
            parts: each with the records that are to be left aside.
            suspect: it may kill its worker.
        """
        by_dataset: dict[str, list[tuple[Unit, dict[str, Any]]]] = {}
        for part, aside in parts:
            by_dataset.setdefault(part.dataset, []).append((part, self._order(part, aside, suspect)))
        for dataset, group in by_dataset.items():
            orders = [order for _, order in group]
            with span(dataset), dask.annotate(priority=FIRST if suspect else _in_turn(orders)):
                bag = self.client.persist(bag_of(task, orders))
            for future in futures_of(bag):
                self._bags.add(ident(future.key)[0])
                part, order = group[future.key[1]]
                flight = Flight(task, part, order, future)
                self._flights[future.key] = self._attempts[order["attempt"]] = flight
                self._completed.add(future)

    def _order(self, part: Unit, aside: list[SetAside], suspect: bool) -> dict[str, Any]:
        order = {"run": self.run_id, "unit": part.to_dict(), "attempt": next(self._number), "suspect": suspect}
        return order | {"aside": [item.to_list() for item in aside]} if aside else order

    def landed(self) -> tuple[list[tuple[Flight, dict[str, Any]]], list[Flight]]:
        """Flights that are over since the last call: those with an answer, and those without."""
        without: list[Flight] = []
        if self._completed.has_ready():
            finished: list[Future] = []
            for future in self._completed.next_batch(block=False):
                if future.key not in self._flights:
                    continue
                if future.status == "finished":
                    finished.append(future)
                else:
                    without.append(self._flights[future.key])
            if finished:
                self._gathering.add(self._threads.submit(self._gather, finished))
        done = {item for item in self._gathering if item.done()}
        self._gathering -= done
        answers = [
            (self._flights[key], answer) for item in done for key, answer in item.result() if key in self._flights
        ]
        for flight, _ in answers:
            self.forget(flight)
        return answers, without

    def _gather(self, futures: list[Future]) -> list[tuple[Any, dict[str, Any]]]:
        """Bring answers home, in a thread: one whose worker has died is computed again, which takes its time."""
        answers = self.client.gather(futures, errors="skip")
        if len(answers) == len(futures):
            return [(future.key, answer[0]) for future, answer in zip(futures, answers, strict=True)]
        pairs = []
        for future in futures:
            try:
                pairs.append((future.key, future.result()[0]))
            except Exception as error:  # noqa: BLE001  its worker died with the answer: do it again
                failed = {"type": type(error).__name__, "message": str(error), "storage": True, "fatal": False}
                pairs.append((future.key, {"failed": failed}))
        return pairs

    def forget(self, flight: Flight) -> None:
        """No longer keep track of a flight."""
        self._flights.pop(flight.future.key, None)
        self._attempts.pop(flight.order["attempt"], None)

    def abandon(self, flight: Flight) -> None:
        """Forget a flight, and tell the scheduler that nobody waits for it."""
        self.forget(flight)
        with suppress(Exception):
            flight.future.cancel(force=True)

    def close(self) -> None:
        """Leave nothing of ours on the scheduler."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.client.status == "running":
            self.client.cancel([flight.future for flight in self], force=True)


def bag_of(task: str, orders: Sequence[dict[str, Any]]) -> Bag:
    """A bag with one order a partition, whose tasks show as ``encode``, ``probe`` or ``count``.

    As ``from_sequence(orders).map(...)``, but Dask calls a fused task after its
    first step, and on the dashboard every unit would be a ``from_sequence``.
    """
    name = f"{task}-{uuid.uuid4().hex}"
    return Bag({(name, i): [order] for i, order in enumerate(orders)}, name, len(orders)).map(TASKS[task])


def _in_turn(orders: Sequence[dict[str, Any]]) -> Callable[[Any], int]:
    """Priorities by which a bag's tasks begin in the order in which they were sent: Dask sorts them by name."""
    numbers = [-order["attempt"] for order in orders]
    return lambda key: numbers[key[1]]


def ident(key: Any) -> Any:
    """What the key of a bag's partition and that of the task it was fused into have in common."""
    return (key[0].rpartition("-")[2], key[1]) if isinstance(key, tuple) and len(key) > 1 else key


def whole(part: Unit) -> Unit:
    """The unit that a part is a restriction of."""
    return replace(part, id=part.base_id, first=None, last=None)


def largest_first(units: list[Unit]) -> list[Unit]:
    """Units in order, but those far above the usual size first, so that none of them runs alone at the end."""
    if not units:
        return units
    usual = sorted(unit.bytes for unit in units)[len(units) // 2]
    return sorted(units, key=lambda unit: -unit.bytes if unit.bytes > 2 * usual else 0)
