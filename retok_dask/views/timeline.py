"""Plots of how a run went over time, from its event log: throughput, memory, workers and their deaths."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from retok_dask.views.plots import Plot, canvas, style
from retok_dask.views.series import CYCLE
from retok_dask.views.summary import cell, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

Event = dict[str, Any]

_MAX_LANES = 40
_MiB = 1024 * 1024


def _sessions(events: Sequence[Event]) -> tuple[list[Event], float]:
    """Events of the last session, and its start; a run that was resumed has several."""
    last = next((event.get("session") for event in reversed(events)), None)
    mine = [event for event in events if event.get("session") == last]
    return mine, float(mine[0]["at"]) if mine else 0.0


def _spell(events: Sequence[Event]) -> str:
    if not events:
        return ""
    return dt.datetime.fromtimestamp(float(events[0]["at"]), dt.UTC).strftime(" (from %Y-%m-%d %H:%M UTC)")


def throughput(events: Sequence[Event]) -> Plot:
    """Tokens per second over the last session, in at most 60 steps, from the units' commits."""
    mine, start = _sessions(events)
    units = [event for event in mine if event["kind"] == "unit"]
    length = max((float(event["at"]) - start for event in mine), default=0.0)
    step = max(1.0, length / 60)
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event in units:
        # a unit's tokens are spread over the time that it took, else steps would show when units end
        end = float(event["at"]) - start
        begin = max(0.0, end - float(event.get("worker_seconds", 0.0)))
        first, last = int(begin // step), int(end // step)
        for place in range(first, last + 1):
            part = 1 / (last - first + 1)
            for number, name in enumerate(("tokens", "loss_tokens", "records")):
                sums[place][number] += int(event.get(name, 0) * part)
    places = range(int(length // step) + 1)
    figure, axes = canvas("Throughput" + _spell(mine))
    with style():
        times = [place * step for place in places]
        axes.step(times, [sums[place][0] / step for place in places], where="post", color=CYCLE[0], label="tokens/s")
        axes.step(
            times,
            [sums[place][1] / step for place in places],
            where="post",
            color=CYCLE[1],
            ls="--",
            label="trained tokens/s",
        )
        _mark_deaths(axes, mine, start)
        axes.set_xlabel("seconds since the start")
        axes.set_ylabel("per second")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows = [
        (f"{place * step:,.0f} s", *(number / step for number in sums[place])) for place in places if any(sums[place])
    ]
    columns = ["from", "tokens/s", "trained tokens/s", "records/s"]
    return Plot("Throughput", figure, table("throughput", columns, rows, folded=True))


def memory(events: Sequence[Event], *, limit: int | None = None) -> Plot:
    """Memory of each worker process at the end of its units.

    Args:
        events: the run's.
        limit: memory limit of a worker in bytes, drawn as a line.
    """
    mine, start = _sessions(events)
    lanes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in mine:
        if event["kind"] == "unit" and event.get("rss"):
            lanes[_lane(event)].append((float(event["at"]) - start, event["rss"] / _MiB))
    figure, axes = canvas("Memory of the workers" + _spell(mine))
    shown = sorted(lanes, key=lambda name: -max(value for _, value in lanes[name]))[:_MAX_LANES]
    with style():
        for number, name in enumerate(shown):
            times, values = zip(*lanes[name], strict=True)
            label = name if len(shown) <= 8 else None
            axes.plot(times, values, color=CYCLE[number % len(CYCLE)], marker=".", markersize=3, lw=1, label=label)
        if limit:
            axes.axhline(limit / _MiB, color="#a8201a", ls="--", label=f"limit {size(limit)}")
        _mark_deaths(axes, mine, start)
        axes.set_xlabel("seconds since the start")
        axes.set_ylabel("MiB")
        axes.set_ylim(0, 1.1 * max([value for lane in lanes.values() for _, value in lane], default=1.0))
        axes.set_xlim(left=0)
        if shown and (len(shown) <= 8 or limit):
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    rows = [(name, len(lanes[name]), max(value for _, value in lanes[name]), lanes[name][-1][1]) for name in shown]
    columns = ["worker", "units", "most MiB", "last MiB"]
    return Plot("Memory", figure, table("memory of the workers", columns, rows, folded=True))


def workers(events: Sequence[Event]) -> Plot:
    """What each worker did when: a bar for each unit, a cross where a worker died."""
    mine, start = _sessions(events)
    units = [event for event in mine if event["kind"] == "unit"]
    deaths = [event for event in mine if event["kind"] == "worker_died"]
    names = list(dict.fromkeys(_lane(event) for event in [*units, *deaths]))
    shown = names[:_MAX_LANES]
    datasets = list(dict.fromkeys(str(event.get("dataset", "")) for event in units))
    figure, axes = canvas("Workers over time" + _spell(mine), height=1.2 + 0.22 * max(1, len(shown)))
    with style():
        for number, dataset in enumerate(datasets):
            bars = [
                (shown.index(_lane(event)), float(event["at"]) - start, float(event.get("worker_seconds", 0.0)))
                for event in units
                if event.get("dataset", "") == dataset and _lane(event) in shown
            ]
            axes.barh(
                [lane for lane, _, _ in bars],
                [max(seconds, 0.02) for _, _, seconds in bars],
                left=[end - seconds for _, end, seconds in bars],
                height=0.7,
                color=CYCLE[number % len(CYCLE)],
                edgecolor="white",
                linewidth=0.4,
                label=dataset,
            )
        dead = [(float(event["at"]) - start, shown.index(_lane(event))) for event in deaths if _lane(event) in shown]
        if dead:
            axes.plot(*zip(*dead, strict=True), ls="", marker="X", color="black", markersize=8, label="died")
        axes.set_yticks(range(len(shown)), shown, fontsize=7)
        axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
        axes.set_xlabel("seconds since the start")
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        if datasets or dead:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows = [_worker_row(name, units, deaths) for name in names]
    columns = ["worker", "units", "tokens", "busy s", "deaths", "why"]
    return Plot("Workers", figure, table("workers", columns, rows, folded=True))


def _worker_row(name: str, units: list[Event], deaths: list[Event]) -> tuple[Any, ...]:
    mine = [event for event in units if _lane(event) == name]
    lost = [event for event in deaths if _lane(event) == name]
    busy = sum(float(event.get("worker_seconds", 0.0)) for event in mine)
    why = "; ".join(dict.fromkeys(cell(event.get("why", "")) for event in lost))
    return name, len(mine), sum(event.get("tokens", 0) for event in mine), busy, len(lost), why


def _lane(event: Event) -> str:
    return str(event.get("worker", "?")).split("://")[-1][:40]


def _mark_deaths(axes: Axes, events: Sequence[Event], start: float) -> None:
    times = [float(event["at"]) - start for event in events if event["kind"] == "worker_died"]
    for number, time in enumerate(times[:200]):
        axes.axvline(time, color="black", lw=0.8, ls=":", label="worker died" if number == 0 else None)
