"""One JSON record from its bytes: the fast way, and the careful way that knows the reason.

``orjson`` parses what is well formed. What it refuses goes through Python's
own parser, which tells cases apart:

=====================================  =====================
bytes that are no UTF-8                reject ``bad_utf8``
a run of NUL bytes                     reject ``nul_run``
raw control characters in a string     reject ``control_character``
half a surrogate pair as an escape     reject ``lone_surrogate``
``NaN``, ``Infinity``, ``1e999``       reject ``not_finite_number``
two objects on a line, cut lines, ...  reject ``bad_json``
a value that is no object              reject ``not_an_object``
=====================================  =====================

Integers of any length stay exact; no type is inferred from other records.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUL_RUN = b"\0\0"
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONG_INT = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")


def parse_object(raw: bytes) -> dict[str, Any]:
    """A record's JSON object.

    Raises:
        RecordRejected: with the reason by the table above.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = parse_carefully(raw)
    if type(value) is not dict:
        raise RecordRejected(RejectReason.not_an_object, f"a record is a JSON object, not {_json_type(value)}")
    return value


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


class _NotFinite(ValueError):
    pass


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotFinite(text)
    return number


def _no_constant(text: str) -> float:
    raise _NotFinite(text)


def _integer(text: str) -> int:
    # int() refuses thousands of digits, to stay fast; so does a record.
    return int(text)


def parse_carefully(raw: bytes) -> Any:
    """Parse JSON slowly, raising with the reason why it cannot be a record."""
    if _NUL_RUN in raw:
        place = raw.find(_NUL_RUN)
        count = len(raw) - place - len(raw[place:].lstrip(b"\0"))
        raise RecordRejected(RejectReason.nul_run, f"{count} NUL bytes at byte {place} of the record")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordRejected(RejectReason.bad_utf8, f"{error.reason} at byte {error.start} of the record") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
    except _NotFinite as error:
        raise RecordRejected(RejectReason.not_finite_number, f"{str(error)[:40]} is no finite number") from None
    except json.JSONDecodeError as error:
        raise _why(error, text) from None
    except RecursionError:
        raise RecordRejected(RejectReason.bad_json, "nested too deep") from None
    except ValueError as error:
        raise RecordRejected(RejectReason.bad_json, str(error)[:200]) from None
    if _ESCAPED_SURROGATE.search(raw):
        _refuse_lone_surrogates(value)
    return value


def _why(error: json.JSONDecodeError, text: str) -> RecordRejected:
    place = len(text[: error.pos].encode("utf-8", "surrogatepass"))
    if error.msg.startswith("Invalid control character"):
        character = text[error.pos] if error.pos < len(text) else ""
        detail = f"raw control character {character!r} inside a string at byte {place} of the record"
        return RecordRejected(RejectReason.control_character, detail)
    if error.msg == "Extra data":
        what = "a second value" if text[error.pos] in "{[" else repr(text[error.pos : error.pos + 20])
        return RecordRejected(RejectReason.bad_json, f"{what} after the record at byte {place}; one record a line")
    return RecordRejected(RejectReason.bad_json, f"{error.msg} at byte {place} of the record")


def _refuse_lone_surrogates(value: Any) -> None:
    for text in _texts(value):
        found = _LONE.search(text)
        if found:
            detail = f"half a surrogate pair, \\u{ord(found[0]):04x}, in a string"
            raise RecordRejected(RejectReason.lone_surrogate, detail)


def _texts(value: Any) -> Iterable[str]:
    """All strings in a JSON value, keys too; without recursion, for deep values."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            todo += item.keys()
            todo += item.values()
        elif isinstance(item, list):
            todo += item
