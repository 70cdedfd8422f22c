"""What is known of a run before anything is written: what there is to do, and with what."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.cluster.job import small
from retok_dask.cluster.models import load_models
from retok_dask.cluster.result import RunResult
from retok_dask.cluster.tracker import COUNTED, Tracker
from retok_dask.completions import Listing, compare_listings, list_inputs
from retok_dask.datasets import (
    Fingerprint,
    OutputFolder,
    Receipt,
    check_fingerprint,
    read_manifest,
    read_recipe,
    read_run,
    scan_receipts,
)
from retok_dask.datasets.folder import LISTING, MANIFEST
from retok_dask.doing import doing
from retok_dask.errors import UnfinishedOutput
from retok_dask.kernel import UnitStats, load_sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.completions import Unit
    from retok_dask.kernel import Source
    from retok_dask.recipe import Recipe
    from retok_dask.templates import ChatTemplate
    from retok_dask.tokenizers import Tokenizer


@dataclass
class Prepared:
    """All that is known before anything is written."""

    recipe: Recipe
    listing: Listing
    tokenizer: Tokenizer
    template: ChatTemplate | None
    fingerprint: Fingerprint
    resumes: bool
    committed: dict[str, Receipt] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def todo(self) -> list[Unit]:
        return [unit for unit in self.listing.units if unit.id not in self.committed]

    @property
    def tracker(self) -> Tracker:
        tracker = Tracker(len(self.listing.units), sum(unit.bytes for unit in self.listing.units))
        sizes = {unit.id: unit.bytes for unit in self.listing.units}
        for receipt in self.committed.values():
            counts = small(UnitStats.from_dict(receipt.stats))
            tracker.already(1, sizes.get(receipt.unit, 0), {name: counts[name] for name in COUNTED})
        return tracker

    def notes_changed(self, folder: OutputFolder) -> bool:
        """Whether the recipe has other bounds, weights or tags than what lies in the folder: no row depends on them."""
        stored = read_recipe(folder)
        here = {name: getattr(self.recipe, name) for name in ("output", "storage", "cluster", "engine")}
        return stored.with_changes(**here).to_yaml() != self.recipe.to_yaml()

    def finished_already(self, folder: OutputFolder) -> RunResult | None:
        """The result of a run that has nothing left to do and has said so."""
        if not self.resumes or self.todo:
            return None
        try:
            manifest = read_manifest(folder)
        except UnfinishedOutput:
            return None
        if set(manifest.units) != {unit.id for unit in self.listing.units} or self.notes_changed(folder):
            return None
        return RunResult.of_manifest(self.recipe, manifest, did_nothing=True)


def prepare(
    recipe: Recipe,
    folder: OutputFolder,
    *,
    extend: bool = False,
    restart: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> Prepared:
    """List, load and compare; writes nothing.

    Args:
        recipe, extend, restart: as for :func:`retok_dask.run`.
        folder: the recipe's output.
        begin: called as soon as it looks as if there is work to do; tokenizer and template take seconds more.

    Raises:
        RetokError: as for :func:`retok_dask.run`.
    """
    previous = None if restart else read_run(folder)
    date = _date(recipe, previous)
    recipe = recipe.with_changes(date=date)
    doing("listing the input")
    listing = list_inputs(recipe)
    if restart or extend or not folder.exists(MANIFEST):
        begin()
    tokenizer, template = load_models(recipe, date, text_bytes=sum(unit.bytes for unit in listing.units))
    sources = load_sources(recipe, tokenizer)
    fingerprint = Fingerprint.of(recipe, listing, tokenizer, template, date=date, sources=sources)
    resumes = False if restart else check_fingerprint(folder, fingerprint, extend=extend)
    if resumes:
        listing = _same_units(folder, listing)
    prepared = Prepared(recipe, listing, tokenizer, template, fingerprint, resumes, sources=sources)
    if resumes:
        doing("comparing what is committed with its receipts")
        scan = scan_receipts(folder, fingerprint=fingerprint.digest)
        known = {unit.id for unit in listing.units}
        prepared.committed = {name: item for name, item in scan.committed.items() if name in known}
        prepared.refused = {name: why for name, why in scan.refused.items() if name in known}
    return prepared


def _date(recipe: Recipe, previous: dict[str, Any] | None) -> dt.date:
    """The day that templates see: the recipe's, that of the first start, or today."""
    if recipe.date is not None:
        return recipe.date
    if previous is not None and previous.get("date"):
        return dt.date.fromisoformat(previous["date"])
    return dt.datetime.now(dt.UTC).date()


def _same_units(folder: OutputFolder, listing: Listing) -> Listing:
    """The units of the first start, with units of new files added: old units never change."""
    try:
        old = Listing.from_json(folder.read_bytes(LISTING))
    except FileNotFoundError:
        return listing
    change = compare_listings(old, listing)
    return change.extended() if change else old
