"""What a file of a run is put in its place with: sums, names that last, and what dead processes left."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import psutil


def sha256_of(path: Path) -> str:
    """Hex sha256 of a local file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def forget_the_dead() -> None:
    """Delete what processes of this host that live no more left in the machine's temporary folder; once a process."""
    head = f"retok-{socket.gethostname()}-"
    for path in Path(tempfile.gettempdir()).glob(f"{head}*.tmp"):
        pid = path.name.removeprefix(head).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)


def sync_and_rename(temporary: Path, target: str) -> None:
    """Sync a file, rename it, and sync the folder that now names it."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    parent = Path(target).parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(target)
    handle = os.open(parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def abort_uploads(fs: Any, root: str) -> int:
    """Abort unfinished multipart uploads below a folder; 0 where the store does not list them."""
    bucket, _, prefix = root.partition("/")
    try:
        answer = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
    except (OSError, NotImplementedError):
        return 0
    uploads = answer.get("Uploads") or []
    for upload in uploads:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return len(uploads)
