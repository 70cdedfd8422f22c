"""Tool schemas and tool calls read back from the text that a template made of them."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_XML_CALL = re.compile(r"<function=([^>\n]+)>\n?(.*?)</function>", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=(?P<key>[^>\n]+)>(?:\n(?P<value>.*?)\n|(?P<bare>.*?))</parameter>", re.DOTALL)
_PAIRED_CALL = re.compile(r"<tool_call>\s*([\w.\-/]+)\n?(.*?)</tool_call>", re.DOTALL)
_PAIRED_ARGUMENT = re.compile(r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)
_INVOKE_CALL = re.compile(r"<(?:｜DSML｜)?invoke name=\"([^\"\n]+)\">\n?(.*?)</(?:｜DSML｜)?invoke>", re.DOTALL)
_INVOKE_ARGUMENT = re.compile(
    r"<(?:｜DSML｜)?parameter name=\"(?P<key>[^\"\n]+)\"(?: string=\"(?P<text>true|false)\")?>(?P<value>.*?)"
    r"</(?:｜DSML｜)?parameter>",
    re.DOTALL,
)
_NO_LITERAL = object()
_BEFORE_ARGUMENTS = 400
"""Characters before the JSON of a call's arguments in which its name and id stand."""


class Ambiguous(ValueError):
    """A text that may have been written for one value or for another."""


def json_objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(start, end, value) of each JSON object in a text, outermost ones only."""
    at = text.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield at, end, value
        at = text.find("{", end)


def read_tools(text: str) -> list[dict[str, Any]]:
    """Function schemas that a text lists as JSON; empty where it holds none."""
    return [tool for _, _, value in json_objects(text) if (tool := _tool(value)) is not None]


def tools_at(text: str, at: int, between: str) -> tuple[list[dict[str, Any]], int]:
    """Function schemas that stand in a text from a place on, and where they end; `between` stands between two."""
    tools: list[dict[str, Any]] = []
    end = start = at
    while text.startswith("{", start):
        try:
            value, stop = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        tool = _tool(value)
        if tool is None:
            break
        tools.append(tool)
        end, start = stop, stop + len(between)
        if not text.startswith(between, stop):
            break
    return tools, end


def _tool(value: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(value.get("function"), dict):
        return value
    if isinstance(value.get("name"), str) and ("parameters" in value or "description" in value):
        return {"type": "function", "function": value}
    return None


class CallReader:
    """Reads calls back from the text of an assistant's tool calls.

    Args:
        between: what the template writes before the JSON of a call's arguments, as probes showed: with a
            group ``name``, and one ``id`` where it writes the call's id.
    """

    def __init__(self, between: list[re.Pattern[str]]) -> None:
        self._between = between

    def read(self, text: str, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Calls in OpenAI form; empty where the text is in no form that is known.

        Raises:
            Ambiguous: its arguments do not say what they are.
        """
        return (
            self._from_json(text)
            or _from_tags(text, _XML_CALL, _XML_ARGUMENT, tools)
            or _from_tags(text, _PAIRED_CALL, _PAIRED_ARGUMENT, tools)
            or _from_tags(text, _INVOKE_CALL, _INVOKE_ARGUMENT, tools)
        )

    def _from_json(self, text: str) -> list[dict[str, Any]]:
        calls = []
        for start, _, value in json_objects(text):
            inner = value.get("function", value) if isinstance(value.get("function", value), dict) else value
            arguments = inner.get("arguments", inner.get("parameters"))
            if isinstance(inner.get("name"), str) and isinstance(arguments, dict):
                calls.append(_call(inner["name"], arguments, value.get("id")))
                continue
            found = self._before(text[max(start - _BEFORE_ARGUMENTS, 0) : start])
            if found is not None:
                calls.append(_call(found["name"].removeprefix("functions."), value, found.get("id")))
        return calls

    def _before(self, text: str) -> dict[str, str] | None:
        return next((found.groupdict() for pattern in self._between if (found := pattern.search(text))), None)


def _from_tags(
    text: str, call: re.Pattern[str], argument: re.Pattern[str], tools: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    calls = []
    for found in call.finditer(text):
        kinds = _argument_types(found[1], tools)
        values = {}
        for one in argument.finditer(found[2]):
            said = one.groupdict()
            value = said["value"] if said["value"] is not None else said["bare"]
            types = {"true": {"string"}, "false": {"json"}}.get(said.get("text") or "", kinds.get(said["key"], set()))
            values[said["key"]] = _value(said["key"], value, types)
        calls.append(_call(found[1], values))
    return calls


def _argument_types(name: str, tools: list[dict[str, Any]] | None) -> dict[str, set[str]]:
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            types = {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, dict)}
            return {key: {found} if isinstance(found, str) else set(found or ()) for key, found in types.items()}
    return {}


def _value(key: str, text: str, types: set[str]) -> Any:
    """An argument that was written without quotes: what its schema says, or a text that can be nothing else.

    Raises:
        Ambiguous: a number and the text of it, for example, are written alike.
    """
    if types == {"string"}:
        return text
    value = _literal(text)
    if value is _NO_LITERAL:
        return text
    if types and "string" not in types:
        return value
    msg = f"argument {key!r} may be the text {text[:40]!r} or a value that is written so, and no schema says which"
    raise Ambiguous(msg)


def _literal(text: str) -> Any:
    """The value that a text is, other than a text: as JSON has it, or as Python prints it."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return _NO_LITERAL if isinstance(value, str) else value
    return _NO_LITERAL


def _call(name: str, arguments: dict[str, Any], call_id: Any = None) -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **made} if isinstance(call_id, str) else made
