"""Lists of messages: OpenAI's and ShareGPT's, with the names that people use for both."""

from __future__ import annotations

from functools import lru_cache
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from retok_dask.completions.parsing import load_text
from retok_dask.types import Conversation, RecordRejected, RejectReason, SharedTools

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
"""Keys of a message that say whether it is trained."""
_FLAGS = frozenset(FLAG_NAMES)
_MESSAGE_KEYS = frozenset({"role", "from", "content", "value", "text"})
_NOT_KEPT = _FLAGS | {"from", "value", "text"}

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


_ORDINARY_ROLES = frozenset(name for name, role in ROLES.items() if name == role)


def role_key(value: Any) -> str | None:
    """Under which key the messages of a list hold their role; None for what is no list of messages."""
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    if not isinstance(first, dict):
        return None
    return "role" if first.get("role") is not None else "from" if first.get("from") is not None else None


def find_messages(record: dict[str, Any]) -> tuple[list[Any] | None, str | None]:
    """The record's messages, under whatever name, also as JSON text, and the key of their role."""
    for name in MESSAGE_LISTS:
        if name in record:
            value = record[name]
            if isinstance(value, str) and value.lstrip()[:1] == "[":
                value = _json_or_none(value)
            key = role_key(value)
            if key is not None:
                return value, key
    return None, None


def _json_or_none(text: str) -> Any:
    try:
        return load_text(text)
    except JSONDecodeError:
        return None


def fits_messages(record: dict[str, Any]) -> bool:
    """A list of objects with ``role``, under one of the usual names, or an empty one."""
    key = find_messages(record)[1]
    if key is None:
        return any(name in record and not record[name] for name in ("messages", "conversations", "conversation"))
    return key == "role"


def fits_sharegpt(record: dict[str, Any]) -> bool:
    """A list of objects with ``from``, under one of the usual names."""
    return find_messages(record)[1] == "from"


def build_messages(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """OpenAI or ShareGPT messages."""
    found, _ = find_messages(record)
    return [conversation(_any_list(record) if found is None else found, record, spec)]


def _any_list(record: dict[str, Any]) -> Any:
    """What lies under the first of the usual names: it is empty, or no list of messages."""
    name = next((name for name in MESSAGE_LISTS if name in record), None)
    if name is None:
        detail = f"no messages under any of: {', '.join(MESSAGE_LISTS)}; name the field by fields: {{messages: ...}}"
        raise RecordRejected(RejectReason.bad_layout, detail)
    return record[name]


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
    flagged: dict[int, bool] = {}
    standard = not spec.roles
    for number, message in enumerate(messages):
        if standard and type(message) is dict and _is_in_order(message):
            if len(message) > 2 and message.get("tool_calls") is not None:
                check_tool_calls(message["tool_calls"], number)
            out.append(message)
        else:
            made = one_message(message, number, spec)
            flag = None if _FLAGS.isdisjoint(made) else _take_flag(made, number)
            if flag is not None:
                flagged[number] = flag
            out.append(made)
    flags = [flagged.get(number) for number in range(len(out))] if flagged else []
    system = record.get("system")
    if isinstance(system, str) and system and out[0]["role"] not in ("system", "developer"):
        out.insert(0, {"role": "system", "content": system})
        if flags:
            flags.insert(0, None)
    tools = tools_of(record, counts)
    return Conversation(out, tools, flags=flags, counts=counts)


def one_message(message: Any, number: int, spec: DatasetSpec) -> dict[str, Any]:
    """One message in OpenAI form; its content and further keys are left as they are."""
    if not isinstance(message, dict):
        raise RecordRejected(RejectReason.bad_layout, f"message {number} is no object")
    name = message.get("role")
    if name is None:
        name = message.get("from")
    role = _standard_role(name, spec)
    if role is None:
        shown = repr(name) if name is not None else "none"
        detail = f"message {number} has the role {shown}; map it with the recipe's roles"
        raise RecordRejected(RejectReason.unknown_role, detail)
    content = _content(message)
    out = _call_message(content, number) if role == "call" else {"role": role, "content": content}
    if not _MESSAGE_KEYS.issuperset(message):
        out |= {
            key: value
            for key, value in message.items()
            if key not in _MESSAGE_KEYS and (role != "call" or key not in out)
        }
        if out.get("tool_calls") is not None:
            check_tool_calls(out["tool_calls"], number)
    return out


def _is_in_order(message: dict[str, Any]) -> bool:
    """Whether a message is in OpenAI form as it stands, without a flag that would be taken out of it."""
    name = message.get("role")
    if type(name) is not str or name not in _ORDINARY_ROLES or message.get("content") is None:
        return False
    return len(message) == 2 or _NOT_KEPT.isdisjoint(message)


def _standard_role(name: Any, spec: DatasetSpec) -> str | None:
    if not isinstance(name, str):
        return None
    if spec.roles:
        name = spec.roles.get(name, name)
    return ROLES.get(name) or ROLES.get(name.strip().lower())


def _content(message: dict[str, Any]) -> Any:
    content = message.get("content")
    if content is None:
        content = message.get("value")
    return message.get("text") if content is None else content


_FLAG_TEXTS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""Flags that a data set's export has turned into text."""


def _take_flag(message: dict[str, Any], number: int) -> bool | None:
    """Whether the data says that a message is trained; the keys that say so are taken out."""
    said: dict[str, bool] = {}
    for name in FLAG_NAMES:
        value = message.get(name)
        if isinstance(value, str):
            value = _FLAG_TEXTS.get(value.strip().lower())
        if isinstance(value, bool | int | float):
            message.pop(name)
            said[name] = bool(value)
    if len(set(said.values())) > 1:
        shown = ", ".join(f"{name} {'trains' if flag else 'does not train'}" for name, flag in said.items())
        raise RecordRejected(
            RejectReason.flag_conflict, f"the flags of message {number} contradict each other: {shown}"
        )
    return next(iter(said.values()), None)


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
            content = load_text(content)
        except JSONDecodeError as error:
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
    tools: Any = None
    for name in TOOL_LISTS:
        tools = record.get(name)
        if tools:
            break
    if not tools:
        return None
    found, wrapped = _tools_of_text(tools) if isinstance(tools, str) else _tools_of_value(tools)
    if wrapped:
        counts["tools_wrapped"] = wrapped
    return found


@lru_cache(maxsize=256)
def _tools_of_text(text: str) -> tuple[SharedTools | None, int]:
    """The same few texts come with most records, so each is parsed once; nobody changes what it gives."""
    if not text.strip():
        return None, 0
    try:
        value = load_text(text)
    except JSONDecodeError as error:
        raise RecordRejected(RejectReason.bad_tools, f"tools are no JSON: {error}") from None
    found, wrapped = _tools_of_value(value)
    return None if found is None else SharedTools(found), wrapped


def _tools_of_value(tools: Any) -> tuple[list[dict[str, Any]] | None, int]:
    """Tools as a list of schemas, None for none, and how many were no more than their function."""
    if not tools:
        return None, 0
    if isinstance(tools, dict):
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RecordRejected(RejectReason.bad_tools, "tools are no list of objects")
    bare = ["function" not in tool and isinstance(tool.get("name"), str) for tool in tools]
    wrapped = [
        {"type": "function", "function": tool} if alone else tool for tool, alone in zip(tools, bare, strict=True)
    ]
    return wrapped, sum(bare)
