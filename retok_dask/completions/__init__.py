"""What comes in: files, units, records, and the layouts that make conversations of them."""

from __future__ import annotations

from retok_dask.completions.filters import content_key, item_filter, record_filter
from retok_dask.completions.layouts import (
    Layout,
    LayoutEvidence,
    check_conversation,
    detect_layout,
    layout_for,
    layout_names,
)
from retok_dask.completions.layouts.own import function_files, problem_of
from retok_dask.completions.lines import read_stream
from retok_dask.completions.listing import compare_listings, list_inputs
from retok_dask.completions.readers import read_records
from retok_dask.completions.storage import open_fs
from retok_dask.completions.units import FileEntry, Listing, ListingChange, Part, Unit

__all__ = [
    "FileEntry",
    "Layout",
    "LayoutEvidence",
    "Listing",
    "ListingChange",
    "Part",
    "Unit",
    "check_conversation",
    "compare_listings",
    "content_key",
    "detect_layout",
    "function_files",
    "item_filter",
    "layout_for",
    "layout_names",
    "list_inputs",
    "open_fs",
    "problem_of",
    "read_records",
    "read_stream",
    "record_filter",
]
