"""A client to work with: ours for one run, the user's, or one at an address.

What is made here is closed here: after success, after any exception, after
SIGINT and SIGTERM. A process that is killed outright cannot close anything;
its workers then notice that it is gone and end themselves.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import dask
from distributed import Client, LocalCluster, get_client

from retok_dask.cluster.deaths import OVER_MEMORY
from retok_dask.cluster.resources import usable_cores, usable_memory
from retok_dask.cluster.settings import own_settings
from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from retok_dask.recipe import Recipe

CONNECT_TIMEOUT = 15.0
"""Seconds in which a scheduler has to answer."""

_STARTING = "RETOK_CLUSTER_OF"
"""Set while a local cluster runs, to the process that made it: its workers inherit it."""

GUARD_ADVICE = (
    "this script starts worker processes at its top level, and each worker would run the script again; "
    "put the call under `if __name__ == '__main__':`, or use the command `retok run`"
)


class ExitReasons(logging.Handler):
    """Listens to the nannies in this process: how each worker process ended, by its pid."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.by_pid: dict[int, str] = {}
        self._over_memory: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        over = re.search(r"\(pid=(\d+)\) exceeded \d+% memory", record.getMessage())
        if over is not None:
            self._over_memory.add(int(over[1]))
        match = re.search(
            r"Worker process (\d+) (was killed by|exited with status) ?(?:signal )?(\d+)", record.getMessage()
        )
        if match is None:
            return
        pid, how, number = int(match[1]), match[2], int(match[3])
        if pid in self._over_memory:
            self.by_pid[pid] = OVER_MEMORY
            return
        if how == "exited with status":
            self.by_pid[pid] = f"exit status {number}"
            return
        with contextlib.suppress(ValueError):
            self.by_pid[pid] = f"signal {number} ({signal.Signals(number).name})"


@dataclass(frozen=True)
class Own:
    """What is known of a cluster that was made here: its size, and how its processes ended."""

    workers: int
    reasons: ExitReasons


_own: WeakKeyDictionary[Client, Own] = WeakKeyDictionary()


def own_cluster(client: Client) -> Own | None:
    """What is known of a client's cluster if it was made here; None for a foreign one."""
    return _own.get(client)


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
    if client is not None:
        yield _usable(client)
        return
    address = scheduler or recipe.cluster.scheduler
    if address:
        with open_address(address) as found:
            yield found
        return
    current = current_client()
    if current is not None:
        yield _usable(current)
        return
    with stop_on_sigterm(), local_client(recipe, workers) as made:
        yield made


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


def refuse_lost(client: Client, error: Exception | None = None) -> None:
    """Raise if a client has lost its scheduler.

    Args:
        client: the client.
        error: what was raised meanwhile, to name as the cause.

    Raises:
        ClusterError: it has.
    """
    if client.status in {"closed", "closing", "connecting"}:
        msg = (
            "the connection to the Dask scheduler is lost: it has ended, or its host or network has. "
            "Nothing that is committed is lost: start the same command again, on a new cluster if need be"
        )
        raise ClusterError(msg) from error


@contextlib.contextmanager
def open_address(address: str, timeout: float = CONNECT_TIMEOUT) -> Iterator[Client]:
    """A client of a running scheduler, closed at the end; the cluster stays.

    Raises:
        ClusterError: nothing answers there in time.
    """
    try:
        with _quiet("distributed"):
            client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, ImportError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = (
            f"no Dask scheduler answers at {address!r} within {timeout:g} s ({why}); "
            "check the address, that the scheduler runs, and that its port is open from here"
        )
        raise ClusterError(msg) from error
    with _quiet("distributed"):  # what matters of a lost connection is said by an error of ours
        try:
            yield client
        finally:
            with contextlib.suppress(OSError, RuntimeError):
                client.close(timeout=10)


@contextlib.contextmanager
def local_client(recipe: Recipe, workers: int | None = None) -> Iterator[Client]:
    """A local cluster of one-thread processes for one run, and its client.

    Raises:
        ClusterError: the worker processes cannot be started.
    """
    refuse_unguarded_script()
    count = workers or recipe.cluster.workers or usable_cores()
    memory = recipe.cluster.worker_memory or int(usable_memory() * 0.9 / count)
    reasons = ExitReasons()
    nanny_log = logging.getLogger("distributed.nanny")
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(own_settings(recipe)))
        stack.enter_context(_mark_workers())
        stack.enter_context(_nanny_level(nanny_log, reasons))
        cluster = _make_cluster(count, memory, recipe.cluster.dashboard)
        stack.callback(_close, cluster)
        client = stack.enter_context(Client(cluster, timeout=CONNECT_TIMEOUT * 2, set_as_default=False))
        _own[client] = Own(count, reasons)
        yield client


def _make_cluster(count: int, memory: int, dashboard: str | None) -> LocalCluster:
    if dashboard is not None and dashboard.startswith(":"):
        dashboard = f"127.0.0.1{dashboard}"
    try:
        with warnings.catch_warnings():
            # a taken dashboard port is no reason to worry anybody: the link shown has the real one
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            return LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                memory_limit=memory,
                dashboard_address=dashboard,
                silence_logs=logging.CRITICAL,
            )
    except (RuntimeError, OSError) as error:
        msg = f"cannot start {count} worker processes on this machine: {error}"
        raise ClusterError(msg) from error


def _close(cluster: LocalCluster) -> None:
    # what does not close in time ends with this process, which its workers watch; Dask may also stumble
    # over a worker that comes or goes at the same time, which must not turn a finished run into a failed one
    with _quiet("distributed"), contextlib.suppress(Exception):
        cluster.close(timeout=20)


@contextlib.contextmanager
def _mark_workers() -> Iterator[None]:
    before = os.environ.get(_STARTING)
    os.environ[_STARTING] = str(os.getpid())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_STARTING, None)
        else:
            os.environ[_STARTING] = before


@contextlib.contextmanager
def _nanny_level(log: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    """Let nannies say how a process ended, to the handler alone."""
    process_log = logging.getLogger("distributed.nanny")
    log.addHandler(handler)
    before = process_log.level, process_log.propagate
    process_log.setLevel(logging.INFO)
    process_log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        process_log.setLevel(before[0])
        process_log.propagate = before[1]


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


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


def refuse_unguarded_script() -> None:
    """Refuse to start processes from the top level of a script without a main guard.

    Each worker process imports the script; without a guard it would start a
    cluster itself, and so on. Checked before anything is started, and once
    more in the worker, for scripts that cannot be read here.

    Raises:
        ClusterError: called at the top level of an unguarded script.
    """
    owner = os.environ.get(_STARTING)
    if owner and owner != str(os.getpid()) and "__mp_main__" in sys.modules:
        raise SystemExit(1)  # the process that started this one says what is wrong
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.endswith("__main__")):
        return
    line = _line_in_script(str(Path(path).resolve()))
    if line is not None and not _is_guarded(Path(path), line):
        msg = f"{path}, line {line}: {GUARD_ADVICE}"
        raise ClusterError(msg)


def _line_in_script(path: str) -> int | None:
    """Line of the script's top level that is being run, if one is."""
    frame: Any = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and str(Path(code.co_filename).resolve()) == path:
            return int(frame.f_lineno)
        frame = frame.f_back
    return None


def _is_guarded(path: Path, line: int) -> bool:
    """Whether a line lies in a block that asks for ``__name__``."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    for node in tree.body:
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            if not isinstance(node, ast.If):
                return False
            return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
    return True
