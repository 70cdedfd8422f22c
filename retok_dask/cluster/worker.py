"""What runs in a worker process: one task a unit, with signs of life.

The job (recipe, tokenizer, template) comes once to each process by a plug-in
and is opened once; a task brings only the description of its unit.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol, Self

import psutil
from distributed import Reschedule, WorkerPlugin, get_worker
from distributed.metrics import context_meter

from retok_dask.cluster.resources import give_back
from retok_dask.cluster.versions import check_worker
from retok_dask.completions import Unit
from retok_dask.datasets import library_versions
from retok_dask.errors import (
    ClusterError,
    InputChanged,
    InputError,
    RecipeError,
    StorageError,
    TemplateError,
    TokenizerError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from distributed import Worker

BEAT_SECONDS = 1.0
"""Time between two reports of a running unit."""

ALIVE_SECONDS = 5.0
"""Time after which a unit reports with its next record, though no batch of it is full."""

OPENING_SECONDS = 900.0
"""Longest time in which a process that opens its job is believed to get there."""

SETTLE_SECONDS = 2.0
"""A worker's first task waits until its process is so old: a nanny does not replace one that dies while it starts."""

RECYCLE_SHARE, GROWN_SHARE = 0.6, 0.2
"""A worker that still holds the first share of its limit after a unit is replaced by a fresh process,
unless it has hardly grown, by less than the second, since it had opened its job: another one would hold as much."""

LEAVING_SECONDS = 0.2
"""Time that a process which is about to be replaced holds a task up, before another gets it."""


class OpenJob(Protocol):
    """A job as it works in a worker process; each call does one unit."""

    seconds_per_record: float

    def encode(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:
        """Read, encode, write and commit the unit; returns its small summary."""

    def probe(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:
        """Do the unit's work and write nothing: does it survive?"""

    def count(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:
        """Say how many records the unit holds."""


class Job(Protocol):
    """A job as it travels: small, picklable, opened once in each process."""

    @property
    def run_id(self) -> str: ...

    def open(self) -> OpenJob: ...


_packed: dict[str, tuple[Job, dict[str, str], str]] = {}
_opened: dict[str, OpenJob] = {}
_joined: dict[str, float] = {}
_fresh: dict[str, int] = {}
_opening = threading.Lock()
_leaving = threading.Event()


class JobPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Brings the job to every worker, also to those that join later."""

    idempotent = True

    def __init__(self, job: Job) -> None:
        self.job = job
        self.name = f"retok-{job.run_id}"
        self.versions = library_versions()

    async def setup(self, worker: Worker) -> None:
        _packed[self.job.run_id] = self.job, self.versions, worker.address
        _joined.setdefault("at", monotonic())
        # how this process ends is told by its pid, and it may never come to say that itself
        worker.loop.asyncio_loop.call_later(0.1, _say_ready, worker, self.job.run_id, monotonic() + OPENING_SECONDS)
        # opened in a thread, so that loading a tokenizer never delays a heartbeat
        worker.loop.asyncio_loop.run_in_executor(None, _open_quietly, self.job.run_id)

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002  Dask calls it so
        _packed.pop(self.job.run_id, None)
        _opened.pop(self.job.run_id, None)


def open_job(run_id: str) -> OpenJob:
    """The job, opened once in this process.

    Raises:
        RuntimeError: this process was never given the job.
        ClusterError: its libraries are not those of the client.
    """
    with _opening:
        if run_id not in _opened:
            if run_id not in _packed:
                msg = f"this worker has no job {run_id!r}: its plug-in is missing or was removed"
                raise RuntimeError(msg)
            job, versions, address = _packed[run_id]
            check_worker(versions, address)
            _opened[run_id] = job.open()
            _fresh["rss"] = _rss()
        return _opened[run_id]


def _say_ready(worker: Worker, run_id: str, until: float) -> None:
    """Tell that this process is there, now and then until it has opened the job: with many on few cores that is long."""
    worker.log_event(topic(run_id), who(worker) | {"what": "ready"})
    if run_id in _packed and run_id not in _opened and monotonic() < until:
        worker.loop.asyncio_loop.call_later(ALIVE_SECONDS, _say_ready, worker, run_id, until)


def _open_quietly(run_id: str) -> None:
    with suppress(Exception):  # the first task opens it again and reports what is wrong
        open_job(run_id)


class Teller:
    """Says what a running unit has done so far, and ends the process if it hangs.

    The time limit is a timer of the kernel. Its signal has no handler, so it
    also ends a process that is stuck in native code, a clock that is set does
    not move it, and the exit status says that it was the timer.
    """

    def __init__(self, order: dict[str, Any], task: str, seconds_per_record: float) -> None:
        self.order = order
        self.task = task
        self.limit = seconds_per_record
        self.totals = dict.fromkeys(("records", "samples", "tokens", "loss_tokens", "rejected", "filtered"), 0)
        self._told = 0.0
        self._armed = 0.0
        self._process = psutil.Process()
        self._worker: Worker | None = None
        with suppress(ValueError):
            self._worker = get_worker()

    def __enter__(self) -> Self:
        self.tell("start")
        self.alive()
        if self.order.get("suspect"):
            # the message must leave this process before something ends it
            sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def alive(self) -> None:
        """Start the time limit anew; cheap enough to be called for each record."""
        now = monotonic()
        if now - self._armed >= self.limit / 20:
            self._armed = now
            signal.setitimer(signal.ITIMER_REAL, self.limit)
        if now - self._told >= ALIVE_SECONDS:
            self.tell("alive")

    def watch(self, records: Iterable[Any]) -> Iterator[Any]:
        """Pass records on, starting the time limit anew with each."""
        for record in records:
            self.alive()
            yield record

    def batch(self, stats: Any) -> None:
        """Count a finished batch (:class:`retok_dask.kernel.UnitStats`), and report now and then."""
        totals = self.totals
        totals["records"] += stats.records_in
        totals["samples"] += stats.samples
        totals["tokens"] += stats.tokens
        totals["loss_tokens"] += stats.loss_tokens
        totals["rejected"] += sum(stats.rejected.values())
        totals["filtered"] += sum(stats.filtered.values())
        for stage, seconds in stats.seconds.items():
            context_meter.digest_metric(stage, seconds, "seconds")
        self.alive()
        if monotonic() - self._told >= BEAT_SECONDS:
            self.tell("batch")

    def tell(self, what: str) -> None:
        """Send one report to the client."""
        self._told = monotonic()
        if self._worker is None:
            return
        message = {
            "what": what,
            "task": self.task,
            "unit": self.order["unit"]["id"],
            "attempt": self.order["attempt"],
            **who(self._worker),
            "rss": self._process.memory_info().rss,
            **self.totals,
        }
        self._worker.log_event(topic(self.order["run"]), message)


def who(worker: Worker) -> dict[str, Any]:
    """What every report says of its sender: address, process, and its own monotonic clock in seconds."""
    return {"worker": worker.address, "pid": os.getpid(), "clock": monotonic()}


def topic(run_id: str) -> str:
    """Name under which a run's reports travel."""
    return f"retok-{run_id}"


def encode_unit(order: dict[str, Any]) -> dict[str, Any]:
    """Task: read, encode, write and commit one unit."""
    return _do("encode", order)


def probe_unit(order: dict[str, Any]) -> dict[str, Any]:
    """Task: find out whether a part of a suspicious unit survives."""
    return _do("probe", order)


def count_records(order: dict[str, Any]) -> dict[str, Any]:
    """Task: count the records of a suspicious unit."""
    return _do("count", order)


TASKS = {"encode": encode_unit, "probe": probe_unit, "count": count_records}


def _do(task: str, order: dict[str, Any]) -> dict[str, Any]:
    """Run one task; what goes wrong is an answer too, so that it always arrives."""
    if _leaving.is_set():  # what is begun here would be lost
        sleep(LEAVING_SECONDS)
        raise Reschedule
    started = monotonic()
    answer: dict[str, Any]
    sleep(max(0.0, _joined.get("at", 0.0) + SETTLE_SECONDS - started))
    try:
        job = open_job(order["run"])
    except Exception as error:  # noqa: BLE001  told to the client
        return {"failed": describe(error) | {"fatal": True}}
    try:
        with Teller(order, task, job.seconds_per_record) as tell:
            answer = getattr(job, task)(Unit.from_dict(order["unit"]), order, tell)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a unit's error never ends the run
        answer = {"failed": describe(error)}
    answer["worker_seconds"] = monotonic() - started
    answer["rss"] = _recycle_if_grown()
    return answer


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain values: what it was, and whether another try may help."""
    chain = [error]
    while (following := chain[-1].__cause__ or chain[-1].__context__) is not None and following not in chain:
        chain.append(following)
    numbers = [item.errno for item in chain if isinstance(item, OSError) and item.errno]
    storage = any(isinstance(item, (StorageError, InputError, OSError, TimeoutError)) for item in chain)
    changed = any(isinstance(item, InputChanged) for item in chain)
    return {
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "storage": storage and not changed,
        "changed": changed,
        "memory": any(isinstance(item, MemoryError) for item in chain),
        "fatal": isinstance(error, (ClusterError, RecipeError, TokenizerError, TemplateError)),
        "errno": numbers[0] if numbers else 0,
        "trace": "".join(traceback.format_exception(error))[-4000:],
    }


def _recycle_if_grown() -> int:
    """Resident bytes; a process that keeps too much of its limit is replaced once its result is away."""
    rss = _rss()
    try:
        worker = get_worker()
    except ValueError:
        return rss
    limit = worker.memory_manager.memory_limit or sys.maxsize
    most = max(RECYCLE_SHARE * limit, _fresh.get("rss", 0) + GROWN_SHARE * limit)
    if rss > most:
        give_back()
        rss = _rss()
        if rss > most and worker.nanny:
            _leaving.set()
            worker.loop.add_callback(worker.loop.call_later, 1.0, _retire, worker)
    return rss


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


async def _retire(worker: Worker) -> None:
    try:
        await worker.close_gracefully(restart=True, reason="retok: memory was not given back after a unit")
    finally:
        _leaving.clear()
