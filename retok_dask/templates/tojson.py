"""The ``tojson`` filter, as transformers has it: ``json.dumps`` without HTML escapes."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from types import NoneType
from typing import Any

import orjson

from retok_dask.templates.limits import LimitReached
from retok_dask.templates.schemas import Schema, written

_LONG = 100
"""Characters from which on `orjson` is the faster one."""

MOST_BETWEEN = 100
"""How many characters an indentation or a separator may have."""

_EASY = frozenset({str, int, bool, NoneType})
_WORDS: dict[Any, str] = {True: "true", False: "false", None: "null"}


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """A value as JSON text; the arguments are those of ``json.dumps``.

    Raises:
        LimitReached: an indentation or a separator is so long that the text would be a giant.
    """
    kind = type(value)
    plain = not (ensure_ascii or indent is not None or separators or sort_keys)
    if plain and kind is str:
        return _quoted(value)
    if plain and kind is dict:
        pairs = [
            f"{encode_basestring(key)}: {encode_basestring(item) if type(item) is str and len(item) < _LONG else _easy(item)}"
            for key, item in value.items()
            if type(key) is str and type(item) in _EASY
        ]
        if len(pairs) == len(value):
            return f"{{{', '.join(pairs)}}}"
    _refuse_giants(indent, separators)
    form = (ensure_ascii, indent, tuple(separators) if separators is not None else None, sort_keys)
    write = _json_encoder(*form).encode
    return written(value, form, write) if kind is Schema else write(value)


def _refuse_giants(indent: int | str | None, separators: Any) -> None:
    texts = [str(text) for text in separators or ()]
    for what, length in (
        ("an indentation", indent if isinstance(indent, int) else len(indent or "")),
        ("a separator", max(map(len, texts), default=0)),
    ):
        if length > MOST_BETWEEN:
            msg = f"the template writes JSON with {what} of {length} characters, more than {MOST_BETWEEN}"
            raise LimitReached(msg)


def _easy(item: str | int | None) -> str:
    """What nearly all arguments of tool calls are, in less time than an encoder takes to start."""
    if type(item) is str:
        return _quoted(item)
    return repr(item) if type(item) is int else _WORDS[item]


def _quoted(text: str) -> str:
    """A text as ``json.dumps`` writes it, to which `orjson` agrees in every character."""
    if len(text) >= _LONG:
        try:
            return orjson.dumps(text).decode()
        except orjson.JSONEncodeError:  # half a surrogate pair
            pass
    return encode_basestring(text)


@lru_cache(maxsize=64)
def _json_encoder(
    ensure_ascii: bool, indent: int | str | None, separators: tuple[str, str] | None, sort_keys: bool
) -> json.JSONEncoder:
    """What ``json.dumps`` would make anew for each value."""
    return json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
