"""Fixtures of the cluster's tests; see smalldata.py."""

from __future__ import annotations

from smalldata import make_recipe, tokenizer_path

__all__ = ["make_recipe", "tokenizer_path"]
