"""Conversations and documents back from the ids and segments of a written run.

What the template wrote around a message's parts is learned from small probe
conversations. The parts are cut out of the row's text, and the conversation
they give is rendered and encoded again: only if ids and segments come out as
they were has it been recovered. Everything else is a reject that says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retok_dask.completions import check_conversation
from retok_dask.kernel.controls import ControlFinder, control_tokens, document_escapes
from retok_dask.kernel.fitting import Field, Fitting
from retok_dask.kernel.readback import Ambiguous, CallReader, read_tools
from retok_dask.kernel.tooloutput import tool_output
from retok_dask.kernel.wrappers import SLACK, Part, Wrappers, merged
from retok_dask.schema import SOURCE_TOKENS_COLUMN
from retok_dask.types import KIND_NAMES, Conversation, Document, Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.kernel.source import Source
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item, TokenRow

ROLE_OF_KIND = {"system": "system", "user": "user", "tool": "tool"}


class Recoverer:
    """Turns rows of a written run back into conversations or documents.

    Args:
        source: the tokenizer and template that made the rows.
        prompts: whether the rows may be prompts, which end in a generation prompt.
        markers: texts around tool output within answers, where the data set names them.
    """

    def __init__(self, source: Source, *, prompts: bool = False, markers: tuple[str, str] | None = None) -> None:
        self.tokenizer = source.tokenizer
        self.template = source.template
        self._prompts = prompts
        self._markers = markers or ()
        self._mark = tool_output(markers) if markers else None
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
        numbers = sorted({part.message for part in parts if part.message >= 0})
        conversation = Conversation([], None, row.id, kept=row.kept, counts=dict(row.counts))
        conversation.output_markers = self._markers
        fields = self._read(text, parts, numbers, conversation)
        if len(numbers) <= numbers[-1]:
            conversation.counts["messages_not_in_row"] = numbers[-1] + 1 - len(numbers)
        conversation.flags = _flags(row, numbers)
        Fitting(text, fields, lambda: self._rendered(conversation, text).text).fit()
        self._check(conversation, row, segments, text, numbers)
        return conversation

    def _read(self, text: str, parts: list[Part], numbers: list[int], into: Conversation) -> list[Field]:
        """Messages and tools, as far as segments and the template's own text tell them; returns the messages' texts."""
        listed = "".join(text[part.start : part.end] for part in parts if part.kind == "tools")
        into.tools = read_tools(listed) or None
        own = merged([part for part in parts if part.message >= 0])
        fields: list[Field] = []
        blank = self._blank_system(text, parts) if numbers[0] == 1 else None
        if blank is not None:
            into.messages.append({"role": "system", "content": blank})
            numbers.insert(0, 0)
        for number in numbers[len(into.messages) :]:
            mine = [part for part in own if part.message == number]
            into.messages.append(self._message(text, mine, into, fields))
        if listed and not into.tools:
            _refuse("its tools are written in a form from which they cannot be read back")
        return fields

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
        if self._join_tool_output(text, parts) and self._mark is None:
            _refuse(
                "an answer of the row holds tool output; name its tool_output_markers in this data set, as in the run "
                "that wrote it"
            )
        return text, parts

    def _join_tool_output(self, text: str, parts: list[Part]) -> bool:
        """Give tool output within an answer the kind of the text that it stands in, in place; whether there is any."""
        answers = {part.message for part in parts if part.kind in ("header", "reasoning", "content", "stop")}
        closings = tuple(wrap.text for wrap in self._wrappers.after.get(("assistant", "reasoning"), ()) if wrap.text)
        found = False
        for number, part in enumerate(parts):
            if part.kind != "tool" or part.message not in answers:
                continue
            beside = [parts[place] for place in (number - 1, number + 1) if 0 <= place < len(parts)]
            kinds = [one.kind for one in beside if one.message == part.message]
            open_ = "reasoning" in kinds and not (closings and text.endswith(closings, 0, part.start))
            part.kind = "reasoning" if open_ else "content"
            found = True
        return found

    def _blank_system(self, text: str, parts: list[Part]) -> str | None:
        """What a system message says that is blank, and so belongs to no message for a segment; None without one."""
        part = next((part for part in parts if part.kind == "system"), None)
        cut = None if part is None else self._wrappers.cut(text, part, "system")
        return text[cut.start : cut.end] if cut is not None and not text[cut.start : cut.end].strip() else None

    def _message(self, text: str, parts: list[Part], of: Conversation, fields: list[Field]) -> dict[str, Any]:
        """One message; its texts are added to `fields`, and tools that stand within it to the conversation."""
        kinds = {part.kind: part for part in parts}
        role = next((ROLE_OF_KIND[kind] for kind in kinds if kind in ROLE_OF_KIND), None)
        if role is not None:
            message: dict[str, Any] = {"role": role}
            said = self._cut(text, [part for part in parts if part.kind == role], message, "content", fields)
            of.tools = said.pop("tools", of.tools)
            message.update(said)
            if role == "tool" and "tool_call_id" not in message:
                of.counts["call_ids_not_in_row"] = of.counts.get("call_ids_not_in_row", 0) + 1
            return message
        if "other" in kinds:
            _refuse(f"message {parts[0].message} has a role that segments do not tell")
        message = {"role": "assistant", "content": ""}
        for kind, name in (("content", "content"), ("reasoning", "reasoning_content")):
            if kind in kinds:
                self._cut(text, [part for part in parts if part.kind == kind], message, name, fields)
            else:
                fields.append(self._bare(text, parts, message, kind, name))
        if "tool_call" in kinds:
            written = "".join(text[part.start : part.end] for part in parts if part.kind == "tool_call")
            number = parts[0].message
            try:
                message["tool_calls"] = self._calls.read(written, of.tools)
            except Ambiguous as error:
                _refuse(f"a call of message {number}: {error}")
            if not message["tool_calls"]:
                _refuse(f"the calls of message {number} are written in a form from which they cannot be read back")
        return message

    def _cut(
        self, text: str, pieces: list[Part], message: dict[str, Any], name: str, fields: list[Field]
    ) -> dict[str, Any]:
        """Give a message the text that lies in one of the pieces; returns what else the template says around it."""
        found = [cut for piece in pieces if (cut := self._wrappers.cut(text, piece, message["role"])) is not None]
        if not found:
            first = pieces[0]
            shown = text[first.start : first.end][:60]
            _refuse(f"message {first.message}: the template's text around its {first.kind} is not known: {shown!r}")
        cut = next((cut for cut in found if cut.end > cut.start), found[0])
        message[name] = text[cut.start : cut.end]
        fields.append(Field(message, name, cut.start, cut.end))
        return cut.said

    def _bare(self, text: str, parts: list[Part], message: dict[str, Any], kind: str, name: str) -> Field:
        """The place of a text that no segment names: blanks alone are template text to a segment."""
        cuts = [self._wrappers.cut(text, part, "assistant", kind) for part in parts if part.kind == "scaffold"]
        blanks = [text[cut.start : cut.end] for cut in cuts if cut is not None]
        guesses = [blank[shift:] for blank in blanks if blank.isspace() for shift in range(min(len(blank), SLACK + 1))]
        return Field(message, name, parts[0].start, parts[-1].end, bare=True, guesses=guesses)

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
        rendered = self._rendered(conversation, text)
        again = self.tokenizer.encode([rendered if self._mark is None else self._mark(rendered)])
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
    recoverer = Recoverer(source, prompts=dataset.mode == "prompts", markers=dataset.tool_output_markers)
    read_back = recoverer.document if dataset.mode == "text" else recoverer.conversation

    def recover(row: TokenRow) -> Item:
        item = read_back(row)
        if isinstance(item, Conversation):
            check_conversation(item, dataset)
        item.kept[SOURCE_TOKENS_COLUMN] = str(len(row.input_ids))
        return item

    return recover
