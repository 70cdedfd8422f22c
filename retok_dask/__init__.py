"""Turn completions and corpora into training tokens, on Dask, exactly.

Names load when they are first used, so that ``import retok_dask`` is fast.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Arrow's allocator reads this when Arrow is loaded. With huge pages, the first unit of a process spends more on
# getting them from a machine whose memory is in pieces than on its own work, and the process keeps more. (Arrow's
# other allocators cost each unit more, most of all the C library's under Dask's MALLOC_TRIM_THRESHOLD_.)
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")

_HOMES = {
    "ChatTemplate": "templates",
    "Conversation": "types",
    "Document": "types",
    "LossMaskPolicy": "masks",
    "Recipe": "recipe",
    "RetokError": "errors",
    "TokenRow": "types",
    "Tokenizer": "tokenizers",
    "encode": "cluster",
    "errors": "",
    "open_dataset": "datasets",
    "plan": "cluster",
    "read_completions": "cluster",
    "report": "views",
    "run": "cluster",
    "show": "single",
    "status": "cluster",
    "validate": "checks",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604  the names are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'retok_dask' has no attribute {name!r}"
        raise AttributeError(msg)
    home = _HOMES[name]
    if not home:
        return import_module(f"retok_dask.{name}")
    return getattr(import_module(f"retok_dask.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
