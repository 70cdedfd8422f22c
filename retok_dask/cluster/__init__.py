"""Dask: connect, plan, run, watch, and survive."""
