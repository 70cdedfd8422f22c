"""The report on a written run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retok_dask.datasets import OutputFolder, read_run
from retok_dask.errors import OutputError
from retok_dask.views.notebooks import NotebookRun, run_notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

REPORT_NOTEBOOK = "04-validate-and-report"


def report(
    url: str, to: str | None = None, *, parameters: Mapping[str, Any] | None = None, cell_seconds: int | None = None
) -> NotebookRun:
    """Validate a written run and write its report: ``report.ipynb`` and one self-contained ``report.html``.

    Args:
        url: the run's folder, local or remote.
        to: folder for the report, local or remote; ``<url>/report`` by default.
        parameters: others of the report notebook, such as ``{"full": True}``.
        cell_seconds: a cell that takes longer fails; None for no limit.

    Returns:
        The verdict and the paths; ``passed`` is false where a check failed,
        the notebook stopped, or its kernel died.

    Raises:
        RecipeError: an unknown parameter, or one of another type.
        OutputError: the folder holds no run, or the report cannot be written.
    """
    if read_run(OutputFolder(url)) is None:
        msg = f"{url!r} holds no run of retok; check the path"
        raise OutputError(msg)
    place = OutputFolder(to or f"{url.rstrip('/')}/report")
    asked = {"output": url, **(parameters or {})}
    if place.is_local:
        folder = place.path("report.html").removesuffix("report.html")
        return run_notebook(REPORT_NOTEBOOK, folder, asked, stem="report", cell_seconds=cell_seconds, code=False)
    with tempfile.TemporaryDirectory() as local:
        run = run_notebook(REPORT_NOTEBOOK, local, asked, stem="report", cell_seconds=cell_seconds, code=False)
        for written in (run.notebook, run.html):
            place.write_bytes(Path(written).name, Path(written).read_bytes())
    return replace(run, notebook=place.url_of("report.ipynb"), html=place.url_of("report.html"))
