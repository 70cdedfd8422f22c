"""From the runs of a rendering to a :class:`~retok_dask.types.Rendered`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retok_dask.templates.head import Head, head_spans
from retok_dask.templates.known import Fields, said
from retok_dask.templates.segments import BodyParser, NotProved
from retok_dask.templates.tags import keep_to_tags
from retok_dask.types import Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from retok_dask.templates.marks import Runs
    from retok_dask.types import Counts

Message = dict[str, Any]

ROLE_KINDS = {
    "system": int(Kind.system),
    "developer": int(Kind.system),
    "user": int(Kind.user),
    "tool": int(Kind.tool),
    "function": int(Kind.tool),
}


@dataclass(slots=True)
class Source:
    """What a rendering was made from, and what is known of its template.

    Attributes:
        messages: as normalised.
        tools: function schemas or None.
        bos: text of the BOS token, or empty.
        token: matches an added token.
        dropped: parts that the template is known to leave out: ``T`` of any
            message, ``C`` beside calls.
        bare: gives what stands before the first user message without tools.
        located: places of fields by message and part, known from marks; None if they are to be found.
        prompt: whether the generation prompt was asked for.
        keep_to_tags: whether nothing outside ``{% generation %}`` tags is trained.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    bos: str
    token: re.Pattern[str]
    dropped: frozenset[str]
    bare: Callable[[], str]
    located: dict[tuple[int, str], tuple[int, int]] | None = None
    prompt: bool = False
    keep_to_tags: bool = True


class Builder:
    """Builds the spans of one rendering.

    Args:
        parser: for the runs of assistant messages.
        runs: the rendering.
        source: what it was made from.
        counts: what is noticed is added here.
    """

    def __init__(self, parser: BodyParser, runs: Runs, source: Source, counts: Counts) -> None:
        self.parser = parser
        self.runs = runs
        self.source = source
        self.counts = counts
        self.starts: list[int] = []
        self.kinds: list[int] = []
        self.owners: list[int] = []
        self._floor = 0
        self._length = len(runs.text)
        self._roles = [message["role"] for message in source.messages]
        self._fields: dict[int, Fields] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._only: dict[int, str] = {}
        self._proved: set[int] = set()

    def build(self) -> Rendered:
        """The spans.

        Raises:
            NotProved: what an assistant message says could not be located.
            RecordRejected: a message does not come out at all.
        """
        text, owners = self.runs.text, self.runs.owners
        begin = self._preamble()
        ends = [*self.runs.starts[1:], len(text)]
        last_turn = -1
        marker_stops = self.parser.shape.marker_stops
        for start, end, owner, run in zip(self.runs.starts, ends, owners, self.runs.texts, strict=True):
            if end <= begin:
                self._see(owner, start, run)
                continue
            if last_turn >= 0 and owner != last_turn:
                self._marker_stop(start, end, last_turn)
                last_turn = -1
            if start < begin or start < self._floor or not self._known_run(start, run, owner):
                self._run(max(start, begin), run if start >= begin else run[begin - start :], owner)
            if marker_stops and self._is_assistant(owner):
                last_turn = owner
        if self.source.prompt:
            self._generation_prompt()
        self._check()
        rendered = Rendered(text, self.starts, self.kinds, self.owners)
        if self.runs.generated and self.source.keep_to_tags:
            keep_to_tags(rendered, self.runs.generated, self.counts)
        return rendered

    def _is_assistant(self, owner: int) -> bool:
        return owner >= 0 and self._roles[owner] == "assistant"

    def _fields_of(self, owner: int) -> Fields:
        """What an assistant message says, made when it is first asked for."""
        fields = self._fields.get(owner)
        if fields is None:
            fields = self._fields[owner] = Fields.of(self.source.messages[owner])
            if owner in self._proved:
                fields.found |= {"R", "C", "T"}
        return fields

    def _known_run(self, start: int, run: str, owner: int) -> bool:
        """Spans of a run that is the whole of its message as usual; False leaves it to those who look closer."""
        if owner < 0 or owner in self._seen or self.source.located is not None:
            return False
        message, role = self.source.messages[owner], self._roles[owner]
        if role == "assistant":
            reasoning, content, names = said(message)
            fit = self.parser.known.fit(run, reasoning, content, names, start)
            if fit is None:
                return False
            starts, kinds = fit
            if reasoning:
                self.counts["reasoning_chars"] += len(reasoning)
            self.starts += starts
            self.kinds += kinds
            self.owners += [owner] * len(kinds)
        else:
            if not run.startswith(core_of(message), self.parser.usual_places.get(role, 0)):
                return False
            self.starts.append(start)
            self.kinds.append(int(ROLE_KINDS.get(role, Kind.other)))
            self.owners.append(owner)
        self._seen[owner] = (start, start + len(run))
        self._proved.add(owner)
        return True

    def _add(self, start: int, kind: int, owner: int) -> None:
        start = max(start, self._floor)
        if start >= self._length:
            return
        starts = self.starts
        if not starts or starts[-1] < start:
            if starts and self.kinds[-1] == kind and self.owners[-1] == owner:
                return
            starts.append(start)
            self.kinds.append(int(kind))
            self.owners.append(owner)
        else:
            starts[-1], self.kinds[-1], self.owners[-1] = start, int(kind), owner

    def _see(self, owner: int, start: int, run: str) -> None:
        before = self._seen.get(owner)
        self._seen[owner] = (before[0] if before else start, start + len(run))
        if before:
            self._only.pop(owner, None)
        else:
            self._only[owner] = run

    def _run(self, start: int, run: str, owner: int) -> None:
        if self._is_assistant(owner):
            self._assistant(start, run, owner)
        elif owner < 0:
            self._add(start, Kind.other, -1)
        else:
            self._add(start, ROLE_KINDS.get(self.source.messages[owner]["role"], Kind.other), owner)
        self._see(owner, start, run)

    def _preamble(self) -> int:
        """Spans of what stands before the conversation proper; returns where that ends."""
        text, messages = self.runs.text, self.source.messages
        leads = leading_system(messages) is not None
        end = len(text)
        for start, owner in zip(self.runs.starts, self.runs.owners, strict=True):
            if owner > 0 or (owner == 0 and not leads):
                end = start
                break
        if end < len(text) and self._is_assistant(self.runs.owners[self.runs.starts.index(end)]):
            # some templates print their default system text within the first message of the loop
            header = self.parser.shape.header
            at = text.find(header, end) if header and not text.startswith(header, end) else -1
            end = at if at >= 0 and not any(start < at for start in self.runs.starts if start > end) else end
        bos = self.source.bos
        start = len(bos) if bos and text.startswith(bos) else 0
        if start:
            self._add(0, Kind.bos, -1)
            self.counts["doubled_bos"] += text.startswith(bos, start)
        if start >= end:
            return start
        owner = 0 if leads and 0 in self.runs.owners else -1
        head = Head(text[:end], start, core_of(messages[0]) if leads else "", owner)
        for at, kind, of in head_spans(head, self.source.bare() if self.source.tools else None):
            self._add(at, kind, of)
        return end

    def _assistant(self, start: int, run: str, owner: int) -> None:
        fields = self._fields_of(owner)
        before = len(fields.found)
        located = None
        if self.source.located is not None:
            located = {
                part: (place[0] - start, place[1] - start)
                for (message, part), place in self.source.located.items()
                if message == owner and start <= place[0] and place[1] <= start + len(run)
            }
        spans = self.parser.parse(run, fields, located)
        if owner in self._seen and len(fields.found) == before:
            return  # a template that looks back at an earlier message; its text belongs where it stands
        for position, kind in spans:
            self._add(start + position, kind, owner)

    def _marker_stop(self, start: int, end: int, owner: int) -> None:
        match = self.source.token.match(self.runs.text, start, end)
        ended = bool(self.kinds) and self.kinds[-1] in (Kind.stop, Kind.trailer)
        if match is not None and match.end() > match.start() and not ended:
            self._add(start, Kind.stop, owner)
            self._floor = match.end()

    def _generation_prompt(self) -> None:
        shape = self.parser.shape
        prompt = shape.generation_prompt
        if not prompt or not self.runs.text.endswith(prompt):
            self.counts["generation_prompt_differs"] += bool(prompt)
            return
        start = len(self.runs.text) - len(prompt)
        if shape.header:
            self._add(start, Kind.header, -1)
        if shape.prefill:
            self._add(start + len(shape.header), Kind.prefill, -1)

    def _check(self) -> None:
        for number, message in enumerate(self.source.messages):
            if number in self._proved:
                continue
            if self._roles[number] == "assistant":
                self._check_assistant(number)
            elif content := core_of(message):
                self._check_content(number, message["role"], content)

    def _check_content(self, number: int, role: str, content: str) -> None:
        text, where = self.runs.text, self._seen.get(number)
        if where is not None:
            run = self._only.get(number) or text[slice(*where)]
            # the usual place first: a search prepares for the whole length of what it looks for
            if run.startswith(content, self.parser.usual_places.get(role, 0)):
                return
            at = run.find(content)
            if at >= 0:
                self.parser.usual_places[role] = at
                return
        if text.find(content) >= 0 and role in ("system", "developer"):
            return
        if where is None:
            self.counts["message_not_rendered"] += 1
            self.counts[f"message_not_rendered_{role}"] += 1
        elif text.find(json.dumps(content, ensure_ascii=False)[1:-1], *where) < 0:
            self.counts["text_changed"] += 1

    def _check_assistant(self, number: int) -> None:
        fields, dropped = self._fields_of(number), self.source.dropped
        if fields.reasoning:
            self.counts["reasoning_chars"] += len(fields.reasoning)
        missing = fields.missing()
        if not missing and not fields.lost_calls:
            return
        if "R" in missing:
            self.counts["reasoning_dropped"] += 1
            self.counts["reasoning_dropped_chars"] += len(fields.reasoning)
        if "C" in missing:
            if not (fields.names and "C" in dropped):
                detail = f"the content of message {number} (assistant) does not come out where the template puts it"
                raise RecordRejected(RejectReason.message_not_rendered, detail)
            self.counts["content_dropped"] += 1
        lost = len(fields.names) if "T" in missing else fields.lost_calls
        if lost:
            if "T" not in dropped:
                detail = f"a tool call of message {number} does not come out as the template writes them"
                raise NotProved(detail)
            self.counts["tool_call_dropped"] += lost


def core_of(message: Message) -> str:
    """A message's content without its outer white space; empty where it is no text."""
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def leading_system(messages: list[Message]) -> Message | None:
    """The system message that a conversation begins with."""
    return messages[0] if messages[0]["role"] in ("system", "developer") else None
