"""Checks of single values of a recipe."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

MiB = 1024 * 1024

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: Any) -> Any:
    """Turn ``128MiB`` or ``2 GB`` into a number of bytes; leave numbers as they are."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = (match.group(2) or "B").upper() if match else ""
    if match is None or unit not in _UNITS:
        msg = f"{value!r} is not a size; write a number of bytes or something like 128MiB"
        raise ValueError(msg)
    return int(float(match.group(1)) * _UNITS[unit])


def refuse_secret(url: str) -> str:
    """Return the URL, or refuse it if it carries a password or a signed query."""
    parts = urlsplit(url)
    query = parts.query.lower()
    signed = any(word in query for word in ("signature", "token", "secret", "password", "x-amz-", "sig="))
    if parts.password or (parts.scheme and signed):
        shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        msg = f"{shown!r} carries a secret; put credentials in the environment or ~/.aws, not in a recipe"
        raise ValueError(msg)
    return url
