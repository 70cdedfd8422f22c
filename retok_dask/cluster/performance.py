"""Dask's own performance report of a run, kept where the user asks for it.

Task stream, worker profiles and bandwidth of one session in one page. Drawing
it takes bokeh on the scheduler; a run without it misses the page and nothing
else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import distributed

from retok_dask.completions.storage import storage_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client

    from retok_dask.recipe import StorageSpec

WRITTEN = "performance report: "


@contextmanager
def keep_performance(
    client: Client, place: str, storage: StorageSpec | None, told: Callable[[str], None]
) -> Iterator[None]:
    """Write Dask's performance report of what is done meanwhile; never a reason for a run to fail.

    Args:
        client: the client whose cluster does the work.
        place: path or URL of the HTML page; empty for none.
        storage: how a URL is opened.
        told: gets one sentence: :data:`WRITTEN` and where the page lies, or why there is none.
    """
    if not place:
        yield
        return
    why = why_undrawable(client)
    if why:
        told(f"no performance report: the scheduler cannot draw it ({why}); pip install 'bokeh>=3.1' there")
        yield
        return
    # with its scripts inside: the page is read later, and elsewhere
    report = distributed.performance_report(place, mode="inline", storage_options=storage_options(place, storage))
    with client.as_current():
        report.__enter__()
    try:
        yield
    except Exception:
        _save(client, report, place, told)
        raise
    _save(client, report, place, told)


def _save(client: Client, report: distributed.performance_report, place: str, told: Callable[[str], None]) -> None:
    try:
        with client.as_current():
            report.__exit__(None, None, None)
    except Exception as error:  # noqa: BLE001  the run's own end is the news
        told(f"no performance report: {type(error).__name__}: {error}")
    else:
        told(f"{WRITTEN}{place}")


def why_undrawable(client: Client) -> str:
    """What the scheduler lacks to draw plots; empty if nothing."""

    def lacks() -> str:  # travels by value, so that the scheduler need not have this package
        try:
            import distributed.dashboard.components.scheduler  # noqa: F401, PLC0415
        except ImportError as error:
            return str(error)
        return ""

    return str(client.run_on_scheduler(lacks))
