"""What a run becomes for a trainer that wants its own format: one small module a family of formats."""

from retok_dask.datasets.exits.registry import EXITS, ExitSpec, exit_named

__all__ = ["EXITS", "ExitSpec", "exit_named"]
