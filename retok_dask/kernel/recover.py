"""Conversations and documents back from the ids and segments of a written run.

What the template wrote around a message's parts is learned from small probe
conversations. The parts are cut out of the row's text, and the conversation
they give is rendered and encoded again: only if ids and segments come out as
they were has it been recovered. Everything else is a reject that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retok_dask.kernel.controls import ControlFinder, control_tokens, document_escapes
from retok_dask.kernel.readback import CallReader, read_tools
from retok_dask.kernel.wrappers import SLACK, Part, Wrappers, merged, shifts
from retok_dask.schema import SOURCE_TOKENS_COLUMN
from retok_dask.types import KIND_NAMES, Conversation, Document, Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.kernel.source import Source
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item, TokenRow

ROLE_OF_KIND = {"system": "system", "user": "user", "tool": "tool"}


@dataclass(slots=True)
class _Field:
    """Where a message's own text lies in the row's text."""

    number: int
    name: str
    start: int
    end: int
    message: dict[str, Any] = field(default_factory=dict)

    def set(self, text: str, start: int, end: int) -> None:
        """Take another stretch of the text as the field's value."""
        self.start, self.end = start, max(start, end)
        self.message[self.name] = text[start : self.end]


class Recoverer:
    """Turns rows of a written run back into conversations or documents.

    Args:
        source: the tokenizer and template that made the rows.
        prompts: whether the rows may be prompts, which end in a generation prompt.
    """

    def __init__(self, source: Source, *, prompts: bool = False) -> None:
        self.tokenizer = source.tokenizer
        self.template = source.template
        self._prompts = prompts
        self._find = ControlFinder(control_tokens(source.tokenizer))
        self._wrappers = Wrappers.learn(source.template) if source.template is not None else Wrappers()
        self._calls = CallReader(self._wrappers.between)

    # --- documents ---

    def document(self, row: TokenRow) -> Document:
        """The text of a document row.

        Raises:
            RecordRejected: ``not_recovered``.
        """
        segments = self._segments(row)
        if any(kind not in ("bos", "content", "stop") or message >= 0 for _, _, kind, message in segments):
            _refuse("the row is a conversation, no document")
        ids = np.asarray(row.input_ids)
        own = [ids[start:end] for start, end, kind, _ in segments if kind == "content"]
        content = np.concatenate(own) if own else ids[:0]
        text = self._text(content)
        escapes = document_escapes(self._find.find(text), len(text), byte_level=self.tokenizer.byte_level)
        again = self.tokenizer.encode([Rendered(text, [0], [int(Kind.content)], [-1], escapes)])
        if not np.array_equal(again.ids, content):
            _refuse("its text does not encode to its ids again")
        return Document(text, row.id, row.kept, row.counts)

    # --- conversations ---

    def conversation(self, row: TokenRow) -> Conversation:
        """The conversation that a row was rendered from, as far as the row tells.

        Raises:
            RecordRejected: ``not_recovered``.
        """
        if self.template is None:
            _refuse("the run that wrote it had no chat template")
        segments = self._segments(row)
        if all(message < 0 for *_, message in segments):
            _refuse("the row is a document, no conversation")
        text, parts = self._placed(row, segments)
        tools = self._tools(text, parts)
        numbers = sorted({part.message for part in parts if part.message >= 0})
        own = merged([part for part in parts if part.message >= 0])
        fields: list[_Field] = []
        messages = [self._message(text, [p for p in own if p.message == number], tools, fields) for number in numbers]
        for place, number in enumerate(numbers):
            for one in fields:
                if one.number == number:
                    one.message = messages[place]
        counts = dict(row.counts)
        if len(numbers) <= numbers[-1]:
            counts["messages_not_in_row"] = numbers[-1] + 1 - len(numbers)
        flags = _flags(row, numbers)
        conversation = Conversation(messages, tools, row.id, flags, kept=row.kept, counts=counts)
        self._render_again(conversation, text, fields)
        self._check(conversation, row, segments, text, numbers)
        return conversation

    def _segments(self, row: TokenRow) -> list[tuple[int, int, str, int]]:
        if row.part:
            _refuse("the row is only a part of its record: it was cut to a length")
        if not row.segments:
            _refuse("the row has no segments")
        return list(row.segments)

    def _text(self, ids: Any) -> str:
        try:
            return self.tokenizer.decode_bytes(ids).decode()
        except UnicodeDecodeError:
            _refuse("its ids cut a character")

    def _placed(self, row: TokenRow, segments: list[tuple[int, int, str, int]]) -> tuple[str, list[Part]]:
        """The row's text and where its segments lie in it, in characters."""
        ids = np.asarray(row.input_ids)
        text = self._text(ids)
        data = [self.tokenizer.decode_bytes(ids[start:end]) for start, end, _, _ in segments]
        ends = np.cumsum([len(one) for one in data])
        leads = np.flatnonzero((np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80)
        places = [0, *np.searchsorted(leads, ends).tolist()]
        parts = [Part(message, kind, places[n], places[n + 1]) for n, (_, _, kind, message) in enumerate(segments)]
        return text, parts

    def _tools(self, text: str, parts: list[Part]) -> list[dict[str, Any]] | None:
        listed = "".join(text[part.start : part.end] for part in parts if part.kind == "tools")
        if not listed:
            return None
        tools = read_tools(listed)
        if not tools:
            _refuse("its tools are written in a form from which they cannot be read back")
        return tools

    def _message(
        self, text: str, parts: list[Part], tools: list[dict[str, Any]] | None, fields: list[_Field]
    ) -> dict[str, Any]:
        kinds = {part.kind: part for part in parts}
        role = next((ROLE_OF_KIND[kind] for kind in kinds if kind in ROLE_OF_KIND), None)
        if role is not None:
            return {"role": role, "content": self._cut(text, kinds[role], role, "content", fields)}
        if "other" in kinds:
            _refuse(f"message {parts[0].message} has a role that segments do not tell")
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if "reasoning" in kinds:
            message["reasoning_content"] = self._cut(text, kinds["reasoning"], "assistant", "reasoning_content", fields)
        if "content" in kinds:
            message["content"] = self._cut(text, kinds["content"], "assistant", "content", fields)
        if "tool_call" in kinds:
            part = kinds["tool_call"]
            message["tool_calls"] = self._calls.read(text[part.start : part.end], tools)
            if not message["tool_calls"]:
                _refuse(
                    f"the calls of message {part.message} are written in a form from which they cannot be read back"
                )
        return message

    def _cut(self, text: str, part: Part, role: str, name: str, fields: list[_Field]) -> str:
        found = self._wrappers.cut(text, part, role)
        if found is None:
            shown = text[part.start : part.end][:60]
            _refuse(f"message {part.message}: the template's text around its {part.kind} is not known: {shown!r}")
        fields.append(_Field(part.message, name, *found))
        return text[found[0] : found[1]]

    def _render_again(self, conversation: Conversation, text: str, fields: list[_Field]) -> None:
        """Move the edges of fields by the few characters that shared tokens hide, until the text comes out.

        A token that spans two parts is in one of their segments as a whole, so
        a field may have lost characters to its neighbour, or gained some.
        """
        at = self._differs_at(conversation, text)
        while at >= 0:
            at = self._move_one(conversation, text, fields, at)

    def _move_one(self, conversation: Conversation, text: str, fields: list[_Field], at: int) -> int:
        """Move the edge that explains the first difference; returns where the next one is, -1 for none."""
        near = [one for one in fields if min(abs(one.end - at), abs(one.start - at)) <= SLACK]
        for one in sorted(near, key=lambda f: min(abs(f.end - at), abs(f.start - at))):
            start, end = one.start, one.end
            for shift in shifts()[1:]:
                last = abs(end - at) <= abs(start - at)
                one.set(text, start + (0 if last else shift), end + (shift if last else 0))
                following = self._differs_at(conversation, text)
                if following < 0 or following > at:
                    return following
            one.set(text, start, end)
        found = self._rendered(conversation, text).text[at : at + 40]
        detail = f"what was read back renders to another text at character {at}: {found!r}, not {text[at : at + 40]!r}"
        raise RecordRejected(RejectReason.not_recovered, detail)

    def _differs_at(self, conversation: Conversation, text: str) -> int:
        found = self._rendered(conversation, text).text
        if found == text:
            return -1
        return next(
            (n for n, (a, b) in enumerate(zip(found, text, strict=False)) if a != b), min(len(found), len(text))
        )

    def _rendered(self, conversation: Conversation, text: str) -> Rendered:
        assert self.template is not None
        rendered = self.template.render(conversation)[0]
        if rendered.text != text and self._prompts:
            rendered = self.template.render_prompt(conversation)
        return rendered

    def _check(
        self,
        conversation: Conversation,
        row: TokenRow,
        segments: list[tuple[int, int, str, int]],
        text: str,
        numbers: list[int],
    ) -> None:
        """Render and encode what was recovered: it must give the row again."""
        again = self.tokenizer.encode([self._rendered(conversation, text)])
        if not np.array_equal(again.ids, np.asarray(row.input_ids)):
            _refuse("what was read back encodes to other ids")
        places = dict(enumerate(numbers))
        found = [
            (int(start), int(end), KIND_NAMES[kind], places.get(int(message), -1))
            for start, end, kind, message in zip(
                again.seg_start, again.seg_end, again.seg_kind, again.seg_message, strict=True
            )
        ]
        if found != [tuple(segment) for segment in segments]:
            _refuse("what was read back has other segments")


def _flags(row: TokenRow, numbers: list[int]) -> list[bool | None]:
    """Flags of the messages that are there; of a row that trains one turn alone, the others train nothing."""
    flags = [row.flags[number] if number < len(row.flags) else None for number in numbers]
    if row.turn >= 0:  # whoever wrote the others: some policies train users too, and a flag may ask for it
        flags = [flag if number == row.turn else False for number, flag in zip(numbers, flags, strict=True)]
    return flags if any(flag is not None for flag in flags) else []


def _refuse(detail: str) -> NoReturn:
    raise RecordRejected(RejectReason.not_recovered, detail)


def recovery(dataset: DatasetSpec, source: Source | None) -> Callable[[TokenRow], Item] | None:
    """What makes conversations or documents of the rows of a written run, where they are wanted."""
    if dataset.format != "retok" or dataset.mode == "tokens" or source is None:
        return None
    recoverer = Recoverer(source, prompts=dataset.mode == "prompts")
    read_back = recoverer.document if dataset.mode == "text" else recoverer.conversation

    def recover(row: TokenRow) -> Item:
        item = read_back(row)
        item.kept[SOURCE_TOKENS_COLUMN] = str(len(row.input_ids))
        return item

    return recover
