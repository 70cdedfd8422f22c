"""A local cluster of one-thread processes for one run: how it starts, how its processes end, how it is closed."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import dask
from distributed import Client, LocalCluster

from retok_dask.cluster.deaths import OVER_MEMORY
from retok_dask.cluster.resources import usable_cores, usable_memory
from retok_dask.cluster.settings import own_settings
from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future as ThreadFuture

    from retok_dask.recipe import Recipe

START_TIMEOUT = 30.0
"""Seconds in which the scheduler of a cluster of ours has to answer."""

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
def starting_cluster(recipe: Recipe, workers: int | None = None) -> Iterator[Callable[[], Client]]:
    """Start a cluster of one-thread processes for one run, in a thread; gives what waits for it and makes its client.

    Raises:
        ClusterError: called at the top level of an unguarded script; when waited
            for: the worker processes cannot be started.
    """
    refuse_unguarded_script()
    count = workers or recipe.cluster.workers or usable_cores()
    memory = recipe.cluster.worker_memory or int(usable_memory() * 0.9 / count)
    reasons = ExitReasons()
    with contextlib.ExitStack() as stack:
        # what belongs to the whole process is set here: a thread could do that at the same time as others
        stack.enter_context(dask.config.set(own_settings(recipe)))
        stack.enter_context(_mark_workers())
        stack.enter_context(_heard_by(reasons))
        stack.enter_context(warnings.catch_warnings())
        # a taken dashboard port is no reason to worry anybody: the link shown has the real one
        warnings.filterwarnings("ignore", message="Port .* is already in use")
        thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="retok-cluster"))
        making = thread.submit(_make_cluster, count, memory, recipe.cluster.dashboard)
        stack.callback(_close, making)

        def client() -> Client:
            made = stack.enter_context(Client(making.result(), timeout=START_TIMEOUT, set_as_default=False))
            _own[made] = Own(count, reasons)
            return made

        yield client


def _make_cluster(count: int, memory: int, dashboard: str | None) -> LocalCluster:
    if dashboard is not None and dashboard.startswith(":"):
        dashboard = f"127.0.0.1{dashboard}"
    # a terminal sends Ctrl-C to all processes; workers, which inherit this through the cluster's own threads, leave it
    # to the client, which closes them. What the first process needs would undo it, and is started before
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
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
        msg = (
            f"cannot start {count} worker processes on this machine: {error}; "
            "start the same command again, with fewer of them (cluster.workers) if that does not help"
        )
        raise ClusterError(msg) from error


def _close(making: ThreadFuture[LocalCluster]) -> None:
    # what does not close in time ends with this process, which its workers watch; Dask may also stumble
    # over a worker that comes or goes at the same time, which must not turn a finished run into a failed one
    with quiet("distributed"), contextlib.suppress(Exception):
        making.result().close(timeout=20)


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
def _heard_by(handler: logging.Handler) -> Iterator[None]:
    """Let nannies say how a process ended, to the handler alone."""
    log = logging.getLogger("distributed.nanny")
    log.addHandler(handler)
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Say nothing of a logger's meanwhile."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


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
