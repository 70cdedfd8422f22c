"""From a conversation that is in order to its rendering, by the surest of the quick ways that can be trusted.

A row that takes a known path needs no template; one that is made as usual
needs no search; for others each part is searched for, and where its text
alone is ambiguous, marked in a second render.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retok_dask.templates.build import Builder, Source, leading_system
from retok_dask.templates.controls import ControlTokens, count_in
from retok_dask.templates.markers import MarkControls, joined_tokens
from retok_dask.templates.marks import unmark
from retok_dask.templates.program import MarkFields, MarkInput, Program
from retok_dask.templates.segments import NotProved
from retok_dask.types import Conversation, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from retok_dask.templates.marks import Marks, Runs
    from retok_dask.templates.probes import Message
    from retok_dask.templates.scan import Scan, Tools
    from retok_dask.types import Counts


@dataclass(slots=True)
class Ready:
    """A conversation in order, and where its messages stand in the one that came in."""

    conversation: Conversation
    shift: int
    program: Program
    scan: Scan
    controls: bool


class Rows:
    """Renders conversations that are in order, each character with its kind and message.

    Args:
        controls: finds control tokens in texts.
        control_tokens: what becomes of those that people wrote, see :class:`~retok_dask.recipe.Recipe`.
    """

    def __init__(self, controls: ControlTokens, control_tokens: str) -> None:
        self._controls = controls
        self._control_tokens = control_tokens

    def render(self, ready: Ready, messages: list[Message], *, prompt: bool = False) -> Rendered:
        """The rendering of some first messages of a conversation.

        Raises:
            RecordRejected: the template refuses them, or their spans cannot be proved.
        """
        conversation, program = ready.conversation, ready.program
        tools: Tools = conversation.tools
        counts: Counts = defaultdict(int)
        escape = self._find_controls(messages, tools, counts) if ready.controls else None

        found = self._rendering(ready, messages, counts, escape, prompt=prompt)
        if isinstance(found, Rendered):
            rendered, escapes = found, []
        else:
            if escape is not None:
                program.check_text(found.text, messages, tools, ready.scan, prompt=prompt)
            source = self.source(program, messages, tools, prompt=prompt)
            rendered = self._build(program, found, source, escape, counts)
            escapes = self._controls.clean(found) if found.escapes else []
        if self._control_tokens != "allow":
            escapes += joined_tokens(
                self._controls, program, rendered.text, messages, tools, prompt=prompt, first=escape
            )
        rendered.escapes = _disjoint(escapes) if escapes else escapes
        for more in (conversation.counts, rendered.counts) if counts or conversation.counts else ():
            for name, number in more.items():
                counts[name] += number
        if counts:
            rendered.counts = {name: number for name, number in counts.items() if number}
        rendered.flags = list(conversation.flags[: len(messages) + ready.shift]) if conversation.flags else []
        if ready.shift:
            rendered.messages = [owner + ready.shift if owner >= 0 else owner for owner in rendered.messages]
        return rendered

    def _rendering(
        self, ready: Ready, messages: list[Message], counts: Counts, escape: MarkInput | None, *, prompt: bool
    ) -> Rendered | Runs:
        """A row by a path that it shares with others, or as the template renders it."""
        program, tools, seen = ready.program, ready.conversation.tools, ready.scan
        paths = program.paths
        shape = None if ready.controls or prompt else paths.shape(messages, seen)
        limit = program.setting.limits.size(seen.size)
        if shape is not None and not program.due:
            known = paths.render(shape, messages, limit)
            if known is not None:
                program.rows += 1
                return known

        def read(marked: str, marks: Marks) -> Rendered | Runs:
            return unmark(marked, marks) if escape or prompt else program.usual.read(marked, marks, messages, tools)

        found = program.rendering(messages, tools, counts, read, prompt=prompt, mark=escape, seen=seen)
        if shape is not None and not counts:
            counts["engine_mismatch"] += not paths.learn(shape, messages, limit, tools, found)
        return found

    def _build(
        self, program: Program, runs: Runs, source: Source, escape: MarkInput | None, counts: Counts
    ) -> Rendered:
        """The spans of a row that is not made as usual; what is noticed is added to `counts`."""
        noticed: Counts = defaultdict(int)
        try:
            rendered = Builder(program.parser, runs, source, noticed).build()
        except NotProved as error:
            noticed.clear()
            rendered = self._by_fields(program, runs, source, escape, noticed, error)
        for name, number in noticed.items():
            counts[name] += number
        return rendered

    def source(self, program: Program, messages: list[Message], tools: Tools, *, prompt: bool = False) -> Source:
        """What a rendering is made from."""
        return Source(
            messages=messages,
            tools=tools,
            bos=program.bos,
            token=self._controls.pattern,
            dropped=program.dropped,
            bare=lambda: program.preamble(leading_system(messages)),
            prompt=prompt,
        )

    def _by_fields(
        self,
        program: Program,
        runs: Runs,
        source: Source,
        escape: MarkInput | None,
        counts: Counts,
        error: NotProved,
    ) -> Rendered:
        """A second render with the fields themselves marked, for rows whose text alone is ambiguous."""
        marker = MarkFields(escape)
        marked = program.trace(source.messages, source.tools, counts, prompt=source.prompt, mark=marker)
        if marked.text != runs.text:
            raise RecordRejected(RejectReason.span_not_proved, str(error)) from error
        source.located = {key: place for key, place in marked.fields.items() if 0 <= place[0] <= place[1]}
        counts["located_by_marks"] += 1
        try:
            return Builder(program.parser, runs, source, counts).build()
        except NotProved as still:
            raise RecordRejected(RejectReason.span_not_proved, str(still)) from still

    def _find_controls(self, messages: list[Message], tools: Tools, counts: Counts) -> MarkInput | None:
        outside = count_in(self._controls, messages, tools, counts)
        if not outside or self._control_tokens == "allow":
            return None
        if self._control_tokens == "reject":
            found = ", ".join(name for name in counts if name.startswith("control_tokens_in_"))
            raise RecordRejected(RejectReason.control_tokens_in_text, found)
        return MarkControls(self._controls)


def _disjoint(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for start, end in sorted(set(ranges)):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept
