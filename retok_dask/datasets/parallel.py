"""One function over many units: here, or on a Dask cluster that the caller brings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from retok_dask.doing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distributed import Client

T = TypeVar("T")


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
    from distributed import as_completed  # noqa: PLC0415  loaded already where there is a client

    # bound here, since the client takes some names (key, workers, ...) for itself
    futures = client.map(partial(function, **kwargs), list(items), pure=False)
    for _ in counted(as_completed(futures), len(futures), what):
        pass
    results: list[T] = client.gather(futures)
    return results
