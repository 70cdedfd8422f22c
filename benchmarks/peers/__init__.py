"""Public tools that do the same work, called through their own code, in an environment of their own.

The modules here are run by that environment's Python; they import neither
retok_dask nor what it needs.
"""
