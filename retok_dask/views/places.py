"""Files that a command is asked to write: what cannot be written is refused before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retok_dask.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


def require_places(page: Path | None, plot: Path | None = None) -> None:
    """Refuse a page or a plot whose folder is not there, or whose ending says no format.

    Raises:
        OutputError: one of them cannot be written.
    """
    for file in filter(None, (page, plot)):
        if file.is_dir() or not file.parent.is_dir():
            why = "it is a folder" if file.is_dir() else f"there is no folder {str(file.parent)!r}"
            msg = f"cannot write {str(file)!r}: {why}; name a file in a folder that is there"
            raise OutputError(msg)
    if plot is not None:
        from retok_dask.views.plots import require_format  # noqa: PLC0415  half a second, only for those who draw

        require_format(plot)
