"""The tokenizer and template of a recipe, loaded once a process for all views of a notebook.

Views decode, and encode a few hundred rows at most: the reference engine does
that at once, and needs no certificate first.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

import orjson

from retok_dask.recipe import Recipe
from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers import Tokenizer

_KEPT = 3
"""A tokenizer takes some hundred MiB."""


def tokenizer_of(recipe: Recipe) -> Tokenizer:
    """The recipe's tokenizer.

    Raises:
        TokenizerError: it cannot be loaded.
    """
    return _tokenizer(recipe.model_dump_json(include={"tokenizer", "storage"}))


def template_of(recipe: Recipe) -> ChatTemplate:
    """The recipe's chat template, loaded with its tokenizer; the run's date, or today's.

    Raises:
        TemplateError: it cannot be used.
    """
    date = recipe.date or dt.datetime.now(dt.UTC).date()
    return _template(recipe.model_dump_json(exclude={"datasets", "output", "cluster", "units", "checks"}), date)


@lru_cache(_KEPT)
def _tokenizer(key: str) -> Tokenizer:
    recipe = _whole(key)
    return Tokenizer.load(recipe.tokenizer, storage=recipe.storage, engine="reference")


@lru_cache(2 * _KEPT)
def _template(key: str, date: dt.date) -> ChatTemplate:
    recipe = _whole(key)
    return ChatTemplate.load(recipe.template, tokenizer=tokenizer_of(recipe), recipe=recipe, date=date)


def _whole(key: str) -> Recipe:
    """A recipe from the parts that matter here; where its data lie does not."""
    return Recipe.from_dict({**orjson.loads(key), "datasets": [{"input": "-"}], "output": "-"})
