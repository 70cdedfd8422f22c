"""What another tokenizer would change: lengths, ids, vocabulary and cost, on a sample or between two runs."""

from __future__ import annotations

from retok_dask.compare.measure import compare_on_input, compare_texts
from retok_dask.compare.places import compare_places
from retok_dask.compare.result import Comparison, Example, Group
from retok_dask.compare.runs import compare_written

__all__ = ["Comparison", "Example", "Group", "compare_on_input", "compare_places", "compare_texts", "compare_written"]
