"""Reading a finished run back: Arrow, pandas, Dask, and views for training code.

Everything goes through the manifest: files that it does not name are not
read, and a folder without one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from retok_dask.datasets.folder import MANIFEST, OutputFolder
from retok_dask.datasets.manifest import Manifest, UnitEntry, read_manifest
from retok_dask.datasets.rows import COUNTS, RowGroups, read_batches, rows_of
from retok_dask.errors import OutputError, count_of, did_you_mean
from retok_dask.recipe import Recipe, StorageSpec
from retok_dask.schema import kept_columns, sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import dask.bag
    import dask.dataframe
    import pandas as pd


@dataclass(frozen=True)
class RowFilter:
    """Which rows to keep, by the two counts that every row has.

    Attributes:
        min_tokens, max_tokens: bounds of ``num_tokens``, both inclusive.
        min_trained_share, max_trained_share: bounds of
            ``num_loss_tokens / num_tokens``, both inclusive.
    """

    min_tokens: int | None = None
    max_tokens: int | None = None
    min_trained_share: float | None = None
    max_trained_share: float | None = None

    @property
    def keeps_all(self) -> bool:
        return self == RowFilter()

    def mask(self, tokens: np.ndarray[Any, Any], loss_tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """One bool a row."""
        keep = np.ones(len(tokens), np.bool_)
        if self.min_tokens is not None:
            keep &= tokens >= self.min_tokens
        if self.max_tokens is not None:
            keep &= tokens <= self.max_tokens
        share = loss_tokens / np.maximum(tokens, 1)
        if self.min_trained_share is not None:
            keep &= share >= self.min_trained_share
        if self.max_trained_share is not None:
            keep &= share <= self.max_trained_share
        return keep

    def excludes(self, summary: dict[str, int]) -> bool:
        """Whether no row of a unit can be kept, judged by its statistics alone."""
        low, high = summary["min_num_tokens"], summary["max_num_tokens"]
        if summary["rows"] == 0:
            return True
        too_short = self.min_tokens is not None and high < self.min_tokens
        too_long = self.max_tokens is not None and low > self.max_tokens
        most = min(1.0, summary["max_num_loss_tokens"] / max(low, 1))
        least = summary["min_num_loss_tokens"] / max(high, 1)
        too_little = self.min_trained_share is not None and most < self.min_trained_share
        too_much = self.max_trained_share is not None and least > self.max_trained_share
        return too_short or too_long or too_little or too_much


class TokenDataset:
    """The samples of a finished run; reads nothing until it is asked for rows.

    A map-style data set (``len``, ``[]``) as PyTorch's ``DataLoader`` takes
    it, without importing torch; see :meth:`iterate` for the iterable one.

    Example:
        >>> data = open_dataset("s3://bucket/tokenized")      # doctest: +SKIP
        >>> row = data.select(["input_ids", "loss_mask"])[0]  # doctest: +SKIP
        >>> row["input_ids"], row["loss_mask"]                # doctest: +SKIP
    """

    def __init__(
        self,
        folder: OutputFolder,
        manifest: Manifest,
        *,
        units: tuple[UnitEntry, ...] | None = None,
        columns: tuple[str, ...] | None = None,
        row_filter: RowFilter | None = None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.row_filter = row_filter or RowFilter()
        self.units = units if units is not None else tuple(manifest.units.values())
        recipe = Recipe.from_yaml(manifest.recipe, source=folder.url_of(MANIFEST))
        self.recipe = recipe
        full = sample_schema(kept_columns(recipe))
        self.schema: pa.Schema = full if columns is None else pa.schema([full.field(c) for c in columns], full.metadata)
        self.columns = tuple(self.schema.names)

    # choosing

    def select(self, columns: Iterable[str]) -> TokenDataset:
        """Only these columns; others are not read from storage.

        Raises:
            OutputError: there is no such column.
        """
        wanted = tuple(columns)
        for name in wanted:
            if name not in self.columns:
                msg = f"there is no column {name!r}.{did_you_mean(name, self.columns)}"
                raise OutputError(msg)
        return self._with(columns=wanted)

    def filter(
        self,
        datasets: str | Sequence[str] | None = None,
        *,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        min_trained_share: float | None = None,
        max_trained_share: float | None = None,
    ) -> TokenDataset:
        """Only rows of these data sets and within these bounds.

        Units that hold no such row are left out by their statistics; of the
        others, the two columns of counts are read when rows are counted.

        Raises:
            OutputError: there is no such data set.
        """
        names = {datasets} if isinstance(datasets, str) else set(datasets or self.dataset_names)
        for name in sorted(names - set(self.manifest.datasets)):
            msg = f"there is no data set {name!r}.{did_you_mean(name, self.manifest.datasets)}"
            raise OutputError(msg)
        bounds = RowFilter(
            _tighter(max, self.row_filter.min_tokens, min_tokens),
            _tighter(min, self.row_filter.max_tokens, max_tokens),
            _tighter(max, self.row_filter.min_trained_share, min_trained_share),
            _tighter(min, self.row_filter.max_trained_share, max_trained_share),
        )
        units = tuple(
            u for u in self.units if u.dataset in names and (bounds.keeps_all or not bounds.excludes(u.summary))
        )
        return self._with(units=units, row_filter=bounds)

    def _with(self, **changes: Any) -> TokenDataset:
        now: dict[str, Any] = {"units": self.units, "columns": self.columns, "row_filter": self.row_filter}
        return TokenDataset(self.folder, self.manifest, **(now | changes))

    # what is there

    @property
    def dataset_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(unit.dataset for unit in self.units))

    @property
    def files(self) -> list[str]:
        """URLs of the Parquet files, in order."""
        return [self.folder.url_of(self._path(unit)) for unit in self.units]

    @property
    def num_tokens(self) -> int:
        """Tokens of all units that may hold rows (before row bounds)."""
        return sum(unit.summary["tokens"] for unit in self.units)

    @property
    def num_loss_tokens(self) -> int:
        """Trained tokens of all units that may hold rows (before row bounds)."""
        return sum(unit.summary["loss_tokens"] for unit in self.units)

    def summary(self) -> dict[str, Any]:
        """What the views show; from the manifest alone, reading no data."""
        return {
            "url": self.folder.url,
            "datasets": list(self.dataset_names),
            "units": len(self.units),
            "rows": sum(unit.summary["rows"] for unit in self.units),
            "tokens": self.num_tokens,
            "loss_tokens": self.num_loss_tokens,
            "columns": list(self.columns),
            "filtered": not self.row_filter.keeps_all,
            "content_digest": self.manifest.content_digest,
        }

    def __repr__(self) -> str:
        info = self.summary()
        share = info["loss_tokens"] / info["tokens"] if info["tokens"] else 0.0
        rows = count_of(info["rows"], "row") + (" before row bounds" if info["filtered"] else "")
        return (
            f"TokenDataset({info['url']!r}: {rows}, {count_of(info['tokens'], 'token')}, {share:.1%} trained, "
            f"{count_of(info['units'], 'unit')} of {', '.join(info['datasets']) or 'no data set'})"
        )

    def _repr_html_(self) -> str:
        from retok_dask.views import dataset_summary  # noqa: PLC0415  views draws; a notebook alone needs it

        return dataset_summary(self.summary())._repr_html_()

    # whole tables

    def to_arrow(self) -> pa.Table:
        """All rows as one table."""
        tables = [self.read_unit(unit) for unit in self.units]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order, a row group at a time; memory is bounded by one of them."""
        for unit in self.units:
            yield from self.unit_batches(unit)

    def unit_batches(self, unit: UnitEntry) -> Iterator[pa.RecordBatch]:
        """Rows of one unit, a row group at a time."""
        keep = None if self.row_filter.keeps_all else self._kept_rows
        return read_batches(self.folder, self._path(unit), self.schema, keep)

    def read_unit(self, unit: UnitEntry) -> pa.Table:
        """Rows of one unit as a table."""
        return pa.Table.from_batches(list(self.unit_batches(unit)), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_dask(self) -> dask.dataframe.DataFrame:
        """A Dask DataFrame with one partition a unit."""
        import dask.dataframe as dd  # noqa: PLC0415  not everybody who reads has a use for Dask

        meta = self.schema.empty_table().to_pandas()
        return dd.from_map(_unit_frame, list(self.units), data=self, meta=meta, label="retok-read")

    def to_bag(self) -> dask.bag.Bag:
        """A Dask bag of rows (dicts with numpy arrays), one partition a unit."""
        import dask.bag as db  # noqa: PLC0415

        if not self.units:
            return db.from_sequence([], npartitions=1)
        units = db.from_sequence(list(self.units), npartitions=len(self.units))
        return units.map_partitions(_unit_rows, self)

    # single rows

    def __len__(self) -> int:
        return self._groups.rows

    def rows_by_unit(self) -> list[int]:
        """Rows of each unit of :attr:`units`, within the row bounds."""
        return self._groups.rows_by_file()

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Row ``index``: lists as numpy arrays, segments as (start, end, kind, message) tuples."""
        return self._groups.row(index)

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows, each row group read once, in the order asked for."""
        return self._groups.take(indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from rows_of(batch)

    def iterate(self, *, rank: int = 0, world_size: int = 1, start: int = 0) -> RowIterator:
        """An iterable view of this rank's rows, resumable at a row.

        Ranks get contiguous stretches whose lengths differ by one at most.

        Args:
            rank: of this process, from 0.
            world_size: how many processes share the rows.
            start: how many of this rank's rows to leave out, as a saved
                ``state_dict()["row"]`` says.
        """
        return RowIterator(self, rank, world_size, start)

    def sample(self, n: int, seed: int = 0) -> list[dict[str, Any]]:
        """``n`` rows chosen by a seed (all rows if there are fewer), in file order."""
        total = len(self)
        chosen = np.random.default_rng(seed).choice(total, size=min(n, total), replace=False)
        return self.take(np.sort(chosen).tolist())

    @cached_property
    def _groups(self) -> RowGroups:
        paths = [self._path(unit) for unit in self.units]
        rows = [unit.summary["rows"] for unit in self.units]
        keep = None if self.row_filter.keeps_all else self._kept_rows
        return RowGroups(self.folder, paths, rows, self.schema, keep)

    def rows_between(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        """Rows ``first`` to ``last`` (excluded) in order."""
        return self._groups.iterate(first, last)

    def _kept_rows(self, table: pa.Table) -> np.ndarray[Any, Any]:
        return self.row_filter.mask(*_counts(table))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_groups", None)
        state["manifest"] = replace(self.manifest, units={unit.unit: unit for unit in self.units})
        return state

    @staticmethod
    def _path(unit: UnitEntry) -> str:
        record = unit.output("samples")
        if record is None:
            msg = f"unit {unit.unit!r} has no file of samples; the manifest is damaged"
            raise OutputError(msg)
        return record.path


class RowIterator:
    """This rank's rows in order; remembers where it is (see :meth:`state_dict`).

    Iterating again goes on where the last iteration stopped, until the end;
    after the end it starts from the first row.
    """

    def __init__(self, data: TokenDataset, rank: int, world_size: int, start: int) -> None:
        if not 0 <= rank < world_size:
            msg = f"rank {rank} of {world_size} does not exist; ranks count from 0"
            raise OutputError(msg)
        total = len(data)
        self._data = data
        self._first = total * rank // world_size
        self._last = total * (rank + 1) // world_size
        self.row = start

    def __len__(self) -> int:
        return self._last - self._first

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._data.rows_between(self._first + self.row, self._last):
            self.row += 1
            yield row
        self.row = 0

    def state_dict(self) -> dict[str, int]:
        """Where the iteration is, for a checkpoint; the next row has not been given yet."""
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint of the same rank and world size."""
        self.row = int(state["row"])


def open_dataset(url: str, *, storage: StorageSpec | None = None) -> TokenDataset:
    """Open a finished run.

    Raises:
        UnfinishedOutput: the run has not finished.
        OutputError: the folder holds no run.
    """
    folder = OutputFolder(url, storage)
    return TokenDataset(folder, read_manifest(folder))


def _counts(table: pa.Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return table.column(COUNTS[0]).to_numpy(), table.column(COUNTS[1]).to_numpy()


def _tighter(choose: Any, old: Any, new: Any) -> Any:
    given = [value for value in (old, new) if value is not None]
    return choose(given) if given else None


def _unit_frame(unit: UnitEntry, data: TokenDataset) -> pd.DataFrame:
    frame: pd.DataFrame = data.read_unit(unit).to_pandas()
    return frame


def _unit_rows(units: list[UnitEntry], data: TokenDataset) -> list[dict[str, Any]]:
    return [row for unit in units for batch in data.unit_batches(unit) for row in rows_of(batch)]
