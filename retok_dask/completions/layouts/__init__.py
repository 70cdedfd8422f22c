"""Layouts: how a record of people's data becomes a conversation, a document, or a row of ids."""

from __future__ import annotations

from retok_dask.completions.layouts.table import (
    Layout,
    LayoutEvidence,
    check_conversation,
    detect_layout,
    known_fields,
    layout_for,
    layout_names,
)

__all__ = [
    "Layout",
    "LayoutEvidence",
    "check_conversation",
    "detect_layout",
    "known_fields",
    "layout_for",
    "layout_names",
]
