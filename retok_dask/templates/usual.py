"""Rows that are made as usual: a head seen before, and messages with known texts around their parts.

Such a row needs no search: its marked rendering is walked through once, each
message's own text is compared with what stands there, and its kinds are those
that were proved for the same frame before. Whatever is not as usual is left
to :class:`~retok_dask.templates.build.Builder`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from retok_dask.templates.build import ROLE_KINDS, core_of, leading_system
from retok_dask.templates.head import Head, head_spans
from retok_dask.templates.known import said
from retok_dask.templates.marks import BACK, NO_MESSAGE, REMEMBER, unmark
from retok_dask.templates.tags import keep_to_tags
from retok_dask.types import Kind, Rendered

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from retok_dask.templates.marks import Marks, Runs
    from retok_dask.templates.segments import BodyParser
    from retok_dask.types import Counts

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None

_OTHER = int(Kind.other)
_ENDED = frozenset((Kind.stop, Kind.trailer))
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


_AFTER: Message = {"role": ""}
"""Stands for what a template prints behind all messages."""

_UNSEEN = _KnownHead("", [], [], [])


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

    def read(self, marked: str, marks: Marks, messages: list[Message], tools: Tools) -> Rendered | Runs:
        """The spans of a rendering, or its runs if anything in it is not as usual.

        Args:
            marked: the rendering with its marks.
            marks: their characters.
            messages: as normalised.
            tools: function schemas or None.
        """
        system = leading_system(messages)
        begins = 0 if system is None else 1
        if begins == len(messages):
            return unmark(marked, marks)
        head, *pieces = marked.split(marks.begin)
        first, says, runs = _texts_by_mark(pieces, marks.end, begins)
        if says == _numbers(begins, len(messages)):
            row = self._read(marks.begin.join((head, *pieces[:first])), runs, marks, messages, tools)
            return row or unmark(marked, marks)
        found = unmark(marked, marks)
        first = next((n for n, owner in enumerate(found.owners) if owner >= begins), 0)
        if found.escapes or found.fields or not _in_order(found.owners[first:], begins, len(messages)):
            return found
        before = "".join(
            f"{marks.make(str(n)) if n >= 0 else ''}{text}"
            for n, text in zip(found.owners[:first], found.texts, strict=False)
        )
        row = self._read(before, found.texts[first:], marks, messages, tools)
        if row is not None and found.generated:
            counts: Counts = defaultdict(int)
            keep_to_tags(row, found.generated, counts)
            row.counts |= counts
        return row or found

    def _read(self, head: str, runs: list[str], marks: Marks, messages: list[Message], tools: Tools) -> Rendered | None:
        """The spans of a rendering that is cut into its head, a text for each message, and what may follow them."""
        system = leading_system(messages)
        begins = 0 if system is None else 1
        if messages[begins]["role"] == "assistant" and not runs[0].startswith(self._parser.shape.header):
            return None  # some templates print their default system text there
        known = self._head(head, marks, system, tools)
        if known is None:
            return None
        rendered = Rendered(known.text, [*known.starts], [*known.kinds], [*known.owners])
        if self._bos and runs[0].startswith(self._bos) and not self._take_bos(runs, rendered):
            return None
        if not self._read_messages(runs, messages, begins, len(rendered.text), rendered):
            return None
        rendered.text += "".join(runs)
        return rendered

    def _take_bos(self, runs: list[str], rendered: Rendered) -> bool:
        """Take the BOS token off the first message, with which some templates print it; False if that is not all."""
        runs[0] = runs[0][len(self._bos) :]
        if rendered.text or runs[0].startswith(self._bos):
            return False
        rendered.text, rendered.starts, rendered.kinds, rendered.messages = self._bos, [0], [int(Kind.bos)], [-1]
        return True

    def _read_messages(
        self, runs: list[str], messages: list[Message], begins: int, position: int, rendered: Rendered
    ) -> bool:
        """Add the spans of the messages from `begins` on; False if one is not as usual."""
        starts, kinds, owners = rendered.starts, rendered.kinds, rendered.messages
        places, fit, marker_stops = self._parser.usual_places, self._parser.known.fit, self._parser.shape.marker_stops
        reasoned, ended_by_marker = 0, False
        for owner, run in enumerate(runs, begins):
            start = position
            message = messages[owner] if owner < len(messages) else _AFTER
            role = message["role"]
            if ended_by_marker:
                start += self._marker_stop(run, owner - 1, position, rendered)
            if message is _AFTER:
                if start < position + len(run):
                    starts.append(start)
                    kinds.append(_OTHER)
                    owners.append(-1)
                break
            if start > position and (role == "assistant" or start == position + len(run)):
                return False
            if role == "assistant":
                reasoning, content, names = said(message)
                found = fit(run, reasoning, content, names, position)
                if found is None:
                    return False
                starts += found[0]
                kinds += found[1]
                owners += [owner] * len(found[1])
                reasoned += len(reasoning)
            elif run.startswith(core := core_of(message), places.get(role, 0)) or core in run:
                starts.append(start)
                kinds.append(ROLE_KINDS.get(role, _OTHER))
                owners.append(owner)
            else:
                return False
            ended_by_marker = marker_stops and role == "assistant" and kinds[-1] not in _ENDED
            position += len(run)
        if reasoned:
            rendered.counts["reasoning_chars"] = reasoned
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
        head = self._heads.get(key, _UNSEEN)
        if head is not _UNSEEN:
            return head
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


def _texts_by_mark(pieces: list[str], end: str, begins: int) -> tuple[int, list[str], list[str]]:
    """The conversation proper in a rendering that is split at its marks.

    Args:
        pieces: what follows each mark's first character: its payload, `end`, text.
        end: a mark's last character.
        begins: the first message that belongs to it.

    Returns:
        Its first piece; and of all pieces with text from there on, what the
        mark says and the text. A mark without text counts where it says more
        than whose text would follow.
    """
    first = len(pieces)
    says: list[str] = []
    texts: list[str] = []
    for number, piece in enumerate(pieces):
        payload, _, text = piece.partition(end)
        if not text:
            if texts and not (payload in _SILENT or payload.isdigit()):
                says.append(payload)
        elif texts or (payload.isdigit() and not (begins and payload == "0")):
            if not texts:
                first = number
            says.append(payload)
            texts.append(text)
    return first, says, texts


def _in_order(owners: list[int], first: int, end: int) -> bool:
    """Whether each message has one run, in order, and at most one is behind them that is no message's."""
    return (owners[:-1] if owners[-1:] == [-1] else owners) == [*range(first, end)]


@lru_cache(maxsize=256)
def _numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]
