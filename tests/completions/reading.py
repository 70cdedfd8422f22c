"""Short ways to read inputs in these tests, through the room's public names alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.recipe import Recipe
from retok_dask.types import Item, Record, RecordRejected, Reject

Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def recipe_for(source: Any, *, units: dict[str, Any] | None = None, storage: Any = None, **dataset: Any) -> Recipe:
    """A recipe with one data set."""
    source = [str(s) for s in source] if isinstance(source, list) else str(source)
    parts: dict[str, Any] = {"tokenizer": "none", "output": "none", "datasets": [{"input": source, **dataset}]}
    if units:
        parts["units"] = units
    if storage:
        parts["storage"] = storage
    return Recipe.from_dict(parts)


def read_all(recipe: Recipe) -> list[Record | Reject]:
    """All records of all units, in order."""
    specs = {spec.name: spec for spec in recipe.datasets}
    listing = list_inputs(recipe)
    return [record for unit in listing.units for record in read_records(unit, specs[unit.dataset], recipe)]


def values(records: list[Record | Reject]) -> list[Any]:
    return [record.value for record in records if isinstance(record, Record)]


def rejects(records: list[Record | Reject]) -> list[Reject]:
    return [record for record in records if isinstance(record, Reject)]


def items_of(recipe: Recipe) -> tuple[list[Item], list[tuple[str, str]]]:
    """Items of all records, and reason and detail of what is rejected."""
    layout = layout_for(recipe.datasets[0])
    items: list[Item] = []
    refused: list[tuple[str, str]] = []
    for record in read_all(recipe):
        if isinstance(record, Reject):
            refused.append((record.reason.value, record.detail))
            continue
        try:
            items += layout(record)
        except RecordRejected as problem:
            refused.append((problem.reason.value, problem.detail))
    return items, refused


def item_of(value: dict[str, Any], **dataset: Any) -> Item:
    """The one item that the layout makes of one parsed record."""
    spec = recipe_for("none", **dataset).datasets[0]
    (item,) = layout_for(spec)(Record("f", 0, 0, None, value))
    return item


def refusal(value: dict[str, Any], **dataset: Any) -> tuple[str, str]:
    """Reason and detail of why the layout refuses one parsed record."""
    with pytest.raises(RecordRejected) as caught:
        item_of(value, **dataset)
    return caught.value.reason.value, caught.value.detail
