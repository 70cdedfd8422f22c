"""A small fault to practise on: a record that kills the worker which reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retok_dask.demo import open_recipe

if TYPE_CHECKING:
    from retok_dask.recipe import Recipe

DEADLY = "chat-000005"
"""Id of the record that kills its worker, as one does that needs more memory than there is."""


def deadly(record: dict[str, Any]) -> bool:
    """A user's filter that takes its process down at one record; keeps all others."""
    if record.get("id") == DEADLY:
        os._exit(137)
    return True


def faulty_recipe(*, folder: str | Path = "demo-data", output: str | Path, conversations: int = 3000) -> Recipe:
    """The demo's chat data with a filter that kills the worker at one record.

    Args:
        folder, conversations: of the demo; see :func:`retok_dask.demo.open_recipe`.
        output: where the run writes.
    """
    recipe = open_recipe(folder=folder, conversations=conversations)
    chat = recipe.datasets[0].model_dump(mode="json", exclude_unset=True)
    chat |= {
        "input": str(Path(folder).resolve() / "chat" / "part-01.jsonl"),
        "filters": {"function": f"{__name__}:deadly"},
        "limit": 8,
    }
    # a worker that takes another's place loads the reference engine sooner than the fast one
    return recipe.with_changes(
        datasets=[chat], output=str(Path(output).resolve()), max_reject_share=0.2, engine="reference"
    )
