"""Small written runs, made in this process without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.cluster.models import load_models
from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import Fingerprint, OutputFolder, UnitWriter, read_receipts, start_run, write_manifest
from retok_dask.kernel import Kernel
from retok_dask.recipe import Recipe
from retok_dask.schema import kept_columns

if TYPE_CHECKING:
    from retok_dask.tokenizers import Tokenizer


def write_run(recipe: Recipe, tokenizer: Tokenizer | None = None) -> OutputFolder:
    """Do what a run does, unit by unit, in this process."""
    import datetime as dt

    recipe = recipe.with_changes(date=recipe.date or dt.date(2026, 1, 2))
    made, template = load_models(recipe, recipe.date) if tokenizer is None else (tokenizer, None)
    folder, listing = OutputFolder(recipe.output), list_inputs(recipe)
    fingerprint = Fingerprint.of(recipe, listing, made, template)
    start_run(folder, fingerprint, recipe)
    specs: dict[str, Any] = {spec.name: spec for spec in recipe.datasets}
    for unit in listing.units:
        kernel = Kernel(recipe, specs[unit.dataset], made, template)
        with UnitWriter(folder, unit, kept_columns(recipe), fingerprint=fingerprint.digest) as writer:
            for batch in kernel.process(read_records(unit, specs[unit.dataset], recipe)):
                writer.write(batch)
    receipts = read_receipts(folder, fingerprint=fingerprint.digest)
    write_manifest(folder, receipts, expected=[unit.id for unit in listing.units])
    return folder
