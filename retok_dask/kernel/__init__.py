"""Records to Arrow batches: a pure function of records; no Dask, no files."""

from retok_dask.kernel.canaries import golden_ids
from retok_dask.kernel.process import Batch, Kernel
from retok_dask.kernel.source import Source, load_source, load_sources, retokenizer_for
from retok_dask.kernel.stats import UnitStats

__all__ = [
    "Batch",
    "Kernel",
    "Source",
    "UnitStats",
    "golden_ids",
    "load_source",
    "load_sources",
    "retokenizer_for",
]
