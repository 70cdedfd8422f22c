"""One summary, two drawings: what an object says about itself, before HTML or text.

Made from the plain dicts that plans, runs, reports and data sets give with
``to_dict()``; nothing here computes or reads a file, and everything is cut to
a bounded size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.views.text import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_ROWS = 40
MAX_COLUMNS = 14
CELL = 400
_NUMERIC = re.compile(r"[-+]?[\d,.]+ ?(%|s|ms|h|min|[KMGT]?i?B|tokens/s|tok/s)?|-")
_NAMES = frozenset({"pid", "port", "exit_code", "signal", "seed", "year", "revision"})
"""What has numbers for names."""

_SHARE = re.compile(r"\d+(\.\d+)? ?%")


@dataclass(slots=True)
class Table:
    """Rows under column names; cells are text already.

    Attributes:
        more: how many rows were left out.
        folded: whether HTML shows it only when it is opened.
        bars: columns of shares, behind which HTML draws a bar.
    """

    title: str
    columns: list[str]
    rows: list[tuple[str, ...]]
    more: int = 0
    folded: bool = False
    bars: frozenset[int] = frozenset()

    def bar(self, column: int, text: str) -> str:
        """How long the bar behind a cell is, as CSS has it; empty for none."""
        if column not in self.bars or not _SHARE.fullmatch(text):
            return ""
        return f"{min(100.0, float(text.rstrip(' %'))):g}%"

    @property
    def numeric(self) -> set[int]:
        """Columns that hold nothing but numbers."""
        return {
            index
            for index in range(len(self.columns))
            if self.rows and all(_NUMERIC.fullmatch(row[index]) for row in self.rows)
        }


@dataclass(slots=True, repr=False)
class Summary:
    """What an object says about itself.

    Attributes:
        title: its name.
        verdict: ``PASSED``, ``FAILED`` or another word; empty for none.
        lines: sentences.
        facts: label and value.
        tables: see :class:`Table`.
    """

    title: str
    verdict: str = ""
    lines: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def tone(self) -> str:
        """Which colour the verdict has."""
        word = self.verdict.lower()
        return word if word in {"passed", "failed", "warning"} else "other"

    def _repr_html_(self) -> str:
        from retok_dask.views.html import summary_fragment  # noqa: PLC0415  text alone needs no templates

        return summary_fragment(self)

    def to_page(self) -> str:
        """One HTML file that needs nothing else."""
        from retok_dask.views.html import page, summary_fragment  # noqa: PLC0415

        return page(self.title, [summary_fragment(self)])

    def to_text(self, *, colour: bool = False, width: int = 100) -> str:
        """The summary for a terminal."""
        from retok_dask.views.terminal import summary_text  # noqa: PLC0415

        return summary_text(self, colour=colour, width=width)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    limit: int = MAX_ROWS,
    folded: bool = False,
    bars: Sequence[str] = (),
) -> Table:
    """A table of any values, formatted, harmless and cut to `limit` rows; `bars` names its columns of shares."""
    names = [one_line(name, 60) for name in columns[:MAX_COLUMNS]]
    formatted: list[tuple[str, ...]] = []
    more = 0
    for row in rows:
        if len(formatted) < limit:
            formatted.append(tuple(cell(value) for value in row[:MAX_COLUMNS]))
        else:
            more += 1
    drawn = frozenset(index for index, name in enumerate(columns[:MAX_COLUMNS]) if name in bars)
    return Table(title, names, formatted, more, folded, drawn)


def counts_table(
    title: str, counts: Mapping[str, Any], *, name: str, number: str = "records", of: str = "", **options: Any
) -> Table:
    """A table of name -> number, largest first, with each one's share of all of them, which are called `of`."""
    whole = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(key, value, percent(value, whole)) for key, value in ordered]
    share = f"share of {of or number}"
    return table(title, [name, number, share], rows, bars=(share,), **options)


def cell(value: Any) -> str:
    """A value as people read it: thousands separated, floats short, yes and no, hostile text harmless."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        more = f" and {len(value) - 12:,} more" if len(value) > 12 else ""
        value = ", ".join(f"{key} {named(key, each)}" for key, each in list(value.items())[:12]) + more
    elif isinstance(value, list | tuple):
        value = ", ".join(cell(each) for each in value[:12]) + (", …" if len(value) > 12 else "")
    return harmless(value, CELL)


def is_name(name: str) -> bool:
    """Whether numbers of this name are names themselves, such as that of a process, and no amounts."""
    return name.replace(" ", "_") in _NAMES


def named(name: str, value: Any) -> str:
    """A value under its name, as :func:`cell` has it; a number that is a name is not cut into thousands."""
    return str(value) if is_name(name) and isinstance(value, int) else cell(value)


def percent(part: float, whole: float) -> str:
    """``12.3 %``; ``-`` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def size(count: float) -> str:
    """Bytes as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
