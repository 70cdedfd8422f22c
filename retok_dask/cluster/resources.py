"""What this process may really use: cores and memory, cgroup limits included."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def give_back() -> None:
    """Collect garbage, and give the freed memory that the C library keeps back to the system.

    https://distributed.dask.org/en/stable/worker-memory.html#manually-trim-memory
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: affinity and cgroup quota, at least 1.

    Args:
        cgroup: root of the cgroup file system.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else int(os.cpu_count() or 1)
    quotas = [quota for folder in _own_groups(cgroup) if (quota := _cpu_quota(folder)) is not None]
    return max(1, int(min([float(affinity), *quotas])))


def oversubscription(workers: int) -> str:
    """What it means to have more one-thread worker processes here than cores; empty where there are no more."""
    cores = usable_cores()
    if workers <= cores:
        return ""
    return (
        f"{workers} worker processes, but cores that may be used here: {cores}; the processes take turns, and each "
        "starts, loads the tokenizer and keeps it in memory for itself, so the run takes longer the more there are; "
        f"leave cluster.workers out, or set it to {cores}"
    )


def usable_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory that this process and its children may use together."""
    limits = [limit for folder in _own_groups(cgroup) if (limit := _memory_limit(folder)) is not None]
    return min([int(psutil.virtual_memory().total), *limits])


def _own_groups(root: Path) -> list[Path]:
    """The cgroup folders that bind this process: its own and all above it, v2 and v1."""
    folders = [root, root / "cpu", root / "memory"]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    for line in lines:
        controllers, path = line.split(":", 2)[1:]
        base = root if not controllers else root / controllers
        group = Path(path.lstrip("/"))
        folders += [base / part for part in (group, *group.parents)]
    return folders


def _cpu_quota(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    if len(words) == 2 and words[0] != "max":
        return float(words[0]) / float(words[1])
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if quota and period and float(quota[0]) > 0:
        return float(quota[0]) / float(period[0])
    return None


def _memory_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        words = _words(folder / name)
        if words and words[0].isdigit():
            return int(words[0])
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
