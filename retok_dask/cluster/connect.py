"""A client to work with: ours for one run, the user's, or one at an address.

What is made here is closed here: after success, after any exception, after
SIGINT and SIGTERM. A process that is killed outright cannot close anything;
its workers then notice that it is gone and end themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

from distributed import Client, get_client
from distributed.comm import get_address_host_port

from retok_dask.cluster.local import quiet, starting_cluster
from retok_dask.cluster.resources import oversubscription, usable_cores, usable_memory
from retok_dask.errors import ClusterError, RetokError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from retok_dask.recipe import Recipe

CONNECT_TIMEOUT = 15.0
"""Seconds in which a scheduler has to answer."""

NOTICE_SECONDS = 5.0
"""Time in which a client sees that its connection is closed, on a busy machine too."""


@contextlib.contextmanager
def connect(
    recipe: Recipe, client: Client | None = None, scheduler: str | None = None, *, workers: int | None = None
) -> Iterator[Client]:
    """Give a Dask client for the recipe, and close what was made for it.

    Args:
        recipe: its ``cluster`` part says what to make if nothing is given.
        client: a client to use and leave alone. A notebook's current client is
            used when neither this nor a scheduler is given.
        scheduler: address of a running scheduler; wins over the recipe's.
        workers: worker processes of a local cluster; wins over the recipe's.

    Raises:
        ClusterError: the scheduler does not answer, has no workers, or a local
            cluster cannot be made from here.
    """
    with contextlib.closing(Connection(recipe, client, scheduler, workers=workers)) as connection:
        yield connection.client()


class Connection:
    """The way to a client, for who has something else to do while the processes of a cluster of ours start.

    Args:
        recipe, client, scheduler, workers: as for :func:`connect`.
    """

    def __init__(
        self,
        recipe: Recipe,
        client: Client | None = None,
        scheduler: str | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        self._recipe = recipe
        self._workers = workers
        self._address = scheduler or recipe.cluster.scheduler
        self._given = current_client() if client is None and not self._address else client
        self._starting: Callable[[], Client] | None = None
        self._stack = contextlib.ExitStack()

    def begin(self) -> None:
        """Let the processes of a cluster of ours start, if there is to be one; does not wait for them."""
        if self._given is None and not self._address and self._starting is None:
            self._stack.enter_context(stop_on_sigterm())
            self._starting = self._stack.enter_context(starting_cluster(self._recipe, self._workers))

    @property
    def crowded(self) -> str:
        """What is to be said of a cluster of ours that has more processes than cores; else empty."""
        ours = self._given is None and not self._address
        return oversubscription(self._workers or self._recipe.cluster.workers or 1) if ours else ""

    def client(self) -> Client:
        """The client, connected.

        Raises:
            ClusterError: as for :func:`connect`.
        """
        if self._given is not None:
            return _usable(self._given)
        if self._address:
            return self._stack.enter_context(open_address(self._address))
        self.begin()
        assert self._starting is not None
        return self._starting()

    def close(self) -> None:
        """Close what was made here."""
        self._stack.close()


def current_client() -> Client | None:
    """The client that is active in this process, if it is alive."""
    try:
        found = get_client(timeout=0)
    except (ValueError, OSError):
        return None
    return found if found.status == "running" else None


def _usable(client: Client) -> Client:
    if client.asynchronous:
        msg = "the client is asynchronous; give a plain `distributed.Client(...)`, which works in a notebook too"
        raise ClusterError(msg)
    if client.status != "running":
        msg = f"the client is {client.status}; make a new one, or let the run make its own cluster"
        raise ClusterError(msg)
    return client


def refuse_lost(client: Client, error: BaseException | None = None) -> None:
    """Raise if a client has lost its scheduler.

    Args:
        client: the client.
        error: what was raised meanwhile, to name as the cause. A call to a scheduler that has ended may fail
            before the client has seen its connection close, so that is waited for.

    Raises:
        ClusterError: it has.
    """
    until = monotonic() + (NOTICE_SECONDS if error is not None else 0)
    while client.status == "running" and monotonic() < until:
        sleep(0.02)
    if client.status in {"closed", "closing", "connecting"}:
        msg = (
            "the connection to the Dask scheduler is lost: it has ended, or its host or network has. "
            "Nothing that is committed is lost: start the same command again, on a new cluster if need be"
        )
        raise ClusterError(msg) from error


@contextlib.contextmanager
def naming_loss(client: Client) -> Iterator[None]:
    """Whatever Dask raises while its connection goes: the lost connection is the news.

    Raises:
        ClusterError: the scheduler was lost meanwhile.
    """
    try:
        yield
    except RetokError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # the latter from a call that the closing client gives up
        refuse_lost(client, error)
        raise


@contextlib.contextmanager
def open_address(address: str, timeout: float = CONNECT_TIMEOUT) -> Iterator[Client]:
    """A client of a running scheduler, closed at the end; the cluster stays.

    Raises:
        ClusterError: it is no address, or nothing answers there in time.
    """
    _require_address(address)
    try:
        with quiet("distributed"):
            client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, ImportError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = (
            f"no Dask scheduler answers at {address!r} within {timeout:g} s ({why}); "
            "check the address, that the scheduler runs, and that its port is open from here"
        )
        raise ClusterError(msg) from error
    with quiet("distributed"):  # what matters of a lost connection is said by an error of ours
        try:
            with naming_loss(client):
                yield client
        finally:
            with contextlib.suppress(OSError, RuntimeError):
                client.close(timeout=10)


def _require_address(address: str) -> None:
    """Refuse what is no address at once; the client would look for it, and stumble when it is closed."""
    if address.startswith(("inproc://", "ucx://")):
        return
    try:
        get_address_host_port(address)
    except ValueError as error:
        msg = f"{address!r} is no address of a Dask scheduler: {error}; write it as tcp://HOST:PORT"
        raise ClusterError(msg) from error


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception while a cluster of ours is open, so that it is closed."""
    default = threading.current_thread() is threading.main_thread()
    default = default and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default:
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass(frozen=True)
class Workers:
    """What a run is planned for.

    Attributes:
        count: worker processes.
        memory: limit of the smallest, bytes; 0 if unknown.
        at_once: how many can be at work at the same time; threads of one process share an interpreter.
        threads: units that one process may have in hand.
    """

    count: int
    memory: int
    at_once: int
    threads: int = 1


def workers_for(recipe: Recipe, client: Client | None, scheduler: str | None) -> Workers:
    """The workers of a client, of a scheduler, or of a cluster that the recipe would make."""
    address = scheduler or recipe.cluster.scheduler
    if client is not None:
        return _ask(client)
    if address:
        with open_address(address) as found:
            return _ask(found)
    cores = usable_cores()
    count = recipe.cluster.workers or cores
    return Workers(count, recipe.cluster.worker_memory or int(usable_memory() * 0.9 / count), min(count, cores))


def _ask(client: Client) -> Workers:
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [int(worker["memory_limit"]) for worker in found if worker.get("memory_limit")]
    count, threads = len(found) or 1, max((worker["nthreads"] for worker in found), default=1)
    return Workers(count, min(limits, default=0), count, threads)
