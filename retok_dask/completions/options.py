"""What readers need to know of the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retok_dask.completions.layouts import known_fields

if TYPE_CHECKING:
    from collections.abc import Collection

    from retok_dask.recipe import DatasetSpec, Recipe, StorageSpec


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    Attributes:
        limit: bytes of the largest record.
        storage: where S3 answers.
        mend: see ``DatasetSpec.mend``.
        columns: columns of columnar files that are wanted, None for all.
        tokens: whether records hold token ids, which are then read as arrays.
    """

    limit: int
    storage: StorageSpec | None = None
    mend: Collection[str] = ()
    columns: frozenset[str] | None = None
    tokens: bool = False

    @classmethod
    def of(cls, spec: DatasetSpec, recipe: Recipe) -> ReadOptions:
        """Options for one data set of a recipe."""
        return cls(
            recipe.units.record_bytes,
            recipe.storage,
            frozenset(spec.mend),
            _wanted(spec),
            spec.mode == "tokens" or spec.format == "retok",
        )


def _wanted(spec: DatasetSpec) -> frozenset[str] | None:
    """Columns that the layout, the kept columns and the ids can come from; None where code of the user may look."""
    if ":" in spec.layout or spec.filters.function:
        return None
    return known_fields() | set(spec.fields.values()) | set(spec.keep)
