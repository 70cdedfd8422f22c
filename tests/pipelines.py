"""The demo's real tokenizer and template as a pipeline in this process, made once a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import loaded

from retok_dask.demo import chat_template, qwen_tokenizer_spec
from retok_dask.kernel import Kernel, UnitStats
from retok_dask.recipe import Recipe
from retok_dask.single import Pipeline
from retok_dask.templates import ChatTemplate
from retok_dask.templates.learned import State
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import KIND_NAMES, Record

if TYPE_CHECKING:
    from collections.abc import Callable


def qwen() -> Tokenizer:
    """Qwen3.6's real tokenizer on the reference engine."""
    return loaded.tokenizer("qwen3_6")


def pipeline(template: str | None = None, **changes: Any) -> Pipeline:
    """A pipeline of the demo's tokenizer and a template; `dataset` changes go to the one data set."""
    dataset = {"input": "-"} | changes.pop("dataset", {})
    recipe = Recipe.from_dict(
        {
            "tokenizer": qwen_tokenizer_spec(),
            "template": changes.pop("template_spec", {"text": template or chat_template()}),
            "output": "-",
            "datasets": [dataset],
            "date": "2026-01-02",
        }
        | changes
    )
    made = Pipeline(recipe)
    made.__dict__["tokenizer"] = qwen()
    return made


def records(values: list[Any]) -> list[Record]:
    """Records as if they lay in one file."""
    return [Record("a.jsonl", row, row * 1000, None, value) for row, value in enumerate(values)]


_PROVED: dict[str, State] = {}
_OF_TEMPLATES = {"template", "history", "control_tokens", "system", "normalize", "engine", "date"}


def proved_once(recipe: Recipe, tokenizer: Tokenizer, prove: Callable[[], ChatTemplate]) -> ChatTemplate:
    """A template as a worker gets it, if one with the same settings was proved in this process before; else a new one."""
    settings = recipe.model_dump_json(include=_OF_TEMPLATES)
    key = f"{settings} {tokenizer.digest} {tokenizer.special_tokens_map}"
    if key in _PROVED:
        return ChatTemplate.restore(_PROVED[key])
    made = prove()
    _PROVED[key] = made.reduce()
    return made


def prove_once(made: Pipeline) -> None:
    """Give a pipeline its template, proved once for all with the same settings."""
    if made.dataset.mode in ("chat", "prompts") and "template" not in made.__dict__:
        made.__dict__["template"] = proved_once(made.recipe, made.tokenizer, lambda: made.template)


def outcome(made: Pipeline, values: list[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], UnitStats]:
    """Rows, rejects and counts of some records."""
    prove_once(made)
    rows, left_out, stats = [], [], UnitStats()
    for batch in made.process(records(values)):
        rows += batch.samples.to_pylist()
        left_out += batch.rejects.to_pylist()
        stats += batch.stats
    assert stats.balanced, stats
    assert stats.samples == len(rows)
    return rows, left_out, stats


def trained_text(row: dict[str, Any], tokenizer: Tokenizer) -> list[str]:
    """The trained runs of a row as text."""
    runs, current = [], []
    for token, hit in zip([*row["input_ids"], 0], [*row["loss_mask"], False], strict=True):
        if hit:
            current.append(token)
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs


def kind_text(row: dict[str, Any], tokenizer: Tokenizer) -> list[tuple[str, int, str]]:
    """(kind, message, text) of each segment."""
    return [
        (one["kind"], one["message"], tokenizer.decode(row["input_ids"][one["start"] : one["end"]]))
        for one in row["segments"]
    ]


__all__ = ["KIND_NAMES", "Kernel", "kind_text", "outcome", "pipeline", "qwen", "records", "trained_text"]
