"""Real tokenizers that several rooms' tests use, loaded once a process: each takes seconds."""

from __future__ import annotations

from functools import cache

import assets

from retok_dask.tokenizers import Tokenizer


@cache
def tokenizer(name: str, engine: str = "reference") -> Tokenizer:
    """A real or tiny tokenizer by its name in :mod:`assets`."""
    spec = assets.tiny_tokenizer(name) if name in assets.TINY else assets.tokenizer_spec(name)
    return Tokenizer.load(spec, engine=engine)
