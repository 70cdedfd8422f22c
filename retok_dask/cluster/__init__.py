"""Dask: connect, plan, run, watch, and survive."""

from retok_dask.cluster.connect import connect
from retok_dask.cluster.result import RunResult
from retok_dask.cluster.run import run

__all__ = ["RunResult", "connect", "run"]
