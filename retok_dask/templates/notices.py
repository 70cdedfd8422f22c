"""What must never go by in silence: which records a rendering leaves things out of, and an example of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.templates.context import REASONING_FIELDS
from retok_dask.templates.history import TRAINED

if TYPE_CHECKING:
    from retok_dask.types import Conversation, Rendered

NOTICES = {
    "zero trained tokens": "records of which the default policy trains nothing",
    "doubled BOS": "records that begin with the BOS token twice",
    "unbalanced think tags": "records with an opening or closing think tag alone",
}
"""Facts of an audit that are looked for in every record, found or not; beside what a template drops and swallows."""

DROPS, SWALLOWS = "drops reasoning", "swallows"

_COUNTED = {
    "reasoning_dropped": DROPS,
    "message_not_rendered": SWALLOWS,
    "doubled_bos": "doubled BOS",
    "unbalanced_think_tags": "unbalanced think tags",
}
"""Counts of a rendering by the fact that they are."""

SHOWN = 100


def noticed(row: Rendered, conversation: Conversation) -> dict[str, str]:
    """The facts that a record meets, each with the text that shows it.

    Args:
        row: the conversation, rendered whole.
        conversation: as it came in.
    """
    found = {fact: _EXAMPLES[fact](row, conversation) for name, fact in _COUNTED.items() if row.counts.get(name)}
    if not _trains(row):
        found["zero trained tokens"] = _beginning(row, conversation)
    return found


def known_counts() -> frozenset[str]:
    """Names of counts that :func:`noticed` turns into facts."""
    return frozenset(_COUNTED)


def _trains(row: Rendered) -> bool:
    ends = [*row.starts[1:], len(row.text)]
    return any(
        kind in TRAINED and end > start and not (0 <= owner < len(row.flags) and row.flags[owner] is False)
        for start, end, kind, owner in zip(row.starts, ends, row.kinds, row.messages, strict=True)
    )


def _said(message: dict[str, Any], text: str, number: int) -> str:
    return f"message {number} ({message.get('role')}): {text[:SHOWN]!r}"


def _lost_message(row: Rendered, conversation: Conversation) -> str:
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        if message.get("role") == "assistant" or not isinstance(content, str):
            continue
        if content.strip() not in row.text:
            return _said(message, content, number)
    return _beginning(row, conversation)


def _lost_reasoning(row: Rendered, conversation: Conversation) -> str:
    for number, message in enumerate(conversation.messages):
        for name in REASONING_FIELDS:
            text = message.get(name)
            if isinstance(text, str) and text.strip() and text.strip() not in row.text:
                return _said(message, text, number)
    return _beginning(row, conversation)


def _unbalanced(row: Rendered, conversation: Conversation) -> str:
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            at = max(content.find("<think>"), content.find("</think>"))
            if at >= 0 and content.count("<think>") != content.count("</think>"):
                return _said(message, content[max(0, at - SHOWN // 2) :], number)
    return _beginning(row, conversation)


def _beginning(row: Rendered, conversation: Conversation) -> str:  # noqa: ARG001  one form for all examples
    return f"begins {row.text[:SHOWN]!r}"


_EXAMPLES = {
    DROPS: _lost_reasoning,
    SWALLOWS: _lost_message,
    "doubled BOS": _beginning,
    "unbalanced think tags": _unbalanced,
}
