"""What a template is given to see, exactly as transformers gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.templates.marks import Marks

Message = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def template_messages(messages: list[Message], marks: Marks | None = None) -> list[Message]:
    """Messages as the template sees them: no nulls, reasoning under each name, and their marks if asked.

    A message's null keys are left out and its reasoning is put under
    ``thinking`` and ``reasoning_content``, because transformers does so.
    """
    shown = [_shown(message) for message in messages]
    if marks is not None:
        for number, mark in enumerate(marks.messages(len(shown))):
            message = shown[number]
            if message is messages[number]:  # the record's own
                shown[number] = {**message, marks.begin: mark}
            else:
                message[marks.begin] = mark
    return shown


def _shown(message: Message) -> Message:
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if len(message) > 2:
        for name in REASONING_FIELDS:
            if name in message:
                reasoning = message[name]
                return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def text_parts(messages: list[Message]) -> list[Message]:
    """The same messages with each content as a list of one text part, for templates that want lists."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def template_context(
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    generation_prompt: bool = False,
) -> dict[str, Any]:
    """All variables of one render."""
    return {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": generation_prompt,
        **variables,
    }
