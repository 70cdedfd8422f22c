"""Tokenizers are loaded, and templates proved, once for all of these tests: it takes seconds each."""

from __future__ import annotations

import pytest

from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers import Tokenizer

_LOADED: dict[str, Tokenizer] = {}
_PROVED: dict[str, tuple] = {}
_OF_TEMPLATES = {"template", "history", "control_tokens", "system", "normalize", "engine"}


@pytest.fixture(autouse=True, scope="module")
def load_once():
    load, prove = Tokenizer.load, ChatTemplate.load

    def cached(spec, *, storage=None, engine="auto", patient=False):
        key = f"{spec.model_dump_json()} {engine} {patient}"
        if key not in _LOADED:
            _LOADED[key] = load(spec, storage=storage, engine=engine, patient=patient)
        return _LOADED[key]

    def proved(spec, *, tokenizer, recipe, date):
        settings = recipe.model_dump_json(include=_OF_TEMPLATES)
        key = f"{spec.model_dump_json()} {settings} {date} {tokenizer.digest} {tokenizer.special_tokens_map}"
        if key in _PROVED:  # as a worker gets it
            return ChatTemplate.restore(_PROVED[key])
        made = prove(spec, tokenizer=tokenizer, recipe=recipe, date=date)
        _PROVED[key] = made.reduce()
        return made

    Tokenizer.load, ChatTemplate.load = cached, proved
    yield
    Tokenizer.load, ChatTemplate.load = load, prove
