"""Putting messages in order before a template sees them; every change is counted.

The order: content parts to text (with reasoning and tool-call parts moved to
their fields), reasoning under its several names to ``reasoning_content``,
inline ``<think>`` tags to ``reasoning_content``, tool arguments from JSON text
to objects, nulls of columnar storage out of schemas and calls.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.templates.context import REASONING_FIELDS
from retok_dask.templates.schemas import read_tools
from retok_dask.types import Conversation, RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.recipe import NormalizeSpec
    from retok_dask.types import Counts

Message = dict[str, Any]

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


def normalize_conversation(
    conversation: Conversation, spec: NormalizeSpec, *, knows_developer: bool = False
) -> Conversation:
    """A conversation in the form that templates read; its `counts` hold what was changed here, and that alone.

    The given conversation is not changed.

    Args:
        conversation: as a layout made it.
        spec: which changes are wanted.
        knows_developer: whether the template has a developer role of its own.

    Raises:
        RecordRejected: ``empty_conversation``, ``non_text_part``,
            ``bad_content``, ``bad_tool_call`` or ``bad_tools``.
    """
    if not conversation.messages:
        raise RecordRejected(RejectReason.empty_conversation, "no messages")
    tools, known = conversation.tools, {}
    counts: Mapping[str, int] = {}
    if tools is not None:
        read = read_tools(tools, drop_nulls=spec.tool_schemas)
        tools, known, counts = read.tools, read.known, read.counts
    messages: list[Message] = []
    work = None
    for number, message in enumerate(conversation.messages):
        in_order = _is_in_order(message)
        if in_order and "tool_calls" not in message:
            messages.append(message)
            continue
        if work is None:
            work = _Normalizer(spec, defaultdict(int, counts), known, knows_developer)
            counts = work.counts
        messages.append(work.message(message, number, in_order=in_order))
    return Conversation(
        messages,
        tools or None,
        conversation.id,
        conversation.flags,
        conversation.template_args,
        conversation.kept,
        {name: number for name, number in counts.items() if number} if counts else {},
        conversation.output_markers,
    )


class _Normalizer:
    def __init__(self, spec: NormalizeSpec, counts: Counts, known: dict[str, set[str]], knows_developer: bool) -> None:
        self.spec = spec
        self.counts = counts
        self.known = known
        self.knows_developer = knows_developer
        self._decoder: json.JSONDecoder | None = None

    def message(self, message: Message, number: int, *, in_order: bool) -> Message:
        """One message, put in order; it is `in_order` already where at most its tool calls are not."""
        changed = dict(message)
        if not in_order:
            self._fields(changed, number)
        if changed["role"] == "assistant" and changed.get("tool_calls") is not None:
            self._calls(changed, number)
        return changed

    def _fields(self, message: Message, number: int) -> None:
        role = message.get("role")
        if not isinstance(role, str):
            raise RecordRejected(RejectReason.unknown_role, f"message {number} has the role {role!r}")
        self._role(message, role)
        self._content(message, number)
        if role == "assistant":
            if "function_call" in message:
                self._function_call(message)
            if self.spec.reasoning_fields:
                self._reasoning(message, number)
            if self.spec.inline_reasoning:
                self._inline(message)

    def _role(self, message: Message, role: str) -> None:
        if role == "developer" and self.spec.developer_role and not self.knows_developer:
            message["role"] = "system"
            self.counts["developer_as_system"] += 1
        elif role == "function":
            message["role"] = "tool"
            self.counts["function_as_tool"] += 1

    def _function_call(self, message: Message) -> None:
        """The one call of a message, as OpenAI wrote it before there were several."""
        called = message.pop("function_call")
        if called is not None:
            message["tool_calls"] = [*(message.get("tool_calls") or []), {"type": "function", "function": called}]
            self.counts["function_call_as_tool_call"] += 1

    def _content(self, message: Message, number: int) -> None:
        content = message.get("content")
        if content is None:
            if self.spec.null_content:
                message["content"] = ""
                self.counts["null_content"] += 1
        elif isinstance(content, list) and self.spec.content_parts:
            self._parts(message, content, number)
        elif not isinstance(content, str | list):
            detail = f"the content of message {number} is a {type(content).__name__}, not text or parts"
            raise RecordRejected(RejectReason.bad_content, detail)

    def _parts(self, message: Message, parts: list[Any], number: int) -> None:
        texts, reasoning, calls = [], [], list(message.get("tool_calls") or [])
        for part in parts:
            kind = part.get("type", "text") if isinstance(part, dict) else "text"
            value = part if isinstance(part, str) else _part_value(part, number)
            if kind in ("text", "input_text", "output_text") and isinstance(value, str):
                texts.append(value)
            elif kind in ("reasoning", "thinking") and isinstance(value, str):
                reasoning.append(value)
            elif kind in ("tool_call", "function_call"):
                calls.append(_call_of_part(value, number))
            else:
                detail = f"message {number} has a part of type {kind!r}"
                raise RecordRejected(RejectReason.non_text_part, detail)
        message["content"] = "".join(texts)
        if reasoning:
            given = message.get("reasoning_content")
            message["reasoning_content"] = "\n".join(reasoning)
            self.counts["reasoning_fields_differ"] += bool(given) and given != message["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        self.counts["content_parts_joined"] += 1

    def _reasoning(self, message: Message, number: int) -> None:
        names = [name for name in REASONING_FIELDS if message.get(name) is not None]
        for name in names:
            if not isinstance(message[name], str):
                detail = f"{name} of message {number} is a {type(message[name]).__name__}, not text"
                raise RecordRejected(RejectReason.bad_content, detail)
        texts = {message[name] for name in names if message[name]}
        if len(texts) > 1:
            self.counts["reasoning_fields_differ"] += 1
        kept = ""
        for name in names:
            value = message.pop(name)
            kept = kept or value
            self.counts["reasoning_renamed"] += bool(value) and name != "reasoning_content"
        if kept:
            message["reasoning_content"] = kept

    def _inline(self, message: Message) -> None:
        content = message.get("content")
        if not isinstance(content, str) or (CLOSE_THINK not in content and OPEN_THINK not in content):
            return
        body = content.lstrip()
        opened = body.startswith(OPEN_THINK)
        if CLOSE_THINK not in body:
            if opened:
                self.counts["unbalanced_think_tags"] += 1
            return
        head, _, rest = body.partition(CLOSE_THINK)
        head = head.removeprefix(OPEN_THINK)
        if OPEN_THINK in head:
            if not opened:
                return  # a tag somewhere in the text is text
            self.counts["unbalanced_think_tags"] += 1
        if not opened:
            self.counts["lone_closing_think"] += 1
        if message.get("reasoning_content"):
            self.counts["reasoning_given_twice"] += 1
            if head.strip() and head.strip() != message["reasoning_content"].strip():
                return
        elif head.strip():
            message["reasoning_content"] = head.strip("\n")
        message["content"] = rest.lstrip("\n")
        self.counts["inline_reasoning_moved"] += 1

    def _calls(self, message: Message, number: int) -> None:
        calls = message["tool_calls"]
        if not isinstance(calls, list):
            detail = f"tool_calls of message {number} is a {type(calls).__name__}, not a list"
            raise RecordRejected(RejectReason.bad_tool_call, detail)
        if not calls:
            del message["tool_calls"]
            return
        message["tool_calls"] = [self._call(call, number) for call in calls]

    def _call(self, call: Any, number: int) -> Any:
        inner = call.get("function") if isinstance(call, dict) and "function" in call else call
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise RecordRejected(RejectReason.bad_tool_call, f"a call of message {number} has no function name")
        if self.spec.tool_schemas:
            call, inner = self._without_nulls(call), self._without_nulls(inner)
        if self.spec.tool_arguments:
            inner = {**inner, "arguments": self._arguments(inner, number)}
        if "function" in call:
            return {**call, "function": inner}
        self.counts["flat_tool_calls"] += 1
        identity = {"id": inner["id"]} if "id" in inner else {}
        return {**identity, "type": "function", "function": {k: inner[k] for k in ("name", "arguments") if k in inner}}

    def _without_nulls(self, value: Message) -> Message:
        if None not in value.values():
            return value
        kept = {key: item for key, item in value.items() if item is not None or key == "arguments"}
        if len(kept) < len(value):
            self.counts["call_nulls_dropped"] += 1
        return kept

    def _arguments(self, call: Message, number: int) -> Any:
        given = call.get("arguments")
        parsed = given
        if isinstance(given, str):
            parsed = self._parse(given, number)
            self.counts["arguments_parsed"] += 1
            if type(parsed) is dict:
                return parsed
            if isinstance(parsed, str) and parsed.strip().startswith("{"):
                self.counts["arguments_encoded_twice"] += 1
                parsed = self._parse(parsed, number)
        if parsed is None or parsed == "":
            self.counts["empty_arguments"] += 1
            return {}
        if not isinstance(parsed, dict):
            detail = f"arguments of a call in message {number} are a {type(parsed).__name__}, not an object"
            raise RecordRejected(RejectReason.bad_tool_call, detail)
        known = self.known.get(call["name"])
        if self.spec.tool_schemas and known is not None and not isinstance(given, str):
            kept = {key: value for key, value in parsed.items() if value is not None or key in known}
            if len(kept) < len(parsed):
                self.counts["argument_nulls_dropped"] += 1
            return kept
        return parsed

    def _parse(self, text: str, number: int) -> Any:
        if not text or text.isspace():
            return None
        try:
            value = orjson.loads(text)
        except ValueError:
            pass  # NaN, half surrogate pairs, deep nesting: Python's reader takes them, or says what is wrong
        else:
            if not holds_float(value):
                return value
        if self._decoder is None:  # made once: it costs more than parsing a usual call
            self._decoder = json.JSONDecoder(parse_float=self._float)
        try:
            return self._decoder.decode(text)
        except (ValueError, RecursionError) as error:
            detail = f"arguments of a call in message {number} are no JSON: {error}"
            raise RecordRejected(RejectReason.bad_tool_call, detail) from None

    def _float(self, text: str) -> float:
        value = float(text)
        if repr(value) != text:
            self.counts["number_text_changed"] += 1
        return value


_ORDINARY_ROLES = frozenset({"user", "assistant", "system", "tool"})
_MOVED = frozenset(REASONING_FIELDS) - {"reasoning_content"} | {"function_call"}


def _is_in_order(message: Message) -> bool:
    """Whether a message has a text and an ordinary role, and needs no change but to tool calls; False is always safe."""
    role, content = message.get("role"), message.get("content")
    if type(content) is not str or type(role) is not str or role not in _ORDINARY_ROLES:
        return False
    if role != "assistant":
        return True
    if len(message) != 2:
        reasoning = message.get("reasoning_content", "none")
        if type(reasoning) is not str or not reasoning or not _MOVED.isdisjoint(message):
            return False
    return not ("<" in content and "think>" in content)


def holds_float(value: Any) -> bool:
    """Whether parsed JSON holds a real number; the fast reader makes one of an integer past 64 bits too."""
    todo = [value]
    for item in todo:  # which grows meanwhile
        kind = type(item)
        if kind is str:
            continue
        if kind is dict:
            todo += item.values()
        elif kind is list:
            todo += item
        elif kind is float:
            return True
    return False


def _part_value(part: Any, number: int) -> Any:
    if isinstance(part, dict):
        for key in ("text", "value", "content", "reasoning", "thinking", "tool_call", "function"):
            if part.get(key) is not None:
                return part[key]
        if part.get("type") in ("text", "input_text", "output_text", "reasoning", "thinking"):
            return ""
        kind = part.get("type")
        raise RecordRejected(RejectReason.non_text_part, f"message {number} has a part of type {kind!r}")
    detail = f"message {number} has a part that is a {type(part).__name__}"
    raise RecordRejected(RejectReason.bad_content, detail)


def _call_of_part(value: Any, number: int) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            detail = f"a tool-call part of message {number} is no JSON: {error}"
            raise RecordRejected(RejectReason.bad_tool_call, detail) from None
    if not isinstance(value, dict):
        raise RecordRejected(RejectReason.bad_tool_call, f"a tool-call part of message {number} is no object")
    return value if "function" in value else {"type": "function", "function": value}
