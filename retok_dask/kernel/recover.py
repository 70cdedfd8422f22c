"""Conversations and documents back from the ids and segments of a written run.

What the template wrote around a message's parts is learned from small probe
conversations. The parts are cut out of the row's text, and the conversation
they give is rendered and encoded again: only if ids and segments come out as
they were has it been recovered. Everything else is a reject that says why.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retok_dask.kernel.controls import ControlFinder, control_tokens
from retok_dask.kernel.readback import CallReader, json_objects, read_tools
from retok_dask.templates.probes import probes
from retok_dask.types import KIND_NAMES, Conversation, Document, Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from retok_dask.kernel.source import Source
    from retok_dask.templates import ChatTemplate
    from retok_dask.types import TokenRow

Key = tuple[str, str]
"""(role, kind): what a wrapper stands around."""

ROLE_OF_KIND = {"system": "system", "user": "user", "tool": "tool"}
SLACK = 4
"""Characters by which a shared token may move a boundary between two parts."""


@dataclass(slots=True)
class _Part:
    """Where a kind of a message lies in the row's text."""

    message: int
    kind: str
    start: int
    end: int


@dataclass(slots=True)
class Wrappers:
    """Text that the template writes before and after each part, longest first; learned from probes."""

    before: dict[Key, list[str]] = field(default_factory=dict)
    after: dict[Key, list[str]] = field(default_factory=dict)
    between: list[str] = field(default_factory=list)

    @classmethod
    def learn(cls, template: ChatTemplate) -> Wrappers:
        """Render the probes of the templates room and note what stands around their texts."""
        before: dict[Key, set[str]] = defaultdict(set)
        after: dict[Key, set[str]] = defaultdict(set)
        between: set[str] = set()
        for probe in probes():
            try:
                (rendered,) = template.render(Conversation(list(probe.messages), probe.tools))
            except (RecordRejected, ValueError):
                continue  # a template may refuse a probe
            for part in _parts_of_rendering(rendered):
                message = probe.messages[part.message]
                text = rendered.text[part.start : part.end]
                if part.kind == "tool_call":
                    between |= _gaps(text, message)
                    continue
                value = message.get("reasoning_content") if part.kind == "reasoning" else message.get("content")
                if not value or value != value.strip() or value not in text:
                    continue
                key = (message["role"], part.kind)
                at = text.index(value)
                before[key].add(text[:at])
                after[key].add(text[at + len(value) :])
        return cls(_longest_first(before), _longest_first(after), sorted(between, key=len, reverse=True))

    def cut(self, text: str, part: _Part, role: str) -> str | None:
        """The part's own text; None where nothing that is known stands around it."""
        key = (role, part.kind)
        for slack in _shifts():
            start, end = part.start, part.end
            before = next((b for b in self.before.get(key, ()) if text.startswith(b, max(start + slack, 0))), None)
            if before is None:
                continue
            begin = start + slack + len(before)
            for tail in _shifts():
                stop = end + tail
                after = next((a for a in self.after.get(key, ()) if text.endswith(a, begin, stop)), None)
                if after is not None and begin <= stop - len(after):
                    return text[begin : stop - len(after)]
        return None


def _shifts() -> list[int]:
    return sorted(range(-SLACK, SLACK + 1), key=abs)


def _longest_first(found: dict[Key, set[str]]) -> dict[Key, list[str]]:
    return {key: sorted(texts, key=len, reverse=True) for key, texts in found.items()}


def _gaps(text: str, message: dict[str, Any]) -> set[str]:
    """What stands between a probe's function name and the JSON of its arguments."""
    found = set()
    starts = [start for start, _, value in json_objects(text) if "name" not in value]
    for call, start in zip(message.get("tool_calls") or (), starts, strict=False):
        name = call["function"]["name"]
        at = text.rfind(name, 0, start)
        if at >= 0:
            found.add(text[at + len(name) : start])
    return found


def _parts_of_rendering(rendered: Rendered) -> list[_Part]:
    ends = [*rendered.starts[1:], len(rendered.text)]
    spans = zip(rendered.starts, ends, rendered.kinds, rendered.messages, strict=True)
    return _merged([_Part(m, KIND_NAMES[k], a, b) for a, b, k, m in spans if m >= 0])


def _merged(parts: list[_Part]) -> list[_Part]:
    """One part for each kind of a message that lies in one piece; of several pieces the first."""
    out: list[_Part] = []
    seen: dict[tuple[int, str], _Part] = {}
    for part in parts:
        known = seen.get((part.message, part.kind))
        if known is None:
            seen[(part.message, part.kind)] = part
            out.append(part)
        elif known.end == part.start:
            known.end = part.end
    return out


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
        found = self._find.find(text)
        again = self.tokenizer.encode(
            [Rendered(text, [0], [int(Kind.content)], [-1], [(0, len(text))] if found else [])]
        )
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
        own = _merged([part for part in parts if part.message >= 0])
        messages = [self._message(text, [p for p in own if p.message == number], tools) for number in numbers]
        counts = dict(row.counts)
        if len(numbers) <= numbers[-1]:
            counts["messages_not_in_row"] = numbers[-1] + 1 - len(numbers)
        flags = _flags(row, numbers, messages)
        conversation = Conversation(messages, tools, row.id, flags, kept=row.kept, counts=counts)
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

    def _placed(self, row: TokenRow, segments: list[tuple[int, int, str, int]]) -> tuple[str, list[_Part]]:
        """The row's text and where its segments lie in it, in characters."""
        ids = np.asarray(row.input_ids)
        text = self._text(ids)
        data = [self.tokenizer.decode_bytes(ids[start:end]) for start, end, _, _ in segments]
        ends = np.cumsum([len(one) for one in data])
        leads = np.flatnonzero((np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80)
        places = [0, *np.searchsorted(leads, ends).tolist()]
        parts = [_Part(message, kind, places[n], places[n + 1]) for n, (_, _, kind, message) in enumerate(segments)]
        return text, parts

    def _tools(self, text: str, parts: list[_Part]) -> list[dict[str, Any]] | None:
        listed = "".join(text[part.start : part.end] for part in parts if part.kind == "tools")
        if not listed:
            return None
        tools = read_tools(listed)
        if not tools:
            _refuse("its tools are written in a form from which they cannot be read back")
        return tools

    def _message(self, text: str, parts: list[_Part], tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        kinds = {part.kind: part for part in parts}
        role = next((ROLE_OF_KIND[kind] for kind in kinds if kind in ROLE_OF_KIND), None)
        if role is not None:
            return {"role": role, "content": self._cut(text, kinds[role], role)}
        if "other" in kinds:
            _refuse(f"message {parts[0].message} has a role that segments do not tell")
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if "reasoning" in kinds:
            message["reasoning_content"] = self._cut(text, kinds["reasoning"], "assistant")
        if "content" in kinds:
            message["content"] = self._cut(text, kinds["content"], "assistant")
        if "tool_call" in kinds:
            part = kinds["tool_call"]
            message["tool_calls"] = self._calls.read(text[part.start : part.end], tools)
            if not message["tool_calls"]:
                _refuse(
                    f"the calls of message {part.message} are written in a form from which they cannot be read back"
                )
        return message

    def _cut(self, text: str, part: _Part, role: str) -> str:
        found = self._wrappers.cut(text, part, role)
        if found is None:
            shown = text[part.start : part.end][:60]
            _refuse(f"message {part.message}: the template's text around its {part.kind} is not known: {shown!r}")
        return found

    def _check(
        self,
        conversation: Conversation,
        row: TokenRow,
        segments: list[tuple[int, int, str, int]],
        text: str,
        numbers: list[int],
    ) -> None:
        """Render and encode what was recovered: it must give the row again."""
        assert self.template is not None
        rendered = self.template.render(conversation)[0]
        if rendered.text != text and self._prompts:
            rendered = self.template.render_prompt(conversation)
        if rendered.text != text:
            at = next((n for n, (a, b) in enumerate(zip(rendered.text, text, strict=False)) if a != b), len(text))
            _refuse(
                f"what was read back renders to another text at character {at}: {rendered.text[at : at + 40]!r}, not {text[at : at + 40]!r}"
            )
        again = self.tokenizer.encode([rendered])
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


def _flags(row: TokenRow, numbers: list[int], messages: list[dict[str, Any]]) -> list[bool | None]:
    """Flags of the messages that are there; of a row that trains one turn alone, the others train nothing."""
    flags = [row.flags[number] if number < len(row.flags) else None for number in numbers]
    if row.turn >= 0:
        for place, (number, message) in enumerate(zip(numbers, messages, strict=True)):
            if message["role"] == "assistant" and number != row.turn:
                flags[place] = False
    return flags if any(flag is not None for flag in flags) else []


def _refuse(detail: str) -> NoReturn:
    raise RecordRejected(RejectReason.not_recovered, detail)
