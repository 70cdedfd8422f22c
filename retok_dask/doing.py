"""What is being done at this moment, said to whoever looks on.

Whatever may take seconds says so by :func:`doing`; the innermost listener hears
it, and where there is none it costs nothing.
"""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Listener = Callable[[str], None]

T = TypeVar("T")

_listeners: list[Listener] = []


def doing(text: str) -> None:
    """Say what is being done from now on; an empty text says that there is something else to look at."""
    if _listeners:
        _listeners[-1](text)


def counted(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """The items, and before each of them how many of how many are done."""
    for number, item in enumerate(items):
        doing(f"{text}: {number:,} of {total:,}")
        yield item


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let a listener hear what is being done meanwhile, in place of those outside."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Onlooker:
    """A listener that shows it on a stream: one line that changes on a terminal, a line now and then in a log.

    Args:
        stream: standard error, since results go to standard output.
        interval: seconds between two lines of a log, the first of them included.
    """

    def __init__(self, stream: TextIO, interval: float = 10.0) -> None:
        self._stream = stream
        self._interval = interval
        self._next = monotonic() + interval
        self._status: Any = None

    def __call__(self, text: str) -> None:
        if not text:
            self.close()
        elif self._stream.isatty():
            self._show(text)
        elif monotonic() >= self._next:
            print(text, file=self._stream, flush=True)
            self._next = monotonic() + self._interval

    def close(self) -> None:
        """Take away the line that changes."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415  only where somebody looks on

        if self._status is None:
            from rich.console import Console  # noqa: PLC0415

            self._status = Console(file=self._stream).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))
