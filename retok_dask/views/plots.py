"""Plots, each with the table behind it.

Figures are made without pyplot, so that they need no display, keep no global
state, and look the same in a notebook, in papermill and in a script. They are
sized for print: 7.2 inches wide, 9 point text.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retok_dask.errors import OutputError, did_you_mean
from retok_dask.views.palette import shade
from retok_dask.views.series import CYCLE, colour, draw_counts, draw_nothing, hatch, labels, legend, line_style
from retok_dask.views.summary import Summary, Table, cell, percent, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Stats = dict[str, Any]

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "text.parse_math": False,
    "svg.hashsalt": "retok",
}
_MAX_SERIES = 10


@dataclass
class Plot:
    """A figure and its numbers; shows both in a notebook, the numbers as text.

    Attributes:
        title: what it shows, in words.
        figure: a matplotlib figure, free of pyplot.
        table: the numbers that were drawn.
    """

    title: str
    figure: Figure
    table: Table

    def png(self, dpi: int = 120) -> bytes:
        """The figure as PNG."""
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=dpi, facecolor="white")
        return out.getvalue()

    def save(self, path: str) -> None:
        """Write the figure to a file; its ending says the format (png, pdf, svg).

        Raises:
            OutputError: there is no such format.
        """
        require_format(path)
        self.figure.savefig(path, dpi=200, facecolor="white")

    def _repr_html_(self) -> str:
        from retok_dask.views.html import plot_fragment  # noqa: PLC0415  text alone needs no templates

        data = base64.b64encode(self.png()).decode()
        width = round(self.figure.get_figwidth() * 96)
        return plot_fragment(self.title, data, width, Summary("", tables=[self.table]), str(self))

    def __str__(self) -> str:
        return Summary(self.title, tables=[self.table]).to_text()

    __repr__ = __str__


def require_format(path: str | Path) -> None:
    """Refuse a file whose ending names no format that a plot can be written in.

    Raises:
        OutputError: it does not.
    """
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415  likewise

    legal = FigureCanvasBase.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in legal:
        msg = f"cannot draw into {str(path)!r}: its ending names no format.{did_you_mean(ending, legal)}"
        raise OutputError(msg)


def canvas(title: str, *, height: float = 2.9) -> tuple[Figure, Axes]:
    """An empty figure in the plots' style, and its axes."""
    from matplotlib.figure import Figure  # noqa: PLC0415  half a second, only for those who draw

    with style():
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
    return figure, axes


def style() -> Any:
    """A context in which matplotlib draws in the plots' style."""
    import matplotlib as mpl  # noqa: PLC0415

    return mpl.rc_context(_STYLE)


def _named(series: Mapping[str, Stats]) -> dict[str, Stats]:
    """At most as many series as a reader can tell apart, the largest ones, in the given order."""
    largest = sorted(series, key=lambda name: -series[name].get("tokens", 0))[:_MAX_SERIES]
    return {name: stats for name, stats in series.items() if name in largest}


def _some_of(shown: Mapping[str, Stats], series: Mapping[str, Stats]) -> str:
    """What is to be said in a title where not all series are drawn."""
    return f" (the {len(shown)} largest of {len(series)})" if len(shown) < len(series) else ""


def _class_name(exponent: int) -> str:
    return f"{2**exponent:,}-{2 ** (exponent + 1) - 1:,}"


def lengths(
    datasets: Mapping[str, Stats],
    *,
    limits: Mapping[str, int] | None = None,
    title: str = "Length of rows",
    unit: str = "tokens",
    rows: str = "rows",
) -> Plot:
    """Rows by length, for each data set, with limits drawn.

    Args:
        datasets: ``UnitStats.to_dict()`` by data set; uses ``lengths``.
        limits: name -> tokens, such as ``{"max_length": 8192}``.
        title, unit, rows: what is counted, in words.
    """
    shown = _named(datasets)
    classes = sorted({int(key) for stats in shown.values() for key in stats.get("lengths", {})})
    span = list(range(classes[0], classes[-1] + 1)) if classes else []
    figure, axes = canvas(title + _some_of(shown, datasets))
    with style():
        heights = [[stats.get("lengths", {}).get(str(k), 0) for k in span] for stats in shown.values()]
        handles = draw_counts(axes, span, 1, heights)
        for name, limit in (limits or {}).items():
            place = math.log2(max(1, limit))
            axes.axvline(place, color="#a8201a", linestyle="--", linewidth=1.4)
            axes.annotate(
                f"{name} {limit:,}",
                (place, 0.97),
                xytext=(4, 0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                va="top",
                color="#a8201a",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )
        _power_ticks(axes, span)
        if not span:
            draw_nothing(axes, f"no {rows}")
        axes.set_xlabel(f"{unit} (a class begins at the mark on its left)")
        axes.set_ylabel(rows)
        legend(axes, shown, handles)
    lines = [(_class_name(k), *(stats.get("lengths", {}).get(str(k), 0) for stats in shown.values())) for k in span]
    return Plot(title, figure, table(f"{rows} by {unit}", [unit, *shown], lines, folded=True))


def _power_ticks(axes: Axes, span: Sequence[int]) -> None:
    if span:
        step = max(1, len(span) // 10)
        ticks = list(range(span[0], span[-1] + 2, step))
        axes.set_xticks(ticks, [_short(2**k) for k in ticks])
        axes.grid(visible=False, axis="x")


def _short(number: float) -> str:
    for limit, sign in ((2**20, "Mi"), (2**10, "Ki")):
        if number >= limit:
            return f"{number / limit:.0f} {sign}"
    return f"{number:.0f}"


def trained_share(datasets: Mapping[str, Stats]) -> Plot:
    """Share of tokens that are trained, by data set, divided into the kinds that make it up."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    shown = _named(datasets)
    kinds = [
        kind
        for kind in ("reasoning", "content", "tool_call", "stop")
        if any(_kind_tokens(s, kind) for s in shown.values())
    ]
    title = "What the tokens are, and how many are trained" + _some_of(shown, datasets)
    figure, axes = canvas(title, height=1.3 + 0.42 * len(shown))
    with style():
        for number, stats in enumerate(shown.values()):
            left = 0.0
            for kind in kinds:
                width = _part(_kind_tokens(stats, kind), stats.get("tokens", 0))
                axes.barh(number, width, left=left, height=0.6, color=shade(kind).strong, edgecolor="white")
                left += width
            axes.barh(number, max(0.0, 100 - left), left=left, height=0.6, color="#e4e4e4", edgecolor="white")
            share = _part(stats.get("loss_tokens", 0), stats.get("tokens", 0))
            axes.plot([share, share], [number - 0.42, number + 0.42], color="black", linewidth=2)
            beside = "left" if share < 88 else "right"  # the legend begins where the bars end
            axes.annotate(f" {share:.1f} %", (share, number - 0.44), fontsize=8, ha=beside, va="bottom")
        axes.set_yticks(range(len(shown)), labels(shown))
        axes.set_ylim(len(shown) - 0.5, -0.75)
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of tokens; black line: trained")
        handles = [Patch(color=shade(kind).strong, label=kind) for kind in kinds]
        axes.legend(
            handles=[*handles, Patch(color="#e4e4e4", label="other kinds")],
            loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False,
        )  # fmt: skip
    rows = [
        (
            name,
            s.get("tokens", 0),
            s.get("loss_tokens", 0),
            percent(s.get("loss_tokens", 0), s.get("tokens", 0)),
            *(percent(_kind_tokens(s, kind), s.get("tokens", 0)) for kind in kinds),
        )
        for name, s in shown.items()
    ]
    columns = ["data set", "tokens", "trained", "trained share", *kinds]
    return Plot("Trained share", figure, table("trained share", columns, rows, folded=True))


def _kind_tokens(stats: Stats, kind: str) -> int:
    return int(stats.get("kind_tokens", {}).get(kind, 0))


def _part(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def trained_by_position(datasets: Mapping[str, Stats]) -> Plot:
    """Trained share by tenth of the row: a mask that is off shows as a line that is flat, or wrong at an end."""
    shown = _named(datasets)
    figure, axes = canvas("Trained share by position in the row" + _some_of(shown, datasets))
    values: dict[str, list[float]] = {}
    handles: list[Any] = []
    with style():
        for number, (name, stats) in enumerate(shown.items()):
            tokens, hits = stats.get("position_tokens", {}), stats.get("position_loss_tokens", {})
            shares = [_part(hits.get(str(k), 0), tokens.get(str(k), 0)) for k in range(10)]
            values[name] = shares
            places = [10 * k + 5 for k in range(10)]
            handles += axes.plot(places, shares, **line_style(number))
        axes.set_ylim(0, 102)
        axes.set_xlim(0, 100)
        axes.set_xticks(range(0, 101, 10))
        axes.set_xlabel("position in the row, % of its length")
        axes.set_ylabel("% trained")
        legend(axes, shown, handles)
    rows = [(f"{10 * k}-{10 * k + 10} %", *(f"{shares[k]:.1f} %" for shares in values.values())) for k in range(10)]
    return Plot(
        "Trained share by position", figure, table("trained share by position", ["position", *shown], rows, folded=True)
    )


def trained_share_of_rows(datasets: Mapping[str, Stats]) -> Plot:
    """Rows by their own trained share; rows at 0 % or 100 % deserve a look."""
    shown = _named(datasets)
    figure, axes = canvas("Rows by their trained share" + _some_of(shown, datasets))
    with style():
        heights = [[stats.get("shares", {}).get(str(k), 0) for k in range(20)] for stats in shown.values()]
        handles = draw_counts(axes, range(0, 100, 5), 5, heights)
        axes.set_xticks(range(0, 101, 10))
        axes.set_xlabel("trained share of a row, %")
        axes.set_ylabel("rows")
        axes.grid(visible=False, axis="x")
        legend(axes, shown, handles)
    rows = [
        (f"{5 * k}-{5 * k + 5} %", *(s.get("shares", {}).get(str(k), 0) for s in shown.values())) for k in range(20)
    ]
    return Plot("Rows by trained share", figure, table("rows by trained share", ["share", *shown], rows, folded=True))


def tokens_per_byte(groups: Mapping[str, Mapping[str, tuple[int, int]]], *, by: str = "data set") -> Plot:
    """Tokens per byte of UTF-8 text: what a text costs.

    Args:
        groups: series (such as a tokenizer) -> group (such as a language) -> (tokens, bytes).
        by: what the groups are.
    """
    names = list(dict.fromkeys(name for values in groups.values() for name in values))[:24]
    figure, axes = canvas(f"Tokens per byte by {by}", height=1.2 + 0.28 * len(names) * max(1, len(groups) * 0.7))
    height = 0.8 / max(1, len(groups))
    handles = []
    with style():
        for number, values in enumerate(groups.values()):
            rates = [_rate(*values.get(name, (0, 0))) for name in names]
            places = [k - 0.4 + height * (number + 0.5) for k in range(len(names))]
            bars = axes.barh(places, rates, height, color=colour(number), hatch=hatch(number), edgecolor="white")
            handles.append(bars)
            axes.bar_label(bars, [f" {rate:.3f}" for rate in rates], fontsize=8)
        axes.set_yticks(range(len(names)), labels(names))
        axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
        axes.margins(x=0.1)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("tokens per byte (less is cheaper)")
        if not names:
            draw_nothing(axes, "there is no text to measure")
        legend(axes, groups, handles)
    rows = [(name, *(_rate(*values.get(name, (0, 0))) for values in groups.values())) for name in names]
    return Plot("Tokens per byte", figure, table("tokens per byte", [by, *groups], rows, folded=True))


def _rate(tokens: int, size: int) -> float:
    return tokens / size if size else 0.0


def rejects(datasets: Mapping[str, Stats]) -> Plot:
    """Records not written, by reason; rejected and filtered ones apart."""
    counts: dict[tuple[str, str], int] = {}
    for stats in datasets.values():
        for outcome in ("rejected", "filtered"):
            for reason, number in stats.get(outcome, {}).items():
                counts[outcome, reason] = counts.get((outcome, reason), 0) + int(number)
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    records = sum(stats.get("records_in", 0) for stats in datasets.values())
    drawn = ordered[:20]
    figure, axes = canvas("Records not written, by reason", height=1.0 + 0.27 * max(1, len(drawn)))
    with style():
        colours = {"rejected": CYCLE[1], "filtered": CYCLE[0]}
        bars = axes.barh(
            range(len(drawn)), [n for _, n in drawn], 0.65, color=[colours[outcome] for (outcome, _), _ in drawn]
        )
        axes.bar_label(bars, [f" {n:,} ({percent(n, records)})" for _, n in drawn], fontsize=8)
        axes.set_yticks(range(len(drawn)), [f"{reason} ({outcome})" for (outcome, reason), _ in drawn])
        axes.set_ylim(max(1, len(drawn)) - 0.5, -0.5)
        axes.margins(x=0.15)
        axes.grid(visible=False, axis="y")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(f"records, of {cell(records)} read")
        if not drawn:
            draw_nothing(axes, "every record was written")
    rows = [(outcome, reason, number, percent(number, records)) for (outcome, reason), number in ordered]
    return Plot(
        "Records not written",
        figure,
        table("records not written", ["outcome", "reason", "records", "share of records read"], rows, folded=True),
    )
