"""What a run hears from its cluster: signs of life from workers, deaths from scheduler and nannies."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from retok_dask.cluster.connect import refuse_lost
from retok_dask.cluster.patience import GOODBYE_SECONDS, answer_of, in_time
from retok_dask.cluster.worker import JobPlugin, topic
from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client

    from retok_dask.cluster.worker import Job

AT_ONCE = 1000
"""Messages taken in one go; then results are looked at again."""


class Heard(NamedTuple):
    """One message.

    Attributes:
        what: ``ready``, ``beat``, ``memory``, ``silent``, ``died``, ``left`` or ``joined``.
        message: as it was sent.
        at: when it came here, by the monotonic clock of this process: other clocks may be set meanwhile.
    """

    what: str
    message: dict[str, Any]
    at: float


class Ears:
    """Registers a job on all workers, and listens until it is closed.

    Args:
        client: the Dask client.
        job: the job; later workers get it too.
    """

    def __init__(self, client: Client, job: Job) -> None:
        self.client = client
        self.job = job
        self._messages: SimpleQueue[tuple[str, float, Any]] = SimpleQueue()
        self._topics = {
            topic(job.run_id): self._handler("run"),
            "all": self._handler("all"),
            "scheduler": self._handler("scheduler"),
            "worker-restart-memory": self._handler("memory"),
        }

    def _handler(self, name: str) -> Callable[[Any], None]:
        return lambda event: self._messages.put((name, monotonic(), event[1]))

    def open(self) -> None:
        """Subscribe, and send the job to the workers.

        Raises:
            ClusterError: the workers cannot take it, or the scheduler is lost.
        """
        for name, handler in self._topics.items():
            self.client.subscribe_topic(name, handler)
        try:
            answer_of(lambda: self.client.register_plugin(JobPlugin(self.job)), "the job")
        except ClusterError:
            raise
        except Exception as error:
            refuse_lost(self.client, error)
            msg = f"the workers cannot take the job: {type(error).__name__}: {error}"
            raise ClusterError(msg) from error

    def close(self) -> None:
        """Unsubscribe, and take the job back."""
        for name in self._topics:
            self.client.unsubscribe_topic(name)
        in_time(lambda: self.client.unregister_worker_plugin(f"retok-{self.job.run_id}"), GOODBYE_SECONDS)

    def take(self) -> Iterator[Heard]:
        """What was heard since the last call."""
        with suppress(Empty):
            for _ in range(AT_ONCE):
                name, at, message = self._messages.get_nowait()
                what = _meaning(name, message)
                if what:
                    yield Heard(what, message, at)


def _meaning(name: str, message: Any) -> str:
    if not isinstance(message, dict):
        return ""
    action = message.get("action")
    if name == "run":
        return "ready" if message.get("what") == "ready" else "beat"
    if name == "memory":
        return "memory"
    if name == "scheduler":
        return "silent" if action == "worker-ttl-timed-out" else ""
    if action == "remove-worker":
        return "left" if message.get("expected") else "died"
    return "joined" if action == "add-worker" else ""
