"""How the series of a plot are named, told apart and counted beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

# Okabe and Ito's hues, darkest first so that the first lines stand out in grey print too
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
_MAX_BARS = 4
"""Series that stand beside each other as bars; more would be slivers, and are lines."""

_LABEL = 26
"""Characters of a name that fit beside the axes."""


def labels(names: Iterable[str]) -> list[str]:
    """Names as they fit beside the axes, cut in the middle; numbered where that makes two alike."""
    given = list(names)
    half = (_LABEL - 1) // 2
    short = [name if len(name) <= _LABEL else f"{name[:half]}…{name[-half:]}" for name in given]
    if len(set(short)) == len(short):
        return short
    return [name if name == old else f"{name} #{k}" for k, (name, old) in enumerate(zip(short, given, strict=True), 1)]


def draw_counts(axes: Axes, places: Sequence[float], width: float, series: Sequence[Sequence[float]]) -> list[Any]:
    """Counts by class for each series, as bars beside each other or as lines; gives handles for the legend."""
    handles: list[Any] = []
    for number, heights in enumerate(series):
        if len(series) > _MAX_BARS:
            middle = [place + width / 2 for place in places]
            handles += axes.plot(middle, heights, **line_style(number))
            continue
        own = 0.8 * width / len(series)
        at = [place + 0.1 * width + own * (number + 0.5) for place in places]
        handles.append(axes.bar(at, heights, own, color=colour(number), hatch=hatch(number), edgecolor="white"))
    axes.set_ylim(bottom=0)
    return handles


def draw_nothing(axes: Axes, text: str) -> None:
    """Say that there is nothing to draw, without a scale of nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def colour(number: int) -> str:
    """The colour of a series."""
    return CYCLE[number % len(CYCLE)]


def hatch(number: int) -> str:
    """The hatch of its bars."""
    return _HATCHES[_other(number)]


def line_style(number: int) -> dict[str, Any]:
    """How its line is drawn."""
    return {"color": colour(number), "linestyle": _DASHES[_other(number)], "marker": "o", "markersize": 3}


def _other(number: int) -> int:
    """What goes with a colour: when colours come again, they come with another one."""
    return (number + number // len(CYCLE)) % len(CYCLE)


def legend(axes: Axes, names: Iterable[str], handles: Sequence[Any]) -> None:
    """A legend beside the axes, where there is more than one to tell apart."""
    if len(handles) > 1:
        axes.legend(handles, labels(names), frameon=False, ncols=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))
