"""The numbers of a comparison, and how they are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.errors import first_few

if TYPE_CHECKING:
    from retok_dask.views.plots import Plot
    from retok_dask.views.summary import Summary

EXAMPLES = 8
"""Texts of each kind that are kept as examples."""


@dataclass(slots=True)
class Group:
    """Sums over the texts of one data set or language; pairs are (A, B).

    Attributes:
        texts, bytes, words: what was encoded; words as blanks tell them apart.
        tokens: tokens.
        changed: texts whose ids are not the same.
        windows: rows of the context length that the texts fill, each text by itself.
        longer: texts that do not fit into one.
    """

    texts: int = 0
    bytes: int = 0
    words: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    changed: int = 0
    windows: list[int] = field(default_factory=lambda: [0, 0])
    longer: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, size: int, words: int, lengths: tuple[int, int], *, changed: bool, context: int) -> None:
        """Count one text."""
        self.texts += 1
        self.bytes += size
        self.words += words
        self.changed += changed
        for side, length in enumerate(lengths):
            self.tokens[side] += length
            self.windows[side] += -(-length // context)
            self.longer[side] += length > context

    def rates(self) -> dict[str, Any]:
        """Per byte and per word, and what B costs compared with A."""
        return {
            "tokens_per_byte": [_over(count, self.bytes) for count in self.tokens],
            "tokens_per_word": [_over(count, self.words) for count in self.tokens],
            "changed_share": _over(self.changed, self.texts),
            "growth": _over(self.tokens[1], self.tokens[0]),
        }


@dataclass(frozen=True, slots=True)
class Example:
    """One text: its lengths, where its ids first differ, and how both cut it there."""

    text: str
    language: str
    tokens: tuple[int, int]
    differs_at: int
    pieces: tuple[list[str], list[str]]

    @property
    def growth(self) -> float:
        return self.tokens[1] / self.tokens[0] if self.tokens[0] else 0.0


@dataclass(slots=True)
class Comparison:
    """Two tokenizers, or two runs, on the same texts; draws itself.

    Attributes:
        names: what A and B are called.
        context: the context length, in tokens, that costs are counted at.
        datasets, languages: numbers by group.
        vocabulary: ids that occur, of (A, B).
        vocabulary_size: ids there are, of (A, B).
        longest: texts that grow most from A to B.
        examples: texts whose ids differ, one or two a language.
        unmatched: rows of a run that the other one does not have, of (A, B).
        without_text: data sets of whose records none holds a text.
    """

    names: tuple[str, str]
    context: int
    datasets: dict[str, Group] = field(default_factory=dict)
    languages: dict[str, Group] = field(default_factory=dict)
    vocabulary: tuple[int, int] = (0, 0)
    vocabulary_size: tuple[int, int] = (0, 0)
    longest: list[Example] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    unmatched: tuple[int, int] = (0, 0)
    without_text: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the rates of each group."""
        groups = {
            by: {name: asdict(group) | group.rates() for name, group in sorted(table.items())}
            for by, table in (("datasets", self.datasets), ("languages", self.languages))
        }
        return {
            "names": list(self.names),
            "context": self.context,
            **groups,
            "vocabulary_in_use": list(self.vocabulary),
            "vocabulary_size": list(self.vocabulary_size),
            "longest_growth": [asdict(one) | {"growth": one.growth} for one in self.longest],
            "examples": [asdict(one) for one in self.examples],
            "unmatched": list(self.unmatched),
            "without_text": list(self.without_text),
        }

    def summary(self) -> Summary:
        """Tables for people."""
        from retok_dask.views.summary import Summary, cell, percent, table  # noqa: PLC0415  only those who look need it
        from retok_dask.views.text import one_line  # noqa: PLC0415

        facts = [("A", self.names[0]), ("B", self.names[1]), ("context length", cell(self.context))]
        facts += [
            (f"vocabulary in use, {which}", f"{used:,} of {size:,} ({percent(used, size)})")
            for which, used, size in zip("AB", self.vocabulary, self.vocabulary_size, strict=True)
        ]
        if any(self.unmatched):
            facts.append(("rows without a partner", f"{self.unmatched[0]:,} in A, {self.unmatched[1]:,} in B"))
        summary = Summary("Tokens compared", facts=facts)
        if self.without_text:
            names = first_few([one_line(name) for name in self.without_text], 10)
            summary.lines.append(f"No record read holds a text to compare on in {names}; rows of ids hold none.")
        if not self.datasets:
            return summary
        for title, groups in (("data set", self.datasets), ("language", self.languages)):
            rows = [_row(name, group) for name, group in sorted(groups.items())]
            summary.tables.append(table(f"By {title}", [title, *_COLUMNS], rows))
            cost = [
                (name, *group.windows, _growth(*group.windows), *group.longer) for name, group in sorted(groups.items())
            ]
            heads = [title, "contexts A", "contexts B", "change", "longer than one, A", "B"]
            summary.tables.append(table(f"Cost at {self.context:,} tokens, by {title}", heads, cost, folded=True))
        grown = [(f"{one.growth:.2f}", *one.tokens, one.language, one.text) for one in self.longest]
        summary.tables.append(table("Grow most from A to B", ["times", "A", "B", "language", "text begins"], grown))
        shown = [
            (one.language, one.differs_at, *(one_line(" | ".join(side)) for side in one.pieces))
            for one in self.examples
        ]
        summary.tables.append(table("Where ids first differ", ["language", "at token", "A", "B"], shown))
        return summary

    def plot(self, by: str = "language") -> Plot:
        """Tokens per byte of both, by ``language`` or ``data set``."""
        from retok_dask.views.plots import tokens_per_byte  # noqa: PLC0415  matplotlib, only for those who draw

        groups = self.languages if by == "language" else self.datasets
        names = self.names if self.names[0] != self.names[1] else ("A", "B")
        series = {
            name: {key: (group.tokens[side], group.bytes) for key, group in groups.items()}
            for side, name in enumerate(names)
        }
        return tokens_per_byte(series, by=by)

    def to_page(self) -> str:
        """One HTML file that needs nothing else: tables and plot."""
        from retok_dask.views.html import page, summary_fragment  # noqa: PLC0415

        return page("Tokens compared", [summary_fragment(self.summary()), self.plot()._repr_html_()])

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_text(self) -> str:
        return self.summary().to_text()

    __str__ = to_text
    __repr__ = to_text


_COLUMNS = ("texts", "bytes", "A per byte", "B per byte", "A per word", "B per word", "growth", "ids changed")


def _row(name: str, group: Group) -> tuple[Any, ...]:
    from retok_dask.views.summary import percent  # noqa: PLC0415

    rates = group.rates()
    per_byte = [f"{rate:.4f}" for rate in rates["tokens_per_byte"]]
    per_word = [f"{rate:.3f}" for rate in rates["tokens_per_word"]]
    changed = percent(group.changed, group.texts)
    return (name, group.texts, group.bytes, *per_byte, *per_word, _growth(*group.tokens), changed)


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _growth(one: int, two: int) -> str:
    return f"{100 * (two - one) / one:+.1f} %" if one else "-"
