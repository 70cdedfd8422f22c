"""The recipe: everything that a run is asked to do, in one checked file.

Unknown keys are refused, and the nearest legal one is named. What can change
a token or a row goes into :meth:`Recipe.content_key`; where the output lies
and how many workers there are does not.
"""

from retok_dask.recipe.parts import (
    ClusterSpec,
    DatasetSpec,
    DocumentSpec,
    FilterSpec,
    NormalizeSpec,
    Part,
    StorageSpec,
    TemplateSpec,
    TokenizerSpec,
    UnitSpec,
)
from retok_dask.recipe.values import refuse_secret
from retok_dask.recipe.whole import MEASURES, PRESETS, Recipe, digest

__all__ = [
    "MEASURES",
    "PRESETS",
    "ClusterSpec",
    "DatasetSpec",
    "DocumentSpec",
    "FilterSpec",
    "NormalizeSpec",
    "Part",
    "Recipe",
    "StorageSpec",
    "TemplateSpec",
    "TokenizerSpec",
    "UnitSpec",
    "digest",
    "refuse_secret",
]
