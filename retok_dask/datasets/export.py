"""Writing a finished run, or a mixture of several, in a trainer's own format: streaming, resumable, all rows accounted for."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.datasets.drawn import export_mixture
from retok_dask.datasets.exits.base import Rows
from retok_dask.datasets.exits.registry import exit_named
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.packing import pack_parts
from retok_dask.datasets.reader import open_dataset
from retok_dask.datasets.rows import read_batches
from retok_dask.datasets.shards import EXPORTED, Export, Exported, Source, cut_evenly, facts_of, samples_path
from retok_dask.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed import Client

    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.recipe import StorageSpec

SHARD_TOKENS = 1 << 27
"""Tokens a shard, where the number of shards is left open: half a gigabyte of ids."""


def export(
    url: str,
    to: str,
    output: str,
    *,
    datasets: Sequence[str] | None = None,
    shards: int | None = None,
    pack: int | None = None,
    storage: StorageSpec | None = None,
    client: Client | None = None,
) -> Exported:
    """Write a finished run, or a mixture of runs, in another format.

    A shard that is there from an earlier start of the same export is kept.
    Rows of a run keep its order, those of a mixture the mixture's.

    Args:
        url: the run, or the index of a mixture as ``retok mix --to`` writes it.
        to: a format of :data:`retok_dask.datasets.exits.EXITS`.
        output: folder to write.
        datasets: only these data sets, of a run.
        shards: how many; None makes shards of about :data:`SHARD_TOKENS`, and smaller ones of a mixture.
        pack: pack documents into rows of this many tokens, within each unit of a run, or each shard of a mixture.
        storage: where S3 answers.
        client: a Dask client whose workers write; None for this process.

    Raises:
        UnfinishedOutput: the run has not finished.
        OutputError: there is no such format, it cannot hold packed rows, a number is impossible, or the
            runs of a mixture hold other rows than when they were mixed.
        FingerprintMismatch: the folder holds another export.
    """
    spec = exit_named(to)
    for name, value in (("pack", pack), ("shards", shards)):
        if value is not None and value < 1:
            msg = f"{name} is {value}; it is 1 or more, or left out"
            raise OutputError(msg)
    if pack is not None and not spec.packs:
        msg = f"format {to!r} has no place for document boundaries, so rows cannot be packed for it; leave pack out"
        raise OutputError(msg)
    if OutputFolder(url, storage).is_file():
        if datasets is not None:
            msg = (
                f"{url} is a mixture, whose data sets are chosen by their weights; mix again, with weight 0 for others"
            )
            raise OutputError(msg)
        return export_mixture(url, to, output, shards=shards, pack=pack, storage=storage, client=client)
    data = open_dataset(url, storage=storage)
    if datasets is not None:
        data = data.filter(list(datasets))
    plan = plan_shards(data.units, shards)
    source = Source(data.folder.url, facts_of(data), data.summary()["rows"], data.num_tokens, data.num_loss_tokens)
    folder = OutputFolder(output, data.folder.storage, temporary="_retok_export/tmp")
    writing = Export(folder, source, to, pack, [[unit.unit for unit in shard] for shard in plan])
    readers = [partial(_rows, data.folder, [samples_path(unit) for unit in shard], pack) for shard in plan]
    return writing.write(readers, client)


def plan_shards(units: Sequence[UnitEntry], shards: int | None) -> list[list[UnitEntry]]:
    """Units in order, cut into shards of about as many tokens each; no shard is empty."""
    ends = np.cumsum([unit.summary["tokens"] for unit in units], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = cut_evenly(ends, shards if shards is not None else max(1, -(-total // SHARD_TOKENS)))
    return [list(units[start:end]) for start, end in pairwise(cuts)]


def _rows(source: OutputFolder, paths: list[str], pack: int | None) -> Iterator[Rows]:
    """Rows of some units; a packed unit at once, since a document may go into any of its rows."""
    for path in paths:
        parts = (Rows.of(batch) for batch in read_batches(source, path, EXPORTED))
        yield from parts if pack is None else [pack_parts(list(parts), pack)]
