"""What is costly to make and depends on known inputs alone, kept for the user's next process.

A cache that cannot be read or written is no error: things are made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import platformdirs

_SUM = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where this user's cached things lie: ``RETOK_CACHE``, else the platform's cache folder."""
    named = os.environ.get("RETOK_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("retok-dask"))


def recall(name: str) -> bytes | None:
    """What was kept under a name; None if nothing was, or if it is damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    data = content[_SUM:]
    return data if content[:_SUM] == hashlib.sha256(data).digest() else None


def keep(name: str, data: bytes) -> None:
    """Keep bytes under a name, with their checksum, whole or not at all."""
    path = cache_folder() / name
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        partial.write_bytes(hashlib.sha256(data).digest() + data)
        partial.replace(path)
