"""Showing a run: a live bar in a terminal, a calm table in a notebook, plain lines in a log.

None of them needs the dashboard or a widget.
"""

from __future__ import annotations

import html
import os
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

import psutil
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retok_dask.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from retok_dask.cluster.tracker import Snapshot

Mode = Literal["auto", "bar", "notebook", "lines", "none"]
MODES = ("auto", "bar", "notebook", "lines", "none")
FORCE = "RETOK_PROGRESS"
"""Environment variable that chooses the display where ``progress`` is ``auto``."""


class Display(Protocol):
    """Shows what is done before the first unit, then snapshots; called often, decides itself how often to draw."""

    def doing(self, text: str) -> None: ...
    def update(self, snapshot: Snapshot) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self, snapshot: Snapshot) -> None: ...


SHORT = 10.0
"""Seconds below which a prediction gives no number."""


def display_for(mode: str = "auto", stream: TextIO | None = None) -> Display:
    """The display for where this process runs.

    Args:
        mode: one of :data:`MODES`.
        stream: where terminal and plain displays write; standard error by default.

    Raises:
        RecipeError: there is no such display.
    """
    if mode not in MODES:
        msg = f"{mode!r} is no way to show progress.{did_you_mean(mode, MODES)}"
        raise RecipeError(msg)
    stream = stream or sys.stderr
    chosen = detect(stream) if mode == "auto" else mode
    if chosen == "bar":
        return TerminalDisplay(stream)
    if chosen == "notebook":
        return NotebookDisplay()
    return PlainDisplay(stream) if chosen == "lines" else NoDisplay()


def detect(stream: TextIO) -> str:
    """Which display fits: forced by the environment, else notebook, bar or lines."""
    forced = os.environ.get(FORCE, "auto")
    if forced in MODES and forced != "auto":
        return forced
    if _in_kernel():
        return "lines" if _under_papermill() else "notebook"
    return "bar" if stream.isatty() and os.environ.get("TERM") != "dumb" else "lines"


def _in_kernel() -> bool:
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _under_papermill() -> bool:
    """Whether a batch runner started this kernel: nobody looks on, and every update is stored."""
    try:
        parent = psutil.Process().parent()
        words = parent.cmdline() if parent is not None else []
    except psutil.Error:
        return False
    return any("papermill" in word or "nbconvert" in word for word in words[:4])


class NoDisplay:
    """Shows nothing."""

    def doing(self, text: str) -> None: ...
    def update(self, snapshot: Snapshot) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self, snapshot: Snapshot) -> None: ...


class PlainDisplay:
    """One line now and then, rarer the longer the run is: at most about 200 lines in a week."""

    def __init__(self, stream: TextIO, interval: float = 10.0, first: float = 2.0) -> None:
        self.stream = stream
        self.interval = interval
        self._started = monotonic()
        self._first = self._next = self._started + first

    def doing(self, text: str) -> None:
        if text and monotonic() >= self._first:
            self.say(text)

    def update(self, snapshot: Snapshot) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + max(self.interval, (now - self._started) / 20)
        self.say(line(snapshot))

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def close(self, snapshot: Snapshot) -> None:
        self.say(line(snapshot))


class TerminalDisplay:
    """A live bar with two lines of numbers."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream)
        self._live = Live(Text("starting"), console=self.console, refresh_per_second=4, transient=False)
        self._live.start()

    def doing(self, text: str) -> None:
        self._live.update(Text(text), refresh=True)

    def update(self, snapshot: Snapshot) -> None:
        self._live.update(_bar(snapshot))

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def close(self, snapshot: Snapshot) -> None:
        self._live.update(_bar(snapshot), refresh=True)
        self._live.stop()


class NotebookDisplay:
    """One output that is replaced in place: no widget, and the last state stays in the saved notebook."""

    def __init__(self, interval: float = 1.0) -> None:
        from IPython.display import display  # noqa: PLC0415  only inside a kernel

        self.interval = interval
        self._drawn = 0.0
        self._notes: list[str] = []
        self._handle: Any = display({"text/plain": "starting"}, raw=True, display_id=True)

    def doing(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)

    def update(self, snapshot: Snapshot) -> None:
        if monotonic() - self._drawn >= max(self.interval, snapshot.seconds / 600):
            self._draw(snapshot)

    def say(self, text: str) -> None:
        self._notes = [*self._notes, text][-5:]

    def close(self, snapshot: Snapshot) -> None:
        self._draw(snapshot)

    def _draw(self, snapshot: Snapshot) -> None:
        self._drawn = monotonic()
        bundle = {"text/plain": line(snapshot), "text/html": to_html(snapshot, self._notes)}
        self._handle.update(bundle, raw=True)


def line(snapshot: Snapshot) -> str:
    """A snapshot in one line of text."""
    return "  ".join(f"{name} {value}" for name, value in facts(snapshot))


def facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What every display shows, as name and value."""
    shown = [
        ("units", f"{snapshot.units_done:,}/{snapshot.units_total:,} ({snapshot.share_done:.1%})"),
        ("records", f"{snapshot.records:,}"),
        ("tokens", short(snapshot.tokens)),
        ("tokens/s", short(snapshot.tokens_per_second)),
        ("trained", f"{snapshot.trained_share:.1%}"),
        ("rejects", f"{snapshot.rejected:,}"),
        ("time", duration(snapshot.seconds)),
        ("left", duration(snapshot.seconds_left)),
    ]
    if snapshot.deaths:
        shown.append(("worker deaths", str(snapshot.deaths)))
    return shown


def to_html(snapshot: Snapshot, notes: list[str] | None = None) -> str:
    """A snapshot as a small table under a bar; nothing in it is taken as markup."""
    share = f"{snapshot.share_done:.1%}"
    cells = "".join(
        f"<td style='text-align:left;padding:0 1em 0 0'><span style='opacity:.65'>{html.escape(name)}</span> "
        f"<b>{html.escape(value)}</b></td>"
        for name, value in facts(snapshot)
    )
    link = html.escape(snapshot.dashboard, quote=True)
    dashboard = f"<div>dashboard <a href='{link}' target='_blank' rel='noopener'>{link}</a></div>" if link else ""
    said = "".join(f"<div style='opacity:.8'>{html.escape(text)}</div>" for text in (notes or []))
    return (
        "<div style='font-size:90%'>"
        "<div style='height:.6em;border:1px solid currentColor;border-radius:.3em;overflow:hidden;max-width:60em'>"
        f"<div style='height:100%;width:{share};background:#3b7dd8'></div></div>"
        f"<table style='margin:.2em 0'><tr>{cells}</tr></table>{dashboard}{said}</div>"
    )


def _bar(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 1))
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=1.0, completed=snapshot.share_done, width=40),
        Text(f"{snapshot.share_done:.1%}", style="bold"),
        Text(f"{duration(snapshot.seconds)} + {duration(snapshot.seconds_left)} left"),
    )
    grid.add_row(bar)
    words = [f"{name} [b]{value}[/b]" for name, value in facts(snapshot) if name not in {"time", "left"}]
    grid.add_row(Text.from_markup("   ".join(words)))
    if snapshot.dashboard:
        grid.add_row(Text(f"dashboard {snapshot.dashboard}", style="dim"))
    if snapshot.note:
        grid.add_row(Text(snapshot.note, style="yellow"))
    return grid


def short(number: float) -> str:
    """A count in at most four figures.

    >>> short(1234567)
    '1.23M'
    """
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{sign}" if number < 999.5 * limit else f"{number / limit:.0f}{sign}"
    return f"{number:.0f}"


def about(seconds: float) -> str:
    """A predicted time for people; below what starting a cluster takes, no number would be true."""
    return f"in about {duration(seconds)}" if seconds >= SHORT else "in seconds"


def duration(seconds: float | None) -> str:
    """Seconds for people.

    >>> duration(3725)
    '1:02:05'
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days}d {clock}" if days else clock
