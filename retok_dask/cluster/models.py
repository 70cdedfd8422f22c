"""Tokenizer and template of a recipe, as every part of this room loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retok_dask.templates import ChatTemplate, control_strings, require_same_text
from retok_dask.tokenizers import LITTLE, Tokenizer

if TYPE_CHECKING:
    import datetime as dt

    from retok_dask.recipe import Recipe


def load_models(
    recipe: Recipe, date: dt.date, *, text_bytes: int | None = None
) -> tuple[Tokenizer, ChatTemplate | None]:
    """The recipe's tokenizer, and its template if any data set needs one.

    Args:
        recipe: names both.
        date: the day that the template sees.
        text_bytes: how much there is to encode, if known: little of it is left to the reference engine.

    Raises:
        TokenizerError, TemplateError: one of them cannot be used.
    """
    engine = "reference" if text_bytes is not None and text_bytes < LITTLE else recipe.engine
    tokenizer = Tokenizer.load(recipe.tokenizer, storage=recipe.storage, engine=engine)
    if all(spec.mode not in {"chat", "prompts"} for spec in recipe.datasets):
        return tokenizer, None
    template = ChatTemplate.load(recipe.template, tokenizer=tokenizer, recipe=recipe, date=date)
    if not recipe.template.plain_markers:
        tokenizer.require_control(control_strings(template))
    require_same_text(template, tokenizer)
    return tokenizer, template
