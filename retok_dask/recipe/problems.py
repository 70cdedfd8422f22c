"""What is wrong with a recipe, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from retok_dask.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """One sentence a problem: where, what, and the way out; never the input's secrets.

    Args:
        error: what checking a mapping found.
        model: the model that it was checked against; its keys are the legal ones.
        source: where the mapping came from.
    """
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in item["loc"])
        if item["type"] == "extra_forbidden":
            key = str(item["loc"][-1])
            lines.append(f"unknown key {place!r}.{did_you_mean(key, _legal_keys(model, item['loc'][:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{place!r} is missing")
        else:
            text = item["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {text}" if place else text)
    return f"{source}: " + "; ".join(lines)


def _legal_keys(model: Any, location: tuple[int | str, ...]) -> list[str]:
    """Field names of the part of a model at a pydantic error location."""
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            inner = _inner_model(model.model_fields[step].annotation)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
