"""One look at all texts of an input: which marks it leaves free, and which engine may render it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from retok_dask.templates.marks import ALL_MARKS, Marks, all_texts
from retok_dask.templates.normalize import holds_float
from retok_dask.templates.schemas import json_of
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.templates.probes import Message

Tools = list[dict[str, Any]] | None

_SEPARATORS_IN_JSON = re.compile(rb"\\u001[c-f]")
"""Characters that Python takes for white space and minijinja does not."""

_UNLIKE = re.compile(rb"[:,\[]-?(?:[0-9]+\.0[,}\]]|[0-9.]+e|(?=[0-9.]{17})[0-9]+\.)")
"""Numbers that the two engines print differently, as JSON writes them.

``5.0`` becomes 5 in minijinja's filters; with an exponent, or with more than 15
digits, several shortest texts stand for the same number and each engine has
its own choice.
"""


@dataclass(slots=True)
class Scan:
    """What one look at all texts of an input found.

    Attributes:
        texts: the texts that messages hold at their first level, keys included, one after the other.
        nested: what else messages hold, as JSON; None where JSON cannot hold it, or the tools.
        tools: the tools, as JSON.
        marks: marks whose characters no text holds.
        safe: whether the fast engine may be used.
        tool_objects: about how many objects the tools consist of.
    """

    texts: str
    nested: bytes | None
    tools: bytes
    marks: Marks
    safe: bool
    tool_objects: int = 0

    @property
    def size(self) -> int:
        """About how many characters the input has, at least."""
        return len(self.texts) + len(self.nested or b"") + len(self.tools)


def scan(messages: list[Message], tools: Tools) -> Scan:
    """Look at all texts of an input once.

    Raises:
        RecordRejected: the texts hold every character that could be a mark.
    """
    values = [value for message in messages for value in message.values()]
    values += set().union(*messages)
    nested, schemas, known, safe = b"", b"", _NO_SCHEMAS, True
    try:
        try:
            texts = "\n".join(values)
        except TypeError:
            texts = "\n".join([value for value in values if type(value) is str])
            nested, safe = _nested([value for value in values if type(value) is not str])
        if tools:
            schemas = json_of(tools)
            known = _schema_facts(schemas)
    except (TypeError, ValueError):
        return Scan("", None, b"", _free_marks(messages, tools), safe=False)
    if "\x1c" in texts or "\x1d" in texts or "\x1e" in texts or "\x1f" in texts:
        safe = False
    safe = safe and known.alike
    escaped = b""  # JSON that holds control characters
    if b"\\u00" in nested or known.escaped:
        escaped = nested + schemas
        safe = safe and not _SEPARATORS_IN_JSON.search(escaped)
    for marks, written in _WRITTEN:
        held = marks.begin in texts or marks.end in texts
        if not held and not (escaped and any(character in escaped for character in written)):
            return Scan(texts, nested, schemas, marks, safe, known.objects)
    return Scan(texts, nested, schemas, _free_marks(messages, tools), False, known.objects)


def _nested(values: list[Any]) -> tuple[bytes, bool]:
    """What is no text, as JSON; and whether both engines print its numbers alike, as far as is known."""
    nested = orjson.dumps(values)
    alike = not holds_float(values) or not (float in map(type, values) or _UNLIKE.search(nested))
    return nested, alike


class _Schemas(NamedTuple):
    """What one look at a tool set's JSON found: whether both engines print its numbers alike, ..."""

    alike: bool
    objects: int
    escaped: bool


_NO_SCHEMAS = _Schemas(alike=True, objects=0, escaped=False)


@lru_cache(maxsize=256)
def _schema_facts(schemas: bytes) -> _Schemas:
    """The JSON is nearly always the same bytes object as before, so that looking it up costs nothing."""
    return _Schemas(not _UNLIKE.search(schemas), schemas.count(b"{"), b"\\u00" in schemas)


def _free_marks(messages: list[Message], tools: Tools) -> Marks:
    """The first of the usual marks whose characters no text holds, else any other."""
    for marks in ALL_MARKS:
        if not any(c in text for text in all_texts((messages, tools)) for c in (marks.begin, marks.end)):
            return marks
    return unused_marks(messages, tools)


def unused_marks(messages: list[Message], tools: Tools) -> Marks:
    """Two characters that no text of an input holds.

    Nearly always syllables of Yi, which Python prints in a list or an object as they are; else of private use.

    Raises:
        RecordRejected: there are none.
    """
    found: set[str] = set()
    for text in all_texts((messages, tools)):
        found.update(text)
    free = [chr(code) for code in (*range(0xA000, 0xA48D), *range(0xE000, 0xF900)) if chr(code) not in found][:2]
    if len(free) < 2:
        detail = "the text holds every character that could be used as a mark"
        raise RecordRejected(RejectReason.span_not_proved, detail)
    return Marks(*free)


def _written(character: str) -> bytes:
    return f"\\u{ord(character):04x}".encode()


_WRITTEN = [(marks, (_written(marks.begin), _written(marks.end))) for marks in ALL_MARKS if ord(marks.begin) < 0x20]
"""Marks with their characters as JSON writes them: it always escapes control characters."""
