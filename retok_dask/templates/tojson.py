"""The ``tojson`` filter, as transformers has it: ``json.dumps`` without HTML escapes."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

from retok_dask.templates.schemas import Schema, written


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """A value as JSON text; the arguments are those of ``json.dumps``."""
    kind = type(value)
    if (kind is dict or kind is str) and not (ensure_ascii or indent is not None or separators or sort_keys):
        if kind is str:
            return encode_basestring(value)
        pairs = [
            f"{encode_basestring(key)}: {encode_basestring(text)}"
            for key, text in value.items()
            if type(key) is str and type(text) is str
        ]
        if len(pairs) == len(value):  # texts by name, as most tool arguments are
            return f"{{{', '.join(pairs)}}}"
    form = (ensure_ascii, indent, tuple(separators) if separators is not None else None, sort_keys)
    write = _json_encoder(*form).encode
    return written(value, form, write) if kind is Schema else write(value)


@lru_cache(maxsize=64)
def _json_encoder(
    ensure_ascii: bool, indent: int | str | None, separators: tuple[str, str] | None, sort_keys: bool
) -> json.JSONEncoder:
    """What ``json.dumps`` would make anew for each value."""
    return json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
