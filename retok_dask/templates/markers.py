"""The template's own markers inside messages: escaped in what people wrote, parsed or refused in answers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from retok_dask.templates.controls import texts_of
from retok_dask.templates.normalize import CLOSE_THINK, OPEN_THINK
from retok_dask.templates.program import MarkFields, MarkInput
from retok_dask.types import Conversation, RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.templates.controls import ControlTokens
    from retok_dask.templates.marks import Marks
    from retok_dask.templates.program import Program
    from retok_dask.templates.scan import Tools
    from retok_dask.templates.shape import Shape

Message = dict[str, Any]

HARMLESS = frozenset({OPEN_THINK, CLOSE_THINK})
"""Tags that may stand in the middle of an answer: normalizing has moved those that open it."""


class MarkControls(MarkInput):
    """Marks control-token text in all messages but the assistant's, and in tools."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls

    def __call__(self, messages: list[Message], tools: Tools, marks: Marks) -> tuple[list[Message], Tools]:
        """See :class:`~retok_dask.templates.program.MarkInput`."""
        marked = [
            message
            if message["role"] == "assistant"
            else {**self._controls.mark(message, marks), "role": message["role"]}
            for message in messages
        ]
        return marked, self._controls.mark(tools, marks) if tools is not None else None


def check_markers(conversation: Conversation, controls: ControlTokens, shape: Shape, *, parse: bool) -> None:
    """Parse or refuse assistant messages that hold the template's own markers, but for those around tool output.

    Raises:
        RecordRejected: ``control_markers_in_content``.
    """
    for number, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        found = {token for text in texts_of(message) for token in controls.find_own(text)}
        found.difference_update(conversation.output_markers)
        if not found:
            continue
        if found <= HARMLESS:
            conversation.counts["think_tags_in_text"] = conversation.counts.get("think_tags_in_text", 0) + 1
            continue
        parts = parsed(message.get("content") or "", shape) if parse else None
        if parts is None or message.get("reasoning_content"):
            shown = ", ".join(sorted(found - HARMLESS)[:5])
            detail = f"message {number} (assistant) holds the template's own markers {shown}"
            raise RecordRejected(RejectReason.control_markers_in_content, detail)
        # a message may be the caller's own object
        conversation.messages[number] = message | {"reasoning_content": parts[0], "content": parts[1]}
        conversation.counts["control_markers_parsed"] = conversation.counts.get("control_markers_parsed", 0) + 1
        if any(controls.find_own(text) for text in parts):
            raise RecordRejected(RejectReason.control_markers_in_content, f"message {number} holds nested markers")


def joined_tokens(
    controls: ControlTokens,
    program: Program,
    text: str,
    messages: list[Message],
    tools: Tools,
    *,
    prompt: bool,
    first: MarkInput | None,
) -> list[tuple[int, int]]:
    """Control tokens that a content forms only together with the template's text beside it.

    A text that is itself a piece of a token stands in the template's own tokens
    too; so where one may be formed, the row is rendered again to see where its contents lie.

    Raises:
        RecordRejected: ``span_not_proved``: that cannot be seen.
    """
    suspects = [
        number
        for number, message in enumerate(messages)
        if message["role"] != "assistant"
        and isinstance(content := message.get("content"), str)
        and controls.may_join(content)
        and _seams(controls, text, content.strip())
    ]
    if not suspects:
        return []
    marked = program.trace(messages, tools, defaultdict(int), prompt=prompt, mark=MarkFields(first, suspects))
    if marked.text != text:
        detail = f"where the content of message {suspects[0]} lies, which begins or ends as a control token does"
        raise RecordRejected(RejectReason.span_not_proved, detail)
    return [span for place in marked.fields.values() for span in controls.joined(text, [*place])]


def _seams(controls: ControlTokens, text: str, content: str) -> bool:
    """Whether a control token lies across an edge of a content, wherever its text stands."""
    at = text.find(content) if content else -1
    while at >= 0:
        if controls.joined(text, [at, at + len(content)]):
            return True
        at = text.find(content, at + 1)
    return False


def parsed(content: str, shape: Shape) -> tuple[str, str] | None:
    """Reasoning and content of a raw model output, by the template's own text around them; None if it is another."""
    body = content.removeprefix(shape.header)
    for stop, trailer in shape.tails:
        if body.endswith((stop + trailer, stop)):
            body = body.removesuffix(trailer).removesuffix(stop)
            break
    for lead, _ in shape.openings.get("R", ()):
        if lead and body.startswith(lead):
            for gap, _ in shape.between:
                reasoning, found, answer = body[len(lead) :].partition(gap)
                if found:
                    return reasoning, answer
    for lead, _ in shape.openings.get("C", ()):
        if lead and body.startswith(lead):
            return "", body[len(lead) :]
    return None
