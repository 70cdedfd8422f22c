"""Writing a mixture out: its rows in their order, though they lie in many files and may come several times.

An external sort, so that every file is read once and memory is bounded
whatever the size. First each unit's drawn rows are written to one file, cut
by the shard that they go to; then each shard takes its part of every such
file and puts it in order. Which rows a unit gives lies beside those files,
since it grows with the mixture, and tasks must not.
"""

from __future__ import annotations

import hashlib
import io
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from retok_dask.datasets.exits.base import Rows
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.mixture_file import describe, open_mixture
from retok_dask.datasets.packing import pack_parts
from retok_dask.datasets.parallel import map_units
from retok_dask.datasets.rows import COUNTS, read_batches
from retok_dask.datasets.shards import EXPORTED, Export, Exported, Source, cut_evenly, facts_of, samples_path
from retok_dask.recipe import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed import Client

    from retok_dask.datasets.mixing import Mixture
    from retok_dask.datasets.reader import TokenDataset
    from retok_dask.recipe import StorageSpec

SHARD_TOKENS = 1 << 25
"""Tokens a shard, where the number of shards is left open: a shard is put in order in memory."""

PART_TOKENS = 1 << 22
"""Tokens that are handed on at once."""

SORTED = "_retok_export/sorted"
"""Folder of what lies between the two passes; deleted at the end."""

PLACED = pa.schema([*EXPORTED, pa.field("place", pa.int64(), nullable=False)])
"""Rows with their places in the mixture."""

Index = npt.NDArray[np.int64]


def export_mixture(
    url: str,
    to: str,
    output: str,
    *,
    shards: int | None,
    pack: int | None,
    storage: StorageSpec | None,
    client: Client | None,
) -> Exported:
    """Write the rows of a mixture in their order; see :func:`retok_dask.datasets.export`.

    A row that is drawn again is named so: ``-d2``, ``-d3``, ... Where two runs
    have a data set of one name, the later one's rows end in ``-run1``, ``-run2``, ...
    """
    mixture = open_mixture(url, storage=storage)
    tokens, trained = _counts(mixture.runs)
    ends = np.cumsum(tokens[mixture.order], dtype=np.int64)
    total = int(ends[-1])
    edges = cut_evenly(ends, shards if shards is not None else max(1, -(-total // SHARD_TOKENS)))
    order = hashlib.sha256(mixture.order.tobytes()).hexdigest()
    content = digest([[run.manifest.content_digest for run in mixture.runs], order])
    facts = facts_of(mixture.runs[0]) | {"content_digest": content}
    about = {"mixture": describe(mixture)}
    loss_tokens = int(trained[mixture.order].sum(dtype=np.int64))
    source = Source(url, facts, len(mixture), total, loss_tokens, about)
    folder = OutputFolder(output, mixture.runs[0].folder.storage, temporary="_retok_export/tmp")
    writing = Export(folder, source, to, pack, edges)
    draws = _Draws(mixture)
    if writing.todo(len(edges) - 1):
        draws.write(folder)
        map_units(sort_unit, draws.items(), "units put in order", client=client, folder=folder, edges=edges)
    shard_numbers = range(len(edges) - 1)
    written = writing.write([partial(_rows, folder, shard, draws.units, pack) for shard in shard_numbers], client)
    folder.remove_folder(SORTED)
    return written


def _counts(runs: Sequence[TokenDataset]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Tokens and trained tokens of every row of the runs."""
    tables = []
    for run in runs:
        counts = run.select(COUNTS)
        tables += counts.folder.parallel(counts.read_unit, counts.units)
    found = pa.concat_tables(tables).select(COUNTS)
    tokens, trained = (found.column(name).to_numpy().astype(np.int32) for name in COUNTS)
    return tokens, trained


class _Draws:
    """Which rows each unit gives to a mixture, and at which places.

    Attributes:
        units: numbers of the units that give any, all units of all runs counted through.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._runs = mixture.runs
        self._order = order = mixture.order
        self._ends = np.cumsum([rows for run in mixture.runs for rows in run.rows_by_unit()], dtype=np.int64)
        unit = np.searchsorted(self._ends, order, side="right")
        self._places = np.argsort(unit, kind="stable")
        self._again = _times_before(order)
        found, first = np.unique(unit[self._places], return_index=True)
        self.units: list[int] = found.tolist()
        self._cuts = [*first.tolist(), len(order)]

    def write(self, folder: OutputFolder) -> None:
        """One small file a unit: places, rows within the unit, and how often each was drawn before; int64, 3 x draws."""

        def write(item: tuple[int, int, int]) -> None:
            number, start, end = item
            places = self._places[start:end]
            first = int(self._ends[number - 1]) if number else 0
            buffer = io.BytesIO()
            np.save(buffer, np.stack([places, self._order[places] - first, self._again[places]]))
            folder.write_bytes(_draws_of(number), buffer.getvalue())

        folder.parallel(write, list(zip(self.units, self._cuts, self._cuts[1:], strict=False)))

    def items(self) -> list[tuple[int, OutputFolder, str, str]]:
        """For each unit its number, the folder of its run, its file there, and what is added to its rows' names."""
        known: set[str] = set()
        found: list[tuple[int, OutputFolder, str, str]] = []
        for number, run in enumerate(self._runs):
            for unit in run.units:
                ending = f"-run{number}" if unit.dataset in known else ""
                found.append((len(found), run.folder, samples_path(unit), ending))
            known |= set(run.dataset_names)
        return [found[number] for number in self.units]


def _times_before(order: Index) -> Index:
    """How often the row at each place was drawn before.

    >>> _times_before(np.array([5, 3, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    by_row = np.argsort(order, kind="stable")
    at = np.arange(len(order))
    new = np.append(True, np.diff(order[by_row]) != 0)
    times = np.empty(len(order), np.int64)
    times[by_row] = at - np.maximum.accumulate(np.where(new, at, 0))
    return times


def sort_unit(item: tuple[int, OutputFolder, str, str], *, folder: OutputFolder, edges: list[int]) -> None:
    """Write a unit's drawn rows, a record batch a shard; nothing if they are there.

    Args:
        item: see :meth:`_Draws.items`.
        folder: the export's.
        edges: place where each shard begins, and the end of the last.
    """
    number, source, path, ending = item
    if folder.exists(_sorted_of(number)):
        return
    places, rows, again = np.load(io.BytesIO(folder.read_bytes(_draws_of(number))))
    unit = pa.Table.from_batches(read_batches(source, path, EXPORTED), EXPORTED).combine_chunks()
    local = folder.local_temporary(f"unit-{number:06d}")
    try:
        with pa.OSFile(str(local), "wb") as sink, pa.ipc.new_file(sink, PLACED) as writer:
            for start, end in pairwise(np.searchsorted(places, edges).tolist()):
                part = _one_batch(unit, rows[start:end])
                names = [
                    f"{name}{ending}-d{times + 1}" if times else name + ending
                    for name, times in zip(part.column("sample_id").to_pylist(), again[start:end].tolist(), strict=True)
                ]
                columns = [pa.array(names, pa.string()), *part.columns[1:], pa.array(places[start:end])]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PLACED))
        folder.publish(local, _sorted_of(number))
    finally:
        local.unlink(missing_ok=True)


def _rows(folder: OutputFolder, shard: int, units: list[int], pack: int | None) -> Iterator[Rows]:
    """The rows of one shard, in order."""

    def read(number: int) -> pa.RecordBatch:
        with folder.open_input(_sorted_of(number)) as source:
            return pa.ipc.open_file(source).get_batch(shard)

    table = pa.Table.from_batches(folder.parallel(read, units), PLACED).combine_chunks()
    in_order = np.argsort(table.column("place").to_numpy())
    lengths = pc.list_value_length(table.column("input_ids")).to_numpy()[in_order]
    parts = np.cumsum(lengths, dtype=np.int64) // PART_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
    found = (Rows.of(_one_batch(table, in_order[start:end])) for start, end in pairwise(cuts))
    yield from found if pack is None else [pack_parts(list(found), pack)]


def _one_batch(table: pa.Table, rows: Index) -> pa.RecordBatch:
    """Some rows of a table, which may be none; they are no more than a shard."""
    columns = [column.combine_chunks() for column in table.take(pa.array(rows)).columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _draws_of(number: int) -> str:
    return f"{SORTED}/{number:06d}.npy"


def _sorted_of(number: int) -> str:
    return f"{SORTED}/{number:06d}.arrow"
