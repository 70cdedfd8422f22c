"""Mixing data sets: an order over the rows of a run, without copying a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from retok_dask.errors import OutputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from retok_dask.datasets.reader import TokenDataset

Index = npt.NDArray[np.int64]


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
        order: int64, for each place the number of the row in `data`.
        shares: what each data set contributes.
    """

    def __init__(self, data: TokenDataset, order: Index, shares: dict[str, Share]) -> None:
        self.data = data
        self.order = order
        self.shares = shares

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.data[int(self.order[index])]

    def iterate(self, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Iterator[dict[str, Any]]:
        """Every `world_size`-th row from `rank` on, leaving out the first `start` of them."""
        for number in self.order[rank::world_size][start:].tolist():
            yield self.data[number]

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {share.share:.1%} ({share.epochs:.2f} epochs)" for name, share in self.shares.items()
        )
        return f"Mixture({len(self):,} rows: {parts})"


def mix(
    data: TokenDataset,
    weights: Mapping[str, float] | None = None,
    *,
    temperature: float = 1.0,
    epochs: float = 1.0,
    by: Literal["rows", "tokens"] = "tokens",
    seed: int = 0,
) -> Mixture:
    """Order the rows of a run so that its data sets have the wanted shares.

    A data set's share is proportional to ``weight * size ** (1 / temperature)``:
    1 keeps sizes, more evens them out. A data set that is drawn more than once
    is gone through whole each time, in another order; the last round takes a
    part of it.

    Args:
        data: the rows to mix.
        weights: by data set; None takes the weights of the recipe.
        temperature: see above, above 0.
        epochs: rows or tokens of the mixture, over those of the data.
        by: measure sizes and shares in rows or in tokens.
        seed: the same seed gives the same order.

    Raises:
        OutputError: an unknown data set, or a value that makes no mixture.
    """
    weights = _weights(data, weights)
    if temperature <= 0 or epochs <= 0:
        msg = f"temperature {temperature} and epochs {epochs} must be above 0"
        raise OutputError(msg)
    places = _places(data)
    tokens = {name: sum(u.summary["tokens"] for u in data.units if u.dataset == name) for name in places}
    sizes = {name: float(len(rows) if by == "rows" else tokens[name]) for name, rows in places.items()}
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
    return Mixture(data, order, shares)


def _weights(data: TokenDataset, weights: Mapping[str, float] | None) -> dict[str, float]:
    names = data.dataset_names
    if weights is None:
        return {spec.name: spec.weight for spec in data.recipe.datasets}
    for name, weight in weights.items():
        if name not in names:
            msg = f"there is no data set {name!r}.{did_you_mean(name, names)}"
            raise OutputError(msg)
        if weight < 0:
            msg = f"the weight of {name!r} is {weight}; weights are 0 or more"
            raise OutputError(msg)
    return {name: weights.get(name, 0.0) for name in names}


def _places(data: TokenDataset) -> dict[str, Index]:
    """Numbers of the rows of each data set."""
    lengths = data.rows_by_unit()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places: dict[str, list[Index]] = {}
    for unit, start, length in zip(data.units, starts.tolist(), lengths, strict=False):
        places.setdefault(unit.dataset, []).append(np.arange(start, start + length, dtype=np.int64))
    return {name: np.concatenate(parts) for name, parts in places.items()}


def _draw(rows: Index, draws: int, rng: np.random.Generator) -> Index:
    """Whole rounds over all rows, then a part of one, each in its own order."""
    rounds = []
    while draws > 0 and len(rows):
        rounds.append(rng.permutation(rows)[:draws])
        draws -= len(rows)
    return np.concatenate(rounds) if rounds else np.empty(0, np.int64)
