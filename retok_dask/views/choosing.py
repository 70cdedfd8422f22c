"""What each mask policy and each history choice trains and costs, before anything is run."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.datasets.remask import policy_mask
from retok_dask.errors import RecipeError, count_of, did_you_mean
from retok_dask.kernel import Kernel, UnitStats
from retok_dask.masks import LossMaskPolicy
from retok_dask.recipe import PRESETS, Recipe
from retok_dask.templates import audit
from retok_dask.tokenizers.switches import switches
from retok_dask.types import Conversation, Record, RecordRejected
from retok_dask.views.loaded import template_of, tokenizer_of
from retok_dask.views.summary import Summary, percent, table
from retok_dask.views.tokens import TokenView, token_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retok_dask.recipe import DatasetSpec
    from retok_dask.templates import Audit
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Reject

HISTORIES = ("whole", "per_turn", "auto")


@dataclass(repr=False)
class Choices:
    """The same records under every history and policy; draws itself.

    Attributes:
        records: how many were read.
        stats: counts by history.
        trained: trained tokens by (history, policy).
        samples: the rows of the recipe's own history, as dicts.
        tokenizer: that made them.
    """

    records: int
    stats: dict[str, UnitStats]
    trained: dict[tuple[str, str], int]
    samples: list[dict[str, Any]] = field(repr=False, default_factory=list)
    tokenizer: Tokenizer | None = field(repr=False, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, by history and policy."""
        return {
            history: {
                "rows": stats.samples,
                "tokens": stats.tokens,
                "trained": {name: count for (which, name), count in self.trained.items() if which == history},
                "counts": dict(stats.counts),
            }
            for history, stats in self.stats.items()
        }

    def summary(self) -> Summary:
        """Two tables: what a history costs and loses, and what a policy trains in it."""
        base = self.stats[HISTORIES[0]]
        costs = [
            (
                history,
                stats.samples,
                stats.tokens,
                f"{stats.tokens / base.tokens:.2f}" if base.tokens else "-",
                stats.kind_tokens["reasoning"],
                self.trained[history, "assistant"] - self.trained[history, "final_answer"],
                sum(stats.rejected.values()),
            )
            for history, stats in self.stats.items()
        ]
        columns = [
            "history",
            "rows",
            "tokens",
            "times the tokens",
            "reasoning tokens",
            "of these trained",
            "rejects",
        ]
        rows = []
        for policy in PRESETS:
            cells: list[Any] = [policy]
            for history, stats in self.stats.items():
                count = self.trained[history, policy]
                cells += [count, percent(count, stats.tokens)]
            rows.append(cells)
        names = [name for history in self.stats for name in (history, "share of tokens")]
        return Summary(
            "Choices",
            lines=[
                f"The first {count_of(self.records, 'record')}, rendered and encoded once for each history; masks from the segments."
            ],
            tables=[
                table("What a history costs and loses", columns, costs),
                table("Trained tokens", ["policy", *names], rows),
            ],
        )

    def view(self, row: int = 0) -> TokenView | Summary:
        """The tokens of one of the rows, or that there is no such row: a notebook goes on."""
        if self.tokenizer is None or row >= len(self.samples):
            count = len(self.samples)
            return Summary(
                "Tokens",
                lines=[
                    f"There is no row {row:,}: of {count_of(self.records, 'record')} came {count_of(count, 'row')}."
                ],
            )
        return token_view(self.samples[row], self.tokenizer)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_text(self) -> str:
        return self.summary().to_text()

    __str__ = to_text
    __repr__ = to_text


def choices(recipe: Recipe | str | Path, *, dataset: str | None = None, records: int = 300) -> Choices:
    """Try every history and policy on the first records of a data set of conversations.

    Args:
        recipe: names tokenizer, template and data; a recipe, or the path of its YAML file.
        dataset: which data set; the first by default.
        records: how many are read.

    Raises:
        TokenizerError, TemplateError: tokenizer or template cannot be used.
        RecipeError: there is no such data set.
    """
    recipe = Recipe.of(recipe)
    spec = _chosen(recipe, dataset)
    found = list(islice(_records(recipe, spec), records))
    tokenizer = tokenizer_of(recipe)
    result = Choices(len(found), {}, {}, tokenizer=tokenizer)
    for history in HISTORIES:
        changed = recipe.with_changes(history=history)
        stats, trained = UnitStats(), Counter[str]()
        for batch in Kernel(changed, spec, tokenizer, template_of(changed)).process(iter(found)):
            stats += batch.stats
            for policy in PRESETS:
                trained[policy] += int(policy_mask(LossMaskPolicy(policy), batch.samples, spec.mode).sum())
            if history == recipe.history:
                result.samples += batch.samples.to_pylist()
        result.stats[history] = stats
        result.trained |= {(history, policy): trained[policy] for policy in PRESETS}
    return result


def audit_recipe(recipe: Recipe, *, dataset: str | None = None, records: int = 300) -> Audit:
    """What the recipe's chat template does, in itself and to the first records of a data set.

    Args:
        recipe: names tokenizer, template and data.
        dataset: which data set; the first by default.
        records: how many are read.

    Raises:
        TokenizerError, TemplateError: tokenizer or template cannot be used.
        KeyError: there is no such data set.
    """
    talks = list(islice(_conversations(recipe, _chosen(recipe, dataset)), records))
    tokenizer = tokenizer_of(recipe)
    found = audit(template_of(recipe), talks, tokenizer=tokenizer)
    found.settings += switches(tokenizer, recipe.tokenizer, recipe.storage)
    return found


def _chosen(recipe: Recipe, name: str | None) -> DatasetSpec:
    """A data set by name, or the first one."""
    if name is None:
        return recipe.datasets[0]
    known = {spec.name: spec for spec in recipe.datasets}
    if name not in known:
        msg = f"the recipe has no data set {name!r}.{did_you_mean(name, known)}"
        raise RecipeError(msg)
    return known[name]


def _conversations(recipe: Recipe, spec: DatasetSpec) -> Iterator[Conversation]:
    layout = layout_for(spec)
    for record in _records(recipe, spec):
        if isinstance(record, Record):
            with suppress(RecordRejected):
                yield from (item for item in layout(record) if isinstance(item, Conversation))


def _records(recipe: Recipe, spec: DatasetSpec) -> Iterator[Record | Reject]:
    for unit in list_inputs(recipe).units:
        if unit.dataset == spec.name:
            yield from read_records(unit, spec, recipe)
