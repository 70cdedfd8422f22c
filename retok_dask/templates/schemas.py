"""Tool schemas in order: the same few come with most records, so each is looked at once.

A record's schemas are known by their JSON. What is given for them is one
object, shared by all records that have the same, and never changed.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.types import RecordRejected, RejectReason, SharedTools

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
"""Makes an error of every value that JSON would give back as another."""


class Schema(dict[str, Any]):
    """A schema, or its function part, that remembers how it was written.

    Templates see its attributes as they see its keys, so it has none without an underscore.
    """

    __slots__ = ("_texts",)

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self._texts: dict[Hashable, str] = {}


def written(schema: Schema, form: Hashable, write: Callable[[Any], str]) -> str:
    """What `write` makes of a schema; `form` names its way of writing."""
    texts = schema._texts
    if form not in texts:
        texts[form] = write(schema)
    return texts[form]


class ToolList(list[dict[str, Any]]):
    """Tools that remember how JSON writes them; never changed, and seen by templates as any list (see `Schema`)."""

    __slots__ = ("_json",)

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._json = orjson.dumps(tools)


def json_of(tools: list[dict[str, Any]]) -> bytes:
    """Tools as JSON.

    Raises:
        TypeError: JSON cannot hold them.
    """
    return tools._json if type(tools) is ToolList else orjson.dumps(tools)


class ToolSet:
    """The tools of a record.

    Attributes:
        tools: as templates see them.
        known: names of the arguments by function.
        counts: what was changed.
    """

    def __init__(self, tools: list[dict[str, Any]], *, drop_nulls: bool) -> None:
        counts: Counter[str] = Counter()
        self.tools: list[dict[str, Any]] = [_without_nulls(tool, counts) for tool in tools] if drop_nulls else tools
        self.known = _known_arguments(self.tools)
        self.counts: Mapping[str, int] = counts


def read_tools(tools: Any, *, drop_nulls: bool) -> ToolSet:
    """Put tool schemas in order.

    Args:
        tools: as a layout made them.
        drop_nulls: leave out the nulls with which columnar storage pads schemas.

    Raises:
        RecordRejected: ``bad_tools``.
    """
    if type(tools) is not SharedTools:
        return _read(tools, drop_nulls)
    if drop_nulls not in tools.read:
        tools.read[drop_nulls] = _read([*tools], drop_nulls)
    read: ToolSet = tools.read[drop_nulls]
    return read


def _read(tools: Any, drop_nulls: bool) -> ToolSet:
    try:
        dumped = orjson.dumps(tools, option=PLAIN) if isinstance(tools, list) else b"null"
    except TypeError:  # integers past 64 bits, and what a program put there that is no JSON
        return ToolSet(_objects(tools), drop_nulls=drop_nulls)
    return _read_once(dumped, drop_nulls)


@lru_cache(maxsize=256)
def _read_once(dumped: bytes, drop_nulls: bool) -> ToolSet:
    made = ToolSet(_objects(orjson.loads(dumped)), drop_nulls=drop_nulls and b"null" in dumped)
    made.tools = ToolList([_schema(tool) for tool in made.tools])
    return made


def _objects(tools: Any) -> list[dict[str, Any]]:
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        return tools
    raise RecordRejected(RejectReason.bad_tools, "tools are not a list of objects")


def _schema(tool: dict[str, Any]) -> Schema:
    function = tool.get("function")
    return Schema(tool | {"function": Schema(function)} if isinstance(function, dict) else tool)


def _without_nulls(value: Any, counts: Counter[str]) -> Any:
    if isinstance(value, dict):
        dropped = sum(1 for item in value.values() if item is None)
        if dropped:
            counts["tool_nulls_dropped"] += dropped
        return {key: _without_nulls(item, counts) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item, counts) for item in value]
    return value


def _known_arguments(tools: list[dict[str, Any]]) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for tool in tools:
        function = tool.get("function") or tool
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            known[function["name"]] = set(properties) if isinstance(properties, dict) else set()
    return known
