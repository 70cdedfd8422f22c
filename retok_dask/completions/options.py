"""What readers need to know of the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retok_dask.completions.blocks import Source
from retok_dask.completions.layouts import known_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from retok_dask.completions.units import Part
    from retok_dask.recipe import DatasetSpec, Recipe


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    Attributes:
        limit: bytes of the largest record.
        source: where the bytes come from.
        mend: see ``DatasetSpec.mend``.
        columns: columns of columnar files that are wanted, None for all.
        tokens: whether records hold token ids, which are then read as arrays.
    """

    limit: int
    source: Source
    mend: Collection[str] = ()
    columns: frozenset[str] | None = None
    tokens: bool = False

    @classmethod
    def of(cls, spec: DatasetSpec, recipe: Recipe, parts: Iterable[Part]) -> ReadOptions:
        """Options for reading some parts of one data set."""
        return cls(
            recipe.units.record_bytes,
            Source(recipe.storage, parts),
            frozenset(spec.mend),
            _wanted(spec),
            spec.mode == "tokens" or spec.format == "retok",
        )


def _wanted(spec: DatasetSpec) -> frozenset[str] | None:
    """Columns that the layout, the kept columns and the ids can come from; None where code of the user may look."""
    if ":" in spec.layout or spec.filters.function:
        return None
    return known_fields() | set(spec.fields.values()) | set(spec.keep)
