"""Real tokenizers for these tests, loaded once, and one-data-set kernels around them."""

from __future__ import annotations

from typing import Any

from assets import tokenizer_spec
from loaded import tokenizer

from retok_dask.kernel import Kernel, UnitStats
from retok_dask.recipe import Recipe
from retok_dask.types import Item, TokenRow


def recipe(new: str, dataset: dict[str, Any], **changes: Any) -> Recipe:
    given = {"tokenizer": tokenizer_spec(new).model_dump(exclude_unset=True), "output": "-", "engine": "reference"}
    return Recipe.from_dict(given | {"datasets": [{"input": "-"} | dataset]} | changes)


def kernel(old: str | None, new: str, dataset: dict[str, Any] | None = None, **changes: Any) -> Kernel:
    """A kernel for rows of ids of `old`."""
    from retok_dask.kernel.source import Source

    more: dict[str, Any] = (
        {} if old is None else {"source_tokenizer": tokenizer_spec(old).model_dump(exclude_unset=True)}
    )
    made = recipe(new, {"mode": "tokens"} | more | (dataset or {}), **changes)
    source = None if old is None else Source(tokenizer(old))
    return Kernel(made, made.datasets[0], tokenizer(new), None, source)


def outcome(made: Kernel, items: list[Item]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], UnitStats]:
    """Rows, rejects and counts of some items."""
    rows, left_out, stats = [], [], UnitStats()
    for batch in made.process_items(items):
        rows += batch.samples.to_pylist()
        left_out += batch.rejects.to_pylist()
        stats += batch.stats
    assert stats.balanced, stats
    assert stats.samples == len(rows)
    return rows, left_out, stats


def plain_ids(name: str, text: str) -> list[int]:
    """What the public library gives for a text, nothing added; control-token text becomes control tokens."""
    backend = tokenizer(name)._reference.backend  # made from the same definition, untouched by us
    return list(backend.encode(text, add_special_tokens=False).ids)


def row_of(name: str, text: str, **more: Any) -> TokenRow:
    return TokenRow(plain_ids(name, text), **more)
