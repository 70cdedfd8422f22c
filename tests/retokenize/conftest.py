"""Tokenizers are loaded once for all of these tests: it takes seconds each."""

from __future__ import annotations

import pytest

from retok_dask.tokenizers import Tokenizer

_LOADED: dict[str, Tokenizer] = {}


@pytest.fixture(autouse=True, scope="module")
def load_once():
    load = Tokenizer.load

    def cached(spec, *, storage=None, engine="auto", patient=False):
        key = f"{spec.model_dump_json()} {engine} {patient}"
        if key not in _LOADED:
            _LOADED[key] = load(spec, storage=storage, engine=engine, patient=patient)
        return _LOADED[key]

    Tokenizer.load = cached
    yield
    Tokenizer.load = load
