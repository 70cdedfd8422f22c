"""Calls to a cluster that wait no longer than so long: one worker that stands still holds many of Dask's up."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ANSWER_SECONDS = 120.0
"""Time in which all workers of a cluster answer, large clusters and busy machines included."""

GOODBYE_SECONDS = 5.0
"""Time for what is said at the end, and is no loss if it is not heard."""


def in_time(call: Callable[[], T], seconds: float) -> T | None:
    """The answer of a call, or None if it has none by then.

    What it raises in time is raised here. A call that is late goes on in a
    thread that keeps no process alive.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  raised again below
            errors.append(error)

    thread = threading.Thread(target=work, name="retok-ask", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return answers[0] if answers else None


def answer_of(call: Callable[[], T], what: str) -> T:
    """As :func:`in_time`, where there is no going on without an answer.

    Raises:
        ClusterError: there is none in :data:`ANSWER_SECONDS`.
    """
    found = in_time(lambda: [call()], ANSWER_SECONDS)
    if found is None:
        msg = (
            f"no answer from the cluster to {what} in {ANSWER_SECONDS:.0f} s: a worker, a link or the scheduler "
            "stands still. Look at the cluster's hosts, or start the same command on a new cluster"
        )
        raise ClusterError(msg)
    return found[0]
