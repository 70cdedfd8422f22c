"""Rows that are made as usual: a head seen before, and messages with known texts around their parts.

Such a row needs no search: its marked rendering is walked through once, each
message's own text is compared with what stands there, and its kinds are those
that were proved for the same frame before. Whatever is not as usual is left
to :class:`~retok_dask.templates.build.Builder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retok_dask.templates.build import ROLE_KINDS, core_of, leading_system
from retok_dask.templates.head import Head, head_spans
from retok_dask.templates.known import said
from retok_dask.templates.marks import BACK, NO_MESSAGE, REMEMBER, unmark
from retok_dask.types import Kind, Rendered

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from retok_dask.templates.marks import Marks
    from retok_dask.templates.segments import BodyParser

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None

_OTHER = int(Kind.other)
_SILENT = frozenset((BACK, NO_MESSAGE, REMEMBER))
_HEADS, _LONGEST_HEAD = 256, 1 << 16
"""How many heads are remembered, and of how many characters."""


@dataclass(frozen=True, slots=True)
class _KnownHead:
    """A head without its marks, and its spans."""

    text: str
    starts: list[int]
    kinds: list[int]
    owners: list[int]


class UsualRows:
    """Reads the marked renderings of one template.

    Args:
        parser: what is known of its assistant messages.
        bos: text of the BOS token, or empty.
        token: matches an added token.
        bare: gives what stands before a conversation without tools, for a leading system message.
    """

    def __init__(
        self, parser: BodyParser, bos: str, token: re.Pattern[str], bare: Callable[[Message | None], str]
    ) -> None:
        self._bare = bare
        self._parser = parser
        self._bos = bos
        self._token = token
        self._heads: dict[tuple[str, str | None, bool], _KnownHead | None] = {}

    def read(self, marked: str, marks: Marks, messages: list[Message], tools: Tools) -> Rendered | None:
        """The spans of a rendering, or None if anything in it is not as usual.

        Args:
            marked: the rendering with its marks.
            marks: their characters.
            messages: as normalised.
            tools: function schemas or None.
        """
        system = leading_system(messages)
        begins = 0 if system is None else 1
        pieces = marked.split(marks.begin)
        first = _first(pieces, marks.end, begins)
        if first < 0 or begins == len(messages):
            return None
        header = self._parser.shape.header
        if messages[begins]["role"] == "assistant" and not pieces[first].partition(marks.end)[2].startswith(header):
            return None  # some templates print their default system text there
        head = self._head(marks.begin.join(pieces[:first]), marks, system, tools)
        if head is None:
            return None
        rendered = Rendered("", [*head.starts], [*head.kinds], [*head.owners])
        texts = self._read_messages(pieces[first:], marks.end, messages, begins, len(head.text), rendered)
        if texts is None:
            return None
        rendered.text = head.text + "".join(texts)
        return rendered

    def _read_messages(
        self, pieces: list[str], end: str, messages: list[Message], owner: int, position: int, rendered: Rendered
    ) -> list[str] | None:
        """Add the spans of all messages from `owner` on; the text of each, or None if one is not as usual."""
        texts: list[str] = []
        places, marker_stops = self._parser.usual_places, self._parser.shape.marker_stops
        ended_by_marker = False
        for piece in pieces:
            opening = f"{owner}{end}"
            run = piece[len(opening) :]
            if not run or not piece.startswith(opening):
                payload, _, text = piece.partition(end)
                if text or not (payload in _SILENT or payload.isdigit()):
                    return None
                continue
            if owner >= len(messages):
                return None
            message, start = messages[owner], position
            role = message["role"]
            if ended_by_marker:
                start += self._marker_stop(run, owner - 1, position, rendered)
                if start > position and (role == "assistant" or start == position + len(run)):
                    return None
            if role == "assistant":
                if not self._read_assistant(run, message, owner, position, rendered):
                    return None
                ended_by_marker = marker_stops
            elif run.startswith(core_of(message), places.get(role, 0)):
                rendered.starts.append(start)
                rendered.kinds.append(ROLE_KINDS.get(role, _OTHER))
                rendered.messages.append(owner)
                ended_by_marker = False
            else:
                return None
            texts.append(run)
            position += len(run)
            owner += 1
        return texts if owner == len(messages) else None

    def _read_assistant(self, run: str, message: Message, owner: int, position: int, rendered: Rendered) -> bool:
        reasoning, content, names = said(message)
        fit = self._parser.known.fit(run, reasoning, content, names, position)
        if fit is None:
            return False
        if reasoning:
            rendered.counts["reasoning_chars"] = rendered.counts.get("reasoning_chars", 0) + len(reasoning)
        starts, kinds = fit
        rendered.starts += starts
        rendered.kinds += kinds
        rendered.messages += [owner] * len(kinds)
        return True

    def _marker_stop(self, run: str, owner: int, position: int, rendered: Rendered) -> int:
        """Length of the next role's marker, which ends a turn where the template writes no other stop."""
        stop = self._token.match(run)
        if stop is None:
            return 0
        if rendered.kinds[-1] != Kind.stop:
            rendered.starts.append(position)
            rendered.kinds.append(int(Kind.stop))
            rendered.messages.append(owner)
        return stop.end()

    def _head(self, marked: str, marks: Marks, system: Message | None, tools: Tools) -> _KnownHead | None:
        key = (marked, None if system is None else core_of(system), bool(tools))
        if key in self._heads:
            return self._heads[key]
        head = self._look(marked, marks, system, tools)
        if len(marked) <= _LONGEST_HEAD:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[key] = head
        return head

    def _look(self, marked: str, marks: Marks, system: Message | None, tools: Tools) -> _KnownHead | None:
        """A head that was not seen before; None if there is more to say of it than its spans."""
        runs = unmark(marked, marks)
        text, bos, core = runs.text, self._bos, "" if system is None else core_of(system)
        if core not in text or runs.generated or runs.escapes or runs.fields:
            return None
        start = len(bos) if bos and text.startswith(bos) else 0
        if start and text.startswith(bos, start):
            return None
        spans = {0: (Kind.bos, -1)} if start else {}
        if start < len(text):
            head = Head(text, start, core, 0 if system is not None and 0 in runs.owners else -1)
            bare = self._bare(system) if tools else None
            spans |= {at: (kind, owner) for at, kind, owner in head_spans(head, bare)}
        kinds, owners = [int(kind) for kind, _ in spans.values()], [owner for _, owner in spans.values()]
        return _KnownHead(text, [*spans], kinds, owners)


def _first(pieces: list[str], end: str, begins: int) -> int:
    """Which piece is the first text of the conversation proper; -1 if there is none."""
    for number, piece in enumerate(pieces):
        payload, _, run = piece.partition(end)
        if run and payload.isdigit() and not (begins and payload == "0"):
            return number
    return -1
