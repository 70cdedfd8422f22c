"""Dask: connect, plan, run, watch, and survive."""

from retok_dask.cluster.bags import encode, read_completions
from retok_dask.cluster.connect import connect
from retok_dask.cluster.doctor import Doctor, doctor
from retok_dask.cluster.events import read_events
from retok_dask.cluster.plan import Plan, plan
from retok_dask.cluster.result import RunResult
from retok_dask.cluster.run import run
from retok_dask.cluster.status import Status, status, watch_status

__all__ = [
    "Doctor",
    "Plan",
    "RunResult",
    "Status",
    "connect",
    "doctor",
    "encode",
    "plan",
    "read_completions",
    "read_events",
    "run",
    "status",
    "watch_status",
]
