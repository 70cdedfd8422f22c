"""One JSON record from its bytes: the fast way, and the careful way that knows the reason.

``orjson`` parses what is well formed. What it refuses, and what it would
change, goes through Python's own parser, which tells cases apart (a value that
it writes again as the same bytes is one that it did not change):

=====================================  ============================  ======================
what the bytes hold                    reject                        if the recipe mends it
=====================================  ============================  ======================
bytes that are no UTF-8                ``bad_utf8``
a run of NUL bytes                     ``nul_run``
raw control characters in a string     ``control_character``         kept as text
half a surrogate pair as an escape     ``lone_surrogate``            becomes U+FFFD
``NaN``, ``Infinity``, ``1e999``       ``not_finite_number``
two objects on a line, cut lines, ...  ``bad_json``
a value that is no object              ``not_an_object``
an integer of 20 or more digits        none: it stays exact
=====================================  ============================  ======================

No type is inferred from other records.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.types import Record, RecordRejected, Reject, RejectReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_NUL_RUN = b"\0\0"
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TEXT_ALONE = frozenset({str})
_HEAD = 64
"""Bytes of a record that nearly always hold a whole key."""

_LONG = float(2**63)
"""orjson turns integers that do not fit 64 bits into floats at least this large."""


def parse_record(
    file: str, row: int, offset: int, raw: bytes, mend: Collection[str] = (), *, blank: bool = False
) -> Record | Reject | None:
    """A record, or the reason why the bytes are none.

    Args:
        file: the file's URL.
        row: the record's number in the file, or -1.
        offset: byte offset in the (decompressed) file.
        raw: the record's bytes.
        mend: what to mend; see ``DatasetSpec.mend``.
        blank: return None for white space instead of rejecting it.
    """
    counts: dict[str, int] = {}
    try:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            if blank and not raw.strip(b" \t\r\n"):
                return None
            value = parse_carefully(raw, mend, counts)
        if type(value) is not dict:
            detail = f"a record is a JSON object, not {_json_type(value)}"
            return Reject(file, row, offset, RejectReason.not_an_object, detail, raw)
        # of texts alone no digit can be lost, and whether a key was, its layout finds out in less time
        flat = _TEXT_ALONE.issuperset(map(type, value.values()))
        exact = not flat and _is_written_as(value, raw)
        if not flat and not exact and _has_long_number(value):
            value = parse_carefully(raw, mend, counts)
    except RecordRejected as rejected:
        return Reject(file, row, offset, rejected.reason, rejected.detail, raw)
    return Record(file, row, offset, raw, value, counts or None, exact)


def _is_written_as(value: dict[str, Any], raw: bytes) -> bool:
    """Whether ``orjson`` writes a value as these bytes; it is quicker than any look into the value or the bytes."""
    if b'": ' in raw[:_HEAD]:
        return False  # written by something else, with blanks
    try:
        return orjson.dumps(value) == raw
    except orjson.JSONEncodeError:  # it reads deeper objects than it writes
        return False


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def load_text(text: str) -> Any:
    """JSON that lies in a record as text, with all digits of its integers.

    Raises:
        json.JSONDecodeError: it is no JSON.
    """
    value = orjson.loads(text)
    return json.loads(text) if _has_long_number(value) else value


def _has_long_number(value: Any) -> bool:
    todo: list[Any] = [value]
    for item in todo:  # which grows meanwhile
        kind = type(item)
        if kind is str:
            continue
        if kind is dict:
            todo += item.values()
        elif kind is list:
            todo += item
        elif kind is float and (item >= _LONG or item <= -_LONG):
            return True
    return False


class _NotFinite(ValueError):
    pass


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotFinite(text)
    return number


def _no_constant(text: str) -> float:
    raise _NotFinite(text)


def parse_carefully(raw: bytes, mend: Collection[str] = (), counts: dict[str, int] | None = None) -> Any:
    """Parse JSON slowly, raising with the reason why it cannot be a record.

    Raises:
        RecordRejected: by the table at the top of this module.
    """
    counts = {} if counts is None else counts
    text = _decoded(raw)
    try:
        value = _load(text, strict=True)
    except json.JSONDecodeError as error:
        if not (_is_control(error) and "control_characters" in mend):
            raise _why(error, text) from None
        value = _load_lenient(text)
        counts["control_characters_mended"] = counts.get("control_characters_mended", 0) + 1
    if _ESCAPED_SURROGATE.search(raw):
        value = _without_lone_surrogates(value, mend, counts)
    return value


def _decoded(raw: bytes) -> str:
    if _NUL_RUN in raw:
        place = raw.find(_NUL_RUN)
        count = len(raw) - place - len(raw[place:].lstrip(b"\0"))
        raise RecordRejected(RejectReason.nul_run, f"{count} NUL bytes at byte {place} of the record")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordRejected(RejectReason.bad_utf8, f"{error.reason} at byte {error.start} of the record") from None


def _load(text: str, *, strict: bool) -> Any:
    try:
        return json.loads(text, strict=strict, parse_constant=_no_constant, parse_float=_finite)
    except _NotFinite as error:
        raise RecordRejected(RejectReason.not_finite_number, f"{str(error)[:40]} is no finite number") from None
    except RecursionError:
        raise RecordRejected(RejectReason.bad_json, "nested too deep") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise RecordRejected(RejectReason.bad_json, str(error)[:200]) from None


def _load_lenient(text: str) -> Any:
    try:
        return _load(text, strict=False)
    except json.JSONDecodeError as error:
        raise _why(error, text) from None


def _is_control(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Invalid control character")


def _why(error: json.JSONDecodeError, text: str) -> RecordRejected:
    place = len(text[: error.pos].encode("utf-8", "surrogatepass"))
    if _is_control(error):
        character = text[error.pos : error.pos + 1]
        detail = f"raw control character {character!r} inside a string at byte {place} of the record"
        return RecordRejected(RejectReason.control_character, detail)
    if error.msg == "Extra data":
        what = "a second value" if text[error.pos] in "{[" else repr(text[error.pos : error.pos + 20])
        return RecordRejected(RejectReason.bad_json, f"{what} after the record at byte {place}; one record a line")
    what = error.msg.removesuffix(" at")  # "Unterminated string starting at"
    return RecordRejected(RejectReason.bad_json, f"{what} at byte {place} of the record")


def _without_lone_surrogates(value: Any, mend: Collection[str], counts: dict[str, int]) -> Any:
    halves = [found[0] for text in _texts(value) for found in [_LONE.search(text)] if found]
    if not halves:
        return value
    if "lone_surrogates" not in mend:
        detail = f"half a surrogate pair, \\u{ord(halves[0]):04x}, in a string"
        raise RecordRejected(RejectReason.lone_surrogate, detail)
    counts["lone_surrogates_mended"] = len(halves)
    return _replaced(value)


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    return value


def _texts(value: Any) -> Iterator[str]:
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


def duplicated_key(raw: bytes, names: Collection[str]) -> str | None:
    """The first of some keys that one object of a record holds twice.

    Args:
        raw: well-formed JSON.
        names: the keys that matter.
    """
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        found.extend(key for key in names if keys.count(key) > 1)
        return dict(pairs)

    json.loads(raw, object_pairs_hook=look, strict=False)
    return found[0] if found else None
