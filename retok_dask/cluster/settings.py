"""The Dask settings that decide whether a run survives its faults.

Set by us on a cluster that we make; compared by ``retok doctor`` on a
cluster that we only use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_timedelta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.recipe import Recipe

NATIVE_THREADS = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "RAYON_NUM_THREADS",
        "FASTOKENS_BPE_THREADS",
        "ARROW_IO_THREADS",
        "TOKENIZERS_PARALLELISM",
    ),
    "1",
) | {"TOKENIZERS_PARALLELISM": "false", "ARROW_IO_THREADS": "2"}
"""Environment of a worker process: one unit at a time needs one native thread."""

MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}
"""Environment of a worker process: what the C library does with freed memory, in bytes.

Dask sets the first to 65,536, which also ends the C library's own search for
the second. A worker then gives the memory of each batch back to the system and
gets it anew, page by page. With these it keeps some, and a unit costs less
(``benchmarks workers``: one worker with Dask and without).
"""


def own_settings(recipe: Recipe) -> dict[str, Any]:
    """Dask configuration for a cluster made for one run.

    ``allowed-failures`` is 0 so that each death of a worker is judged here, by
    the unit that did it. Nothing is spilled or paused, because results are a
    few hundred bytes: a worker above its limit is ended by its nanny, and its
    unit is isolated. The time to live is longer than the longest record may
    take, so that only a worker which is really lost is given up.
    """
    ttl = max(300.0, 3 * recipe.units.seconds_per_record)
    return {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.scheduler.worker-ttl": f"{ttl:.0f}s",
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.multiprocessing-method": "spawn",
        "distributed.worker.daemon": True,
        # a process imports what it will need while the client still loads tokenizer and template
        "distributed.worker.preload": [*dask.config.get("distributed.worker.preload"), "retok_dask.cluster.job"],
        # far more often by default, and Dask's event loop interrupts the unit each time
        "distributed.worker.profile.interval": "100ms",
        "distributed.admin.tick.interval": "500ms",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": 0.95,
        "distributed.worker.memory.monitor-interval": "100ms",
        # after that time Dask closes the nanny of a worker that is not there at this very moment, also if it had
        # come back meanwhile and the nanny is about to replace it again; the driver sees to nannies that ended
        "distributed.deploy.lost-worker-timeout": "1000h",
        "distributed.comm.timeouts.connect": "30s",
        "distributed.comm.timeouts.tcp": "60s",
        "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin": ["*"],
        "distributed.nanny.pre-spawn-environ": dask.config.get("distributed.nanny.pre-spawn-environ", default={})
        | NATIVE_THREADS
        | MALLOC,
    }


@dataclass(frozen=True)
class SettingAdvice:
    """One setting of a cluster that is not as a long run wants it."""

    name: str
    value: str
    wanted: str
    why: str


def judge_settings(config: dict[str, Any], seconds_per_record: float) -> list[SettingAdvice]:
    """Compare a cluster's configuration with what a long run needs.

    Args:
        config: the values of :data:`JUDGED` as found on the cluster.
        seconds_per_record: the recipe's time limit of one record.
    """
    advice = []
    ttl = parse_timedelta(config.get("distributed.scheduler.worker-ttl") or 0) or 0
    if 0 < ttl < 2 * seconds_per_record:
        why = "a worker inside one slow native call is given up before the record's own time limit ends it"
        advice.append(
            SettingAdvice(
                "distributed.scheduler.worker-ttl", f"{ttl:g}s", f"{2 * seconds_per_record:.0f}s or more", why
            )
        )
    failures = config.get("distributed.scheduler.allowed-failures")
    if isinstance(failures, int) and failures > 3:
        why = "each bad unit kills that many workers more before it is isolated"
        advice.append(SettingAdvice("distributed.scheduler.allowed-failures", str(failures), "0 to 3", why))
    for name, why in (
        ("terminate", "nothing ends a worker that grows, so the machine kills a process of its own choice"),
    ):
        value = config.get(f"distributed.worker.memory.{name}")
        if value is False:
            advice.append(SettingAdvice(f"distributed.worker.memory.{name}", "false", "0.95", why))
    return advice


def judge_allocator(environ: Mapping[str, str]) -> str:
    """What is slow about a worker's environment, or an empty text."""
    trim, least = environ.get("MALLOC_TRIM_THRESHOLD_", ""), int(MALLOC["MALLOC_TRIM_THRESHOLD_"])
    if not trim.isdigit() or (int(trim) >= least and "MALLOC_MMAP_THRESHOLD_" in environ):
        return ""
    wanted = " ".join(f"{name}={value}" for name, value in MALLOC.items())
    return f"MALLOC_TRIM_THRESHOLD_ is {trim}: each unit gets its memory anew; start workers with {wanted}"


JUDGED = (
    "distributed.scheduler.worker-ttl",
    "distributed.scheduler.allowed-failures",
    "distributed.worker.memory.terminate",
    "distributed.worker.memory.pause",
)
