"""Records to Arrow batches: a pure function of records; no Dask, no files."""

from retok_dask.kernel.process import Batch, Kernel
from retok_dask.kernel.stats import UnitStats

__all__ = ["Batch", "Kernel", "UnitStats"]
