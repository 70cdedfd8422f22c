"""One function over many units: here, or on a Dask cluster that the caller brings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from retok_dask.doing import counted, doing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distributed import Client

T = TypeVar("T")

AT_ONCE = 64
"""Results fetched from workers in one go."""


def map_units(
    function: Callable[..., T], items: Sequence[Any], what: str, *, client: Client | None = None, **kwargs: Any
) -> list[T]:
    """Call ``function(item, **kwargs)`` for each item, results in order.

    Args:
        function: importable by workers; does its own storage calls.
        items: a few hundred bytes each.
        what: says what is done, as in "units checked", to whoever looks on.
        client: a Dask client whose workers do it; None for this process.
        kwargs: the same for every item, small and picklable.
    """
    if client is None:
        return [function(item, **kwargs) for item in counted(items, len(items), what)]
    # bound here, since the client takes some names (key, workers, ...) for itself
    futures = client.map(partial(function, **kwargs), list(items), pure=False)
    results: list[T] = []
    while len(results) < len(futures):
        doing(f"{what}: {len(results):,} of {len(futures):,}")
        results += client.gather(futures[len(results) : len(results) + AT_ONCE])
    return results
