"""Turn completions and corpora into training tokens, on Dask, exactly."""

__version__ = "0.1.0"
