"""Lists of messages: OpenAI's and ShareGPT's, with the names that people use for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.types import Conversation, RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

MESSAGE_LISTS = (
    "messages",
    "conversations",
    "conversation",
    "traj",
    "history",
    "dialogue",
    "dialog",
    "chat",
    "turns",
    "trajectory",
)
"""Names under which a record holds its messages, in order of preference."""

TOOL_LISTS = ("tools", "functions", "function")
ID_NAMES = ("id", "conversation_id", "uuid", "prompt_id", "task_id", "instance_id", "message_tree_id", "message_id")
FLAG_NAMES = ("train", "loss_weight", "weight", "loss", "trainable", "training")
"""Keys of a message that say whether it is trained, in order of preference."""

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "claude": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "tool_result": "tool",
    "ipython": "tool",
    "function_call": "call",
    "tool_call": "call",
}
"""What people write for a role. ``call`` is an assistant message that is one JSON tool call."""


def is_messages(value: Any, key: str) -> bool:
    """Whether a value is a list of messages whose role is under ``key``."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and value[0].get(key) is not None


def messages_in(record: dict[str, Any], key: str) -> list[Any] | None:
    """The record's messages whose role is under ``key``, under whatever name, also as JSON text."""
    for name in MESSAGE_LISTS:
        value = record.get(name)
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            value = _json_or_none(value)
        if is_messages(value, key):
            return value
    return None


def _json_or_none(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def fits_messages(record: dict[str, Any]) -> bool:
    """A list of objects with ``role``, under one of the usual names, or an empty one."""
    if messages_in(record, "role") is not None:
        return True
    return any(name in record and not record[name] for name in ("messages", "conversations", "conversation"))


def build_messages(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """OpenAI messages."""
    found = messages_in(record, "role")
    if found is None:
        found = messages_in(record, "from")
    return [conversation(found if found is not None else _any_list(record), record, spec)]


def _any_list(record: dict[str, Any]) -> Any:
    """What lies under the first of the usual names: it is empty, or no list of messages."""
    name = next((name for name in MESSAGE_LISTS if name in record), None)
    if name is None:
        detail = f"no messages under any of: {', '.join(MESSAGE_LISTS)}; name the field by fields: {{messages: ...}}"
        raise RecordRejected(RejectReason.bad_layout, detail)
    return record[name]


def fits_sharegpt(record: dict[str, Any]) -> bool:
    """A list of objects with ``from``, under one of the usual names."""
    return messages_in(record, "from") is not None


def conversation(messages: Any, record: dict[str, Any], spec: DatasetSpec) -> Conversation:
    """A conversation of a list of messages, with the record's tools and system text.

    Raises:
        RecordRejected: ``empty_conversation``, ``bad_layout``,
            ``unknown_role``, ``bad_tool_call``, ``bad_tools``.
    """
    if messages is None or messages == []:
        raise RecordRejected(RejectReason.empty_conversation, "no messages")
    if not isinstance(messages, list):
        raise RecordRejected(RejectReason.bad_layout, f"messages are a list, not {type(messages).__name__}")
    counts: dict[str, int] = {}
    out: list[dict[str, Any]] = []
    flags: list[bool | None] = []
    for number, message in enumerate(messages):
        out.append(one_message(message, number, spec))
        flags.append(_flag(out[-1]))
    system = record.get("system")
    if isinstance(system, str) and system and out[0]["role"] not in ("system", "developer"):
        out.insert(0, {"role": "system", "content": system})
        flags.insert(0, None)
    tools = tools_of(record, counts)
    return Conversation(out, tools, flags=flags if any(f is not None for f in flags) else [], counts=counts)


def one_message(message: Any, number: int, spec: DatasetSpec) -> dict[str, Any]:
    """One message in OpenAI form; its content and further keys are left as they are."""
    if not isinstance(message, dict):
        raise RecordRejected(RejectReason.bad_layout, f"message {number} is no object")
    name = message.get("role")
    sharegpt = name is None
    if sharegpt:
        name = message.get("from")
    role = _standard_role(name, spec)
    if role is None:
        shown = repr(name) if name is not None else "none"
        detail = f"message {number} has the role {shown}; map it with the recipe's roles"
        raise RecordRejected(RejectReason.unknown_role, detail)
    content = _content(message)
    if role == "call":
        return _call_message(content, number)
    if sharegpt or name != role or "content" not in message:
        message = {k: v for k, v in message.items() if k not in ("role", "from", "value", "text", "content")}
        message = {"role": role, **message}
        if content is not None or "tool_calls" not in message:
            message["content"] = content
    if message.get("tool_calls") is not None:
        check_tool_calls(message["tool_calls"], number)
    return dict(message)


def _standard_role(name: Any, spec: DatasetSpec) -> str | None:
    if not isinstance(name, str):
        return None
    name = spec.roles.get(name, name)
    return ROLES.get(name) or ROLES.get(name.strip().lower())


def _content(message: dict[str, Any]) -> Any:
    for name in ("content", "value", "text"):
        if message.get(name) is not None:
            return message[name]
    return None


def _flag(message: dict[str, Any]) -> bool | None:
    """Whether the data says that a message is trained; the keys that say so are taken out."""
    flag: bool | None = None
    for name in FLAG_NAMES:
        value = message.get(name)
        if isinstance(value, bool | int | float):
            message.pop(name)
            flag = bool(value) if flag is None else flag
    return flag


def check_tool_calls(calls: Any, number: int) -> None:
    """Refuse tool calls that no template could write."""
    if not isinstance(calls, list):
        detail = f"tool_calls of message {number} are no list"
        raise RecordRejected(RejectReason.bad_tool_call, detail)
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RecordRejected(RejectReason.bad_tool_call, f"a tool call of message {number} names no function")


def _call_message(content: Any, number: int) -> dict[str, Any]:
    """ShareGPT's ``function_call``: JSON text of one call or several, as an assistant message."""
    if isinstance(content, str):
        try:
            content = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            detail = f"the call in message {number} is no JSON: {error}"
            raise RecordRejected(RejectReason.bad_tool_call, detail) from None
    calls = content if isinstance(content, list) else [content]
    check_tool_calls(calls, number)
    functions = [call.get("function", call) for call in calls]
    wrapped = [
        {"type": "function", "function": {"name": f["name"], "arguments": f.get("arguments", f.get("parameters", {}))}}
        for f in functions
    ]
    return {"role": "assistant", "content": "", "tool_calls": wrapped}


def tools_of(record: dict[str, Any], counts: dict[str, int]) -> list[dict[str, Any]] | None:
    """Function schemas of a record, from a list or from JSON text.

    Raises:
        RecordRejected: ``bad_tools``.
    """
    tools: Any = next((record[name] for name in TOOL_LISTS if record.get(name)), None)
    if isinstance(tools, str):
        if not tools.strip():
            return None
        try:
            tools = orjson.loads(tools)
        except orjson.JSONDecodeError as error:
            raise RecordRejected(RejectReason.bad_tools, f"tools are no JSON: {error}") from None
    if not tools:
        return None
    if isinstance(tools, dict):
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RecordRejected(RejectReason.bad_tools, "tools are no list of objects")
    bare = [tool for tool in tools if "function" not in tool and isinstance(tool.get("name"), str)]
    if bare:
        counts["tools_wrapped"] = len(bare)
        tools = [{"type": "function", "function": tool} if tool in bare else tool for tool in tools]
    return list(tools)
