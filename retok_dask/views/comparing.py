"""Two tokenizers on the same texts, and two runs of the same records."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.datasets import open_dataset
from retok_dask.types import Conversation, Document, Kind, Record, RecordRejected, Rendered
from retok_dask.views.exploring import script_of
from retok_dask.views.loaded import tokenizer_of
from retok_dask.views.plots import Plot, tokens_per_byte
from retok_dask.views.summary import Summary, percent, table
from retok_dask.views.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retok_dask.datasets import TokenDataset
    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Item

_BATCH = 200
_EXAMPLES = 8


@dataclass
class TokenizerComparison:
    """Tokens of two tokenizers on the same texts; draws itself.

    Attributes:
        names: what the two are called.
        by: ``data set`` or ``script`` -> group -> (tokens of A, tokens of B, bytes, texts, texts whose ids differ).
        growth: the texts that B makes longest compared with A: times, tokens of A and B, beginning.
    """

    names: tuple[str, str]
    by: dict[str, dict[str, list[int]]]
    growth: list[tuple[float, int, int, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {"names": list(self.names), "by": self.by, "growth": [list(row) for row in self.growth]}

    def summary(self) -> Summary:
        """Tokens per byte, cost and changed ids by data set and by script, and the texts that grow most."""
        first, second = self.names
        summary = Summary("Tokenizers compared", facts=[("A", first), ("B", second)])
        for by, groups in self.by.items():
            rows = [
                (
                    name,
                    texts,
                    one,
                    two,
                    f"{one / max(1, size):.4f}",
                    f"{two / max(1, size):.4f}",
                    f"{100 * (two - one) / max(1, one):+.1f} %",
                    percent(changed, texts),
                )
                for name, (one, two, size, texts, changed) in sorted(groups.items())
            ]
            columns = [by, "texts", "tokens A", "tokens B", "A per byte", "B per byte", "cost of B", "ids changed"]
            summary.tables.append(table(f"By {by}", columns, rows))
        grown = [(f"{times:.2f}", one, two, text) for times, one, two, text in self.growth]
        summary.tables.append(table("Grow most with B", ["times", "A", "B", "text begins"], grown))
        return summary

    def plot(self, by: str = "script") -> Plot:
        """Tokens per byte of both tokenizers."""
        series = {
            name: {group: (numbers[place], numbers[2]) for group, numbers in self.by[by].items()}
            for place, name in enumerate(self.names)
        }
        return tokens_per_byte(series, by=by)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_text(self) -> str:
        return self.summary().to_text()

    __str__ = to_text


def compare_tokenizers(
    recipe: Recipe, other: Recipe, *, names: tuple[str, str] = ("A", "B"), records: int = 500
) -> TokenizerComparison:
    """Encode the texts of a recipe's first records with its tokenizer and with another recipe's.

    A text is one message, or one document, without a template: what the data
    cost, not what a template adds.

    Args:
        recipe: names the data and tokenizer A.
        other: names tokenizer B; its data are not read.
        names: what to call the two.
        records: at most so many of each data set.

    Raises:
        TokenizerError: one of them cannot be loaded.
    """
    pair = tokenizer_of(recipe), tokenizer_of(other)
    by: dict[str, dict[str, list[int]]] = {"data set": {}, "script": {}}
    growth: list[tuple[float, int, int, str]] = []
    for spec in recipe.datasets:
        texts = _texts(recipe, spec, records)
        while batch := list(islice(texts, _BATCH)):
            for text, (one, two) in zip(batch, zip(*(_ids(each, batch) for each in pair), strict=True), strict=True):
                changed = not np.array_equal(one, two)
                for kind, group in (("data set", spec.name), ("script", script_of(text))):
                    sums = by[kind].setdefault(group, [0] * 5)
                    for place, value in enumerate((len(one), len(two), len(text.encode()), 1, changed)):
                        sums[place] += int(value)
                if len(one) >= 8:  # a ratio of very few tokens says nothing
                    growth.append((len(two) / len(one), len(one), len(two), one_line(text, 80)))
            growth = sorted(set(growth), reverse=True)[:_EXAMPLES]
    return TokenizerComparison(names, by, growth)


def _texts(recipe: Recipe, spec: DatasetSpec, records: int) -> Iterator[str]:
    layout = layout_for(spec)
    units = [unit for unit in list_inputs(recipe).units if unit.dataset == spec.name]
    found = (record for unit in units for record in read_records(unit, spec, recipe))
    for record in islice(found, records):
        if isinstance(record, Record):
            try:
                items = layout(record)
            except RecordRejected:
                continue
            for item in items:
                yield from _texts_of(item)


def _texts_of(item: Item) -> Iterator[str]:
    if isinstance(item, Document):
        yield item.text
    elif isinstance(item, Conversation):
        for message in item.messages:
            for name in ("reasoning_content", "content"):
                if isinstance(message.get(name), str) and message[name]:
                    yield message[name]


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    encoded = tokenizer.encode([Rendered(text, [0], [int(Kind.content)], [-1]) for text in texts])
    return np.split(encoded.ids, encoded.row_splits[1:-1])


def compare_runs(first: str, second: str, *, rows: int = 2000) -> Summary:
    """Two finished runs: numbers by data set, and for records in both whether ids and masks are the same.

    Args:
        first, second: folders of the runs.
        rows: how many records of the first are looked up in the second.

    Raises:
        UnfinishedOutput: one of them has not finished.
    """
    one, two = open_dataset(first), open_dataset(second)
    lines: list[tuple[Any, ...]] = []
    for name in dict.fromkeys((*one.manifest.datasets, *two.manifest.datasets)):
        cells: list[Any] = [name]
        pair = [run.manifest.datasets.get(name) for run in (one, two)]
        for what in ("samples", "tokens", "loss_tokens"):
            cells += [getattr(stats, what) if stats else None for stats in pair]
        shares = [f"{100 * stats.trained_share:.1f} %" if stats else "-" for stats in pair]
        lines.append((*cells, *shares))
    heads = [f"{what} {which}" for what in ("samples", "tokens", "trained", "share") for which in "AB"]
    same = _same_rows(one, two, rows)
    facts = [("A", one_line(first)), ("B", one_line(second))]
    facts += [(name, f"{count:,}") for name, count in same.items()]
    tables = [table("", ["data set", *heads], lines)]
    return Summary("Runs compared", facts=facts, tables=tables)


def _same_rows(one: TokenDataset, two: TokenDataset, rows: int) -> dict[str, int]:
    columns = ["sample_id", "input_ids", "loss_mask"]
    wanted: dict[str, tuple[bytes, bytes]] = {}
    for row in islice(one.select(columns), rows):
        wanted[row["sample_id"]] = row["input_ids"].tobytes(), row["loss_mask"].tobytes()
    counts: dict[str, int] = defaultdict(int, {"records of A looked at": len(wanted)})
    for row in two.select(columns):
        known = wanted.pop(row["sample_id"], None)
        if known is not None:
            counts["in both"] += 1
            counts["ids differ"] += known[0] != row["input_ids"].tobytes()
            counts["masks differ"] += known[1] != row["loss_mask"].tobytes()
        if not wanted:
            break
    counts["only in A"] = len(wanted)
    return dict(counts)
