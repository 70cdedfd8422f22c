"""Mixing data sets: an order over the rows of runs, without copying a token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from retok_dask.datasets.reader import TokenDataset
from retok_dask.errors import OutputError, count_of, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Index = npt.NDArray[np.int64]

AHEAD_TOKENS = 1 << 23
"""Tokens of the rows that are read at once where a mixture is gone through in its order: 5 bytes each and more."""


@dataclass(frozen=True)
class Share:
    """What a data set contributes to a mixture.

    Attributes:
        rows: rows it has.
        draws: rows drawn from it.
        epochs: draws over rows.
        share: its part of the mixture, in rows or tokens as asked for.
    """

    rows: int
    draws: int
    epochs: float
    share: float


class Mixture:
    """Rows of several data sets in one order; a map-style data set.

    Attributes:
        runs: the rows that are mixed; one run after the other, they are numbered through.
        order: int64, for each place the number of the row.
        shares: what each data set contributes.
        settings: what :func:`mix` was asked for.
    """

    def __init__(
        self,
        runs: Sequence[TokenDataset],
        order: Index,
        shares: dict[str, Share],
        settings: dict[str, Any],
        starts: Index | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.order = order
        self.shares = shares
        self.settings = settings
        self.starts = _starts([len(run) for run in runs]) if starts is None else starts

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows(self.order[[index]])[0]

    def iterate(self, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Iterator[dict[str, Any]]:
        """Every `world_size`-th row from `rank` on, leaving out the first `start` of them.

        Read a stretch of the order at a time, each of its row groups once: the next rows lie all over the files.
        """
        order = self.order[rank::world_size][start:]
        stretch = max(1, AHEAD_TOKENS // self._mean_tokens)
        for begin in range(0, len(order), stretch):
            yield from self._rows(order[begin : begin + stretch])

    def select(self, columns: Sequence[str]) -> Mixture:
        """Only these columns; others are not read from storage."""
        runs = [run.select(columns) for run in self.runs]
        return Mixture(runs, self.order, self.shares, self.settings, self.starts)

    def places(self) -> tuple[npt.NDArray[np.int32], Index]:
        """For each place the number of the run, and the row within it."""
        return self._located(self.order)

    def _located(self, rows: Index) -> tuple[npt.NDArray[np.int32], Index]:
        run = np.searchsorted(self.starts, rows, side="right") - 1
        return run.astype(np.int32), rows - self.starts[run]

    def _rows(self, rows: Index) -> list[dict[str, Any]]:
        """Rows by their numbers, each row group read once."""
        runs, within = self._located(rows)
        found: list[dict[str, Any]] = [{}] * len(rows)
        for run in np.unique(runs).tolist():
            places = np.flatnonzero(runs == run)
            for place, row in zip(places.tolist(), self.runs[run].take(within[places].tolist()), strict=True):
                found[place] = row
        return found

    @cached_property
    def _mean_tokens(self) -> int:
        """Tokens of a row, at least 1."""
        units = [unit.summary for run in self.runs for unit in run.units]
        return 1 + sum(unit["tokens"] for unit in units) // max(1, sum(unit["rows"] for unit in units))

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {share.share:.1%} ({share.epochs:.2f} epochs)" for name, share in self.shares.items()
        )
        return f"Mixture({count_of(len(self), 'row')}: {parts})"


@dataclass
class _Source:
    """One data set: where its rows are, and how many tokens they have."""

    rows: list[Index] = field(default_factory=list)
    tokens: int = 0

    @property
    def places(self) -> Index:
        return np.concatenate(self.rows) if self.rows else np.empty(0, np.int64)


def mix(
    data: TokenDataset | Sequence[TokenDataset],
    weights: Mapping[str, float] | None = None,
    *,
    temperature: float = 1.0,
    epochs: float = 1.0,
    by: Literal["rows", "tokens"] = "tokens",
    seed: int = 0,
) -> Mixture:
    """Order the rows of runs so that their data sets have the wanted shares.

    A data set's share is proportional to ``weight * size ** (1 / temperature)``:
    1 keeps sizes, more evens them out. A data set that is drawn more than once
    is gone through whole each time, in another order; the last round takes a
    part of it. A data set that has rows in several runs counts as one.

    Args:
        data: the rows to mix, of one run or several of one tokenizer.
        weights: by data set, 0 for those not named; None takes the weights of the recipes.
        temperature: see above, above 0.
        epochs: rows or tokens of the mixture, over those of the data.
        by: measure sizes and shares in rows or in tokens.
        seed: the same seed gives the same order.

    Raises:
        OutputError: an unknown data set, runs of different tokenizers, or a
            value that makes no mixture.
    """
    runs = [data] if isinstance(data, TokenDataset) else list(data)
    _check_tokenizers(runs)
    sources = _sources(runs)
    weights = _weights(runs, list(sources), weights)
    if not (0 < temperature < math.inf and 0 < epochs < math.inf):
        msg = f"temperature {temperature} and epochs {epochs} must be above 0, and finite"
        raise OutputError(msg)
    places = {name: source.places for name, source in sources.items()}
    sizes = {name: float(len(rows) if by == "rows" else sources[name].tokens) for name, rows in places.items()}
    power = {name: weights[name] * sizes[name] ** (1 / temperature) if sizes[name] else 0.0 for name in places}
    total_power = sum(power.values())
    if not total_power:
        msg = "no data set with a weight above 0 has rows; nothing can be mixed"
        raise OutputError(msg)
    shares = {}
    drawn = []
    for number, (name, rows) in enumerate(places.items()):
        share = power[name] / total_power
        wanted = share * epochs * sum(sizes.values())
        draws = round(wanted * len(rows) / sizes[name]) if sizes[name] else 0
        shares[name] = Share(len(rows), draws, draws / max(len(rows), 1), share)
        drawn.append(_draw(rows, draws, np.random.default_rng([seed, number])))
    order = np.concatenate(drawn)
    np.random.default_rng([seed, len(places)]).shuffle(order)
    settings = {"weights": weights, "temperature": temperature, "epochs": epochs, "by": by, "seed": seed}
    return Mixture(runs, order, shares, settings)


def _check_tokenizers(runs: Sequence[TokenDataset]) -> None:
    if not runs:
        msg = "there is no run to mix; name at least one"
        raise OutputError(msg)
    known = {run.manifest.run["content"]["tokenizer"]: run.folder.url for run in runs}
    if len(known) > 1:
        msg = (
            f"{' and '.join(known.values())} were encoded by different tokenizers; rows of one cannot join the other's"
        )
        raise OutputError(msg)


def _weights(
    runs: Sequence[TokenDataset], names: Sequence[str], weights: Mapping[str, float] | None
) -> dict[str, float]:
    if weights is None:
        found: dict[str, float] = {}
        for run in runs:
            for spec in run.recipe.datasets:
                if found.setdefault(spec.name, spec.weight) != spec.weight:
                    msg = f"the recipes give {spec.name!r} the weights {found[spec.name]} and {spec.weight}; say which"
                    raise OutputError(msg)
        return {name: found[name] for name in names}
    for name, weight in weights.items():
        if name not in names:
            msg = f"there is no data set {name!r}.{did_you_mean(name, names)}"
            raise OutputError(msg)
        if not 0 <= weight < math.inf:
            msg = f"the weight of {name!r} is {weight}; weights are 0 or more, and finite"
            raise OutputError(msg)
    return {name: weights.get(name, 0.0) for name in names}


def _sources(runs: Sequence[TokenDataset]) -> dict[str, _Source]:
    """The data sets of all runs, with the numbers of their rows."""
    found: dict[str, _Source] = {}
    first = 0
    for run in runs:
        for unit, rows in zip(run.units, run.rows_by_unit(), strict=True):
            source = found.setdefault(unit.dataset, _Source())
            source.rows.append(np.arange(first, first + rows, dtype=np.int64))
            source.tokens += unit.summary["tokens"]
            first += rows
    return found


def _starts(lengths: Sequence[int]) -> Index:
    starts: Index = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
    return starts


def _draw(rows: Index, draws: int, rng: np.random.Generator) -> Index:
    """Whole rounds over all rows, then a part of one, each in its own order."""
    rounds = []
    while draws > 0 and len(rows):
        rounds.append(rng.permutation(rows)[:draws])
        draws -= len(rows)
    return np.concatenate(rounds) if rounds else np.empty(0, np.int64)
