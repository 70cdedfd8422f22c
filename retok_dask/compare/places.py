"""A comparison of what a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retok_dask.compare.measure import compare_on_input
from retok_dask.compare.runs import compare_written
from retok_dask.errors import InputError
from retok_dask.recipe import Recipe
from retok_dask.tokenizers import Tokenizer

if TYPE_CHECKING:
    from retok_dask.compare.result import Comparison


def compare_places(
    first: str,
    second: str,
    data: str | None = None,
    *,
    mode: str = "text",
    records: int | None = 2000,
    context: int = 4096,
) -> Comparison:
    """Two tokenizers on an input, or two written runs.

    Args:
        first, second: a tokenizer as a recipe names it, or a recipe (``.yaml``)
            whose tokenizer is meant; without `data`, folders of finished runs.
        data: a file, glob or folder of texts, or a recipe whose data sets are meant.
        mode: what the data are, where no recipe says it.
        records: most records of each data set; None for all.
        context: tokens of a training row, to count the cost at.

    Raises:
        RetokError: as for the parts.
    """
    for name, value in (("records", records), ("context", context)):
        if value is not None and value < 1:
            msg = f"{name} is {value}; it is 1 or more"
            raise InputError(msg)
    if data is None:
        return compare_written(first, second, rows=records, context=context)
    pair = _tokenizer(first), _tokenizer(second)
    if data.endswith((".yaml", ".yml")):
        recipe = Recipe.load(data)
    else:
        given = {"tokenizer": "-", "output": "-", "datasets": [{"input": data, "mode": mode}]}
        recipe = Recipe.from_dict(given, source="command line")
    found = compare_on_input(recipe, pair, names=(first, second), records=records, context=context)
    if not found.datasets:
        msg = f"no record of {data!r} holds a text to compare on; check mode and layout of the data sets"
        raise InputError(msg)
    return found


def _tokenizer(place: str) -> Tokenizer:
    if place.endswith((".yaml", ".yml")):
        recipe = Recipe.load(place)
    else:
        recipe = Recipe.from_dict(
            {"tokenizer": place, "output": "-", "datasets": [{"input": "-"}]}, source="command line"
        )
    return Tokenizer.load(recipe.tokenizer, storage=recipe.storage, engine=recipe.engine, patient=True)
