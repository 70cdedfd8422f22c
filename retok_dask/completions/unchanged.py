"""Is a file still the one that was listed? Asked when a unit opens it: a change at equal size shows in nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retok_dask.completions import storage as st
from retok_dask.errors import InputChanged

if TYPE_CHECKING:
    from retok_dask.completions.units import FileEntry, Part
    from retok_dask.recipe import StorageSpec

LEAST_REMOTE = 8 * 1024 * 1024
"""Bytes of a remote file from which the question costs nothing beside the reading; smaller ones are not asked for."""


def stamp_of(entry: FileEntry) -> str:
    """What a file is recognized by later: the time of its last change, on S3 its etag; empty if it is not asked for."""
    if st.is_local(entry.url):
        return repr(entry.mtime)
    asked = st.protocol_of(entry.url) in {"s3", "s3a"} and entry.size >= LEAST_REMOTE
    return entry.etag if asked else ""


def refuse_changed(part: Part, storage: StorageSpec | None) -> None:
    """Refuse a file of the listed size that is another than the listed one; readers see by themselves that one is cut.

    Raises:
        InputChanged: it is.
        StorageError: the storage refused, after the retries that make sense.
    """
    if not part.stamp:
        return
    fs, path = st.open_fs(part.url, storage)
    if st.is_local(part.url):
        try:
            found = Path(path).stat()
        except OSError:
            return  # its reader says what is wrong with it
        size, now = found.st_size, repr(found.st_mtime)
    else:
        info = st.retrying(lambda: fs.info(path), part.url, storage=storage)
        size, now = int(info.get("size") or 0), str(info.get("ETag") or "").strip('"')
    if now and now != part.stamp and size == part.size:
        msg = (
            f"{part.url} has changed since the run listed it ({part.stamp} then, {now} now); "
            "put the file back, or start anew with --restart"
        )
        raise InputChanged(msg)
