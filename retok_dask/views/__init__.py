"""Everything that people look at: HTML, terminal, plots, notebooks and reports.

Views take samples, conversations and the plain dicts that other objects give
with ``to_dict()``; drawing computes nothing, reads nothing, and is bounded in
size. What does read (exploring, reports) loads when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retok_dask.views.conversation import ConversationView, conversation_view
from retok_dask.views.objects import (
    audit_summary,
    dataset_summary,
    recipe_summary,
    validation_summary,
)
from retok_dask.views.running import plan_summary, run_summary, status_summary
from retok_dask.views.stack import Stack
from retok_dask.views.summary import Summary
from retok_dask.views.tokens import TokenView, token_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.recipe import Recipe
    from retok_dask.views.choosing import Choices, audit_recipe, choices
    from retok_dask.views.comparing import compare_runs
    from retok_dask.views.exploring import Exploration, explore
    from retok_dask.views.handover import formats, packing, training_batch
    from retok_dask.views.notebooks import NotebookRun, Verdict, run_notebook, verdict
    from retok_dask.views.reporting import report
    from retok_dask.views.tokens import Decoder
    from retok_dask.views.written import WrittenRun

__all__ = [
    "Choices",
    "ConversationView",
    "Exploration",
    "NotebookRun",
    "Stack",
    "Summary",
    "TokenView",
    "Verdict",
    "WrittenRun",
    "audit_html",
    "audit_page",
    "audit_recipe",
    "audit_summary",
    "choices",
    "compare_runs",
    "conversation_view",
    "dataset_summary",
    "explore",
    "formats",
    "packing",
    "plan_summary",
    "recipe_html",
    "recipe_summary",
    "report",
    "run_notebook",
    "run_summary",
    "sample_page",
    "show_text",
    "status_summary",
    "token_view",
    "training_batch",
    "validation_summary",
    "verdict",
]

_LATER = {
    "Choices": "choosing",
    "Exploration": "exploring",
    "NotebookRun": "notebooks",
    "Verdict": "notebooks",
    "WrittenRun": "written",
    "audit_recipe": "choosing",
    "choices": "choosing",
    "compare_runs": "comparing",
    "formats": "handover",
    "packing": "handover",
    "training_batch": "handover",
    "explore": "exploring",
    "report": "reporting",
    "run_notebook": "notebooks",
    "verdict": "notebooks",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        msg = f"module 'retok_dask.views' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"retok_dask.views.{_LATER[name]}"), name)


def show_text(
    sample: Mapping[str, Any], tokenizer: Decoder, *, colour: bool | None = None, width: int | None = None
) -> str:
    """The token view of a sample for a terminal.

    Args:
        sample: see :func:`token_view`.
        tokenizer: the one that made its ids.
        colour: ANSI colours or not; None follows standard output.
        width: in columns; None is the terminal's.
    """
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    coloured = console.is_terminal and not console.no_color if colour is None else colour
    return token_view(sample, tokenizer).to_text(colour=coloured, width=width or console.width)


def sample_page(sample: Mapping[str, Any], tokenizer: Decoder) -> str:
    """The token view of a sample as one HTML file that needs nothing else."""
    return token_view(sample, tokenizer).to_page()


def recipe_html(recipe: Recipe) -> str:
    """A recipe as HTML for a notebook cell."""
    return recipe_summary(recipe)._repr_html_()


def audit_html(data: dict[str, Any]) -> str:
    """A template audit (``Audit.to_dict()``) as HTML for a notebook cell."""
    return audit_summary(data)._repr_html_()


def audit_page(data: dict[str, Any]) -> str:
    """A template audit (``Audit.to_dict()``) as one HTML file that needs nothing else."""
    return audit_summary(data).to_page()
