"""Tool schemas and tool calls read back from the text that a template made of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_NAME = re.compile(r"[\w.\-/]+$")
_XML_CALL = re.compile(r"<function=([^>\n]+)>\n?(.*?)</function>", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", re.DOTALL)
_PAIRED_CALL = re.compile(r"<tool_call>\s*([\w.\-/]+)\n?(.*?)</tool_call>", re.DOTALL)
_PAIRED_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


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
    found = []
    for _, _, value in json_objects(text):
        if isinstance(value.get("function"), dict):
            found.append(value)
        elif isinstance(value.get("name"), str) and ("parameters" in value or "description" in value):
            found.append({"type": "function", "function": value})
    return found


class CallReader:
    """Reads calls back from the text of an assistant's tool calls.

    Args:
        between: texts that the template writes between a function's name and
            the JSON of its arguments, as probes showed.
    """

    def __init__(self, between: list[str]) -> None:
        self._between = [re.compile(re.sub(r"\d+", r"\\d+", re.escape(text)) + r"\Z") for text in between if text]

    def read(self, text: str, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Calls in OpenAI form; empty where the text is in no form that is known."""
        return (
            self._from_json(text)
            or _from_tags(text, _XML_CALL, _XML_ARGUMENT, tools)
            or _from_tags(text, _PAIRED_CALL, _PAIRED_ARGUMENT, tools)
        )

    def _from_json(self, text: str) -> list[dict[str, Any]]:
        calls = []
        for start, _, value in json_objects(text):
            inner = value.get("function", value) if isinstance(value.get("function", value), dict) else value
            arguments = inner.get("arguments", inner.get("parameters"))
            if isinstance(inner.get("name"), str) and isinstance(arguments, dict):
                calls.append(_call(inner["name"], arguments))
                continue
            name = self._name_before(text[:start])
            if name is not None:
                calls.append(_call(name, value))
        return calls

    def _name_before(self, text: str) -> str | None:
        for pattern in self._between:
            gap = pattern.search(text)
            name = _NAME.search(text, 0, gap.start()) if gap else None
            if name is not None:
                return name.group().removeprefix("functions.")
        return None


def _from_tags(
    text: str, call: re.Pattern[str], argument: re.Pattern[str], tools: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    calls = []
    for found in call.finditer(text):
        kinds = _argument_types(found[1], tools)
        values = {key: _value(value, kinds.get(key)) for key, value in argument.findall(found[2])}
        calls.append(_call(found[1], values))
    return calls


def _argument_types(name: str, tools: list[dict[str, Any]] | None) -> dict[str, str]:
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: str(schema.get("type")) for key, schema in properties.items() if isinstance(schema, dict)}
    return {}


def _value(text: str, kind: str | None) -> Any:
    """An argument that was written without quotes: text, unless its schema or its form says otherwise."""
    if kind == "string" or (kind is None and not text.startswith(("{", "["))):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
