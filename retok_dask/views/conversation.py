"""Conversations drawn as conversations: roles, reasoning, tool calls, odd things."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.views.text import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 1200
_FOLDED = 20_000
_ROLE_KINDS = {"system": "system", "developer": "system", "user": "user", "tool": "tool", "assistant": "content"}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message: ``rest`` is behind a fold, ``cut`` characters are not drawn."""

    kind: str
    label: str
    text: str
    rest: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as drawn."""

    index: int
    role: str
    kind: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ToolLine:
    """One tool the conversation offers."""

    name: str
    description: str
    parameters: str


@dataclass(slots=True, repr=False)
class ConversationView:
    """A conversation ready to be drawn; shows itself in notebooks and as text."""

    title: str
    facts: list[tuple[str, str]]
    turns: list[Turn]
    tools: list[ToolLine] = field(default_factory=list)
    skipped: int = 0

    def _repr_html_(self) -> str:
        from retok_dask.views.html import conversation_fragment  # noqa: PLC0415  text alone needs no templates

        return conversation_fragment(self)

    def to_page(self) -> str:
        """One HTML file that needs nothing else."""
        from retok_dask.views.html import conversation_fragment, page  # noqa: PLC0415

        return page(self.title, [conversation_fragment(self)])

    def to_text(self, *, colour: bool = False, width: int = 100) -> str:
        """The conversation for a terminal."""
        from retok_dask.views.terminal import conversation_text  # noqa: PLC0415

        return conversation_text(self, colour=colour, width=width)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def conversation_view(conversation: Any, *, max_messages: int = 60) -> ConversationView:
    """Prepare the view of a conversation.

    Args:
        conversation: a :class:`retok_dask.types.Conversation`, or a record in
            OpenAI form (a dict with ``messages``, perhaps ``tools`` and ``id``).
        max_messages: messages drawn at most; the view says how many it leaves out.
    """
    if isinstance(conversation, dict):
        messages, tools, name = conversation["messages"], conversation.get("tools"), conversation.get("id")
    else:
        messages, tools, name = conversation.messages, conversation.tools, conversation.id
    turns = [_turn(index, message) for index, message in enumerate(messages[:max_messages])]
    roles: dict[str, int] = {}
    for message in messages:
        role = one_line(_get(message, "role") or "no role", 40)
        roles[role] = roles.get(role, 0) + 1
    facts = [("messages", f"{len(messages):,}"), ("roles", ", ".join(f"{role} {n}" for role, n in roles.items()))]
    lines = [_tool(each) for each in (tools or [])[:max_messages]]
    return ConversationView(
        one_line(name or "conversation", 80), facts, turns, lines, max(0, len(messages) - max_messages)
    )


def _get(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else None


def _turn(index: int, message: Any) -> Turn:
    role = _get(message, "role")
    name = one_line(role if isinstance(role, str) else "no role", 40)
    kind = _ROLE_KINDS.get(name, "other")
    parts = []
    if not isinstance(message, dict):
        parts.append(_part("other", "no message", message))
        return Turn(index, name, kind, tuple(parts))
    if message.get("reasoning_content"):
        parts.append(_part("reasoning", "reasoning", message["reasoning_content"]))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(each) for each in content)
    if content:
        parts.append(_part(kind, "content", content))
    parts.extend(_part("tool_call", "tool call", _call(call)) for call in message.get("tool_calls") or ())
    return Turn(index, name, kind, tuple(parts))


def _text_of(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else f"[{one_line(_get(part, 'type') or 'part', 40)}]"


def _part(kind: str, label: str, value: Any) -> Part:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return Part(
        kind,
        label,
        harmless(text[:_SHOWN], _SHOWN),
        harmless(text[_SHOWN:_FOLDED], _FOLDED),
        max(0, len(text) - _FOLDED),
    )


def _call(call: Any) -> str:
    function = _get(call, "function") or call
    if not isinstance(function, dict):
        return str(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return f"{function.get('name')}({arguments})"


def _tool(tool: Mapping[str, Any] | Any) -> ToolLine:
    function = _get(tool, "function") or tool
    if not isinstance(function, dict):
        return ToolLine(one_line(str(tool), 60), "", "")
    parameters = json.dumps(function.get("parameters"), ensure_ascii=False, indent=1, default=str)
    return ToolLine(
        one_line(function.get("name") or "no name", 60),
        harmless(function.get("description") or "", 300),
        harmless(parameters, 1500),
    )
