"""Fixtures of the fault tests; see faultkit.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from faultkit import calm_digests, make_recipe, paused, paused_data, start, tokenizer_path, undisturbed

__all__ = ["calm_digests", "make_recipe", "paused", "paused_data", "start", "tokenizer_path", "undisturbed"]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.timeout(600))
