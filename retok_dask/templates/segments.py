"""From message runs to kinds: which characters are header, reasoning, content, call, stop.

The fixed text learned in :class:`~retok_dask.templates.shape.Shape` says where
the message's own fields must lie; each is checked to be there. What cannot be
explained is not guessed: :class:`NotProved`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retok_dask.templates.known import Fields, KnownFrames, variants
from retok_dask.types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retok_dask.templates.known import Places
    from retok_dask.templates.shape import Shape


class NotProved(Exception):
    """A field of an assistant message could not be located beyond doubt."""


class BodyParser:
    """Splits the runs of assistant messages by a learned shape.

    Attributes:
        known: runs that were explained before, to be asked first.
        usual_places: by role, how far from the start of a message's text its content was found last.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._empty = re.compile(shape.empty) if shape.empty else None
        self._tails = [(stop + trailer, len(stop)) for stop, trailer in shape.tails]
        self._content_opens = [lead[end:].strip() for lead, end in shape.openings.get("C", ())]
        self.usual_places: dict[str, int] = {}
        self.known = KnownFrames(tail for tail, _ in self._tails)

    def parse(
        self, text: str, fields: Fields, located: Mapping[str, tuple[int, int]] | None = None
    ) -> list[tuple[int, Kind]]:
        """Kinds of one run of an assistant message, as ascending (start, kind).

        Args:
            text: the run.
            fields: what the message says; parts found here are noted in it.
            located: places of ``R`` and ``C`` known from marks, None if they are to be found.

        Raises:
            NotProved: a part is there more than once, or text is left over that nothing explains.
        """
        if located is not None:
            return self._parse(text, fields, located)[0]
        fresh = not fields.found
        spans, found = self._parse(text, fields, None)
        if fresh:
            self.known.remember(text, spans, found, fields)
        return spans

    def _parse(
        self, text: str, fields: Fields, located: Mapping[str, tuple[int, int]] | None
    ) -> tuple[list[tuple[int, Kind]], Places]:
        """The kinds, and where reasoning and content were found."""
        spans: list[tuple[int, Kind]] = []
        start = self._head_end(text, fields, located)
        if start:
            spans.append((0, Kind.header))
        end, stop_end = self._tail(text, start)
        found = self._body(text, start, end, fields, spans, located)
        if end < stop_end:
            spans.append((end, Kind.stop))
        if stop_end < len(text):
            spans.append((stop_end, Kind.trailer))
        return spans, found

    def _head_end(self, text: str, fields: Fields, located: Mapping[str, tuple[int, int]] | None) -> int:
        """Where what the message's prompt ends with ends: the header, or what closes the message before."""
        header = self.shape.header
        if header and text.startswith(header):
            return len(header)
        fits = [len(head) for head in self.shape.heads if text.startswith(head)]
        if not fits:
            return 0
        first = min((place[0] for place in located.values()), default=len(text)) if located is not None else len(text)
        begins = variants(fields.reasoning) + variants(fields.content) if located is None else ()
        return 0 if any(map(text.startswith, begins)) else next((size for size in fits if size <= first), 0)

    def _tail(self, text: str, start: int) -> tuple[int, int]:
        """Where the stop token begins and ends; both the text's end if there is none."""
        for tail, length in self._tails:
            if text.endswith(tail) and len(text) - len(tail) >= start:
                begin = len(text) - len(tail)
                return begin, begin + length
        return len(text), len(text)

    def _body(
        self,
        text: str,
        start: int,
        end: int,
        fields: Fields,
        spans: list[tuple[int, Kind]],
        located: Mapping[str, tuple[int, int]] | None,
    ) -> Places:
        if located is not None:
            reasoning, content = located.get("R"), located.get("C")
            fields.found |= set(located)
        else:
            reasoning, content = self._find(text, start, end, fields)
        after = reasoning[1] if reasoning else start
        last = content is not None and _stands_before(text, fields.names, after, content, end)
        if content is not None and not last:
            after = content[1]
        called = self._called(text, after, content[0] if content and last else end, fields)
        parts = [(where, kind) for where, kind in ((reasoning, Kind.reasoning), (content, Kind.content)) if where]
        if called and last and content is not None:
            self._calls_first(text, start, reasoning, content, end, spans)
            return reasoning, content
        position = self._lead(text, start, end, parts[0] if parts else None, called, spans)
        if reasoning is not None:
            position = self._after_reasoning(text, reasoning, content, end, called, spans)
        if content is not None:
            spans.append((position, Kind.content))
            position = self._after_content(text, content[1], end, called)
        if position < end and called:
            spans.append((position, Kind.tool_call))
        elif position < end and parts:
            self._check_left(text[position:end], parts[-1][1])
        return reasoning, content

    def _find(
        self, text: str, start: int, end: int, fields: Fields
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Where reasoning and content lie: by the learned text around them, else at the only place there is."""
        reasons = variants(fields.reasoning) if "R" not in fields.found and not fields.reasoning.isspace() else []
        contents = variants(fields.content) if "C" not in fields.found and not fields.content.isspace() else []
        reasoning = self._led(text, reasons, self.shape.openings.get("R", ()), start, end)
        begin = reasoning[1] if reasoning else start
        leads = self.shape.between if reasoning else self.shape.openings.get("C", ())
        content = self._led(text, contents, leads, begin, end)
        if content is not None and not fields.names and not self._closed(text, content[1], end):
            content = None
        if content is None and reasoning is not None and contents and not fields.names:
            alone = self._led(text, contents, self.shape.openings.get("C", ()), start, end)
            if alone is not None and self._closed(text, alone[1], end):  # the reasoning was only how the content begins
                fields.found.add("C")
                return None, alone
        if content is None:
            limit = text.find(fields.names[0], begin, end) if fields.names else end
            limit = end if limit < 0 else limit
            if reasoning is None:
                reasoning = _only_place(text, reasons, start, limit, "reasoning")
                begin = reasoning[1] if reasoning else start
            content = _only_place(text, contents, begin, limit, "content")
            if content is None and fields.names:
                content = self._at_end(text, contents, limit, end)
        fields.found |= {part for part, where in (("R", reasoning), ("C", content)) if where}
        return reasoning, content

    def _at_end(self, text: str, forms: list[str], start: int, end: int) -> tuple[int, int] | None:
        """A content that follows the calls and ends the message."""
        for form in forms:
            for close in ("", *self.shape.content_close):
                at = end - len(close) - len(form)
                if at >= start and text.startswith(form + close, at):
                    return at, at + len(form)
        return None

    @staticmethod
    def _led(
        text: str, forms: list[str], leads: Iterable[tuple[str, int]], start: int, end: int
    ) -> tuple[int, int] | None:
        for lead, _ in leads if forms else ():
            if text.startswith(lead, start):
                found = _first_form(text, forms, start + len(lead), end)
                if found:
                    return found
        return None

    def _calls_first(
        self,
        text: str,
        start: int,
        reasoning: tuple[int, int] | None,
        content: tuple[int, int],
        end: int,
        spans: list[tuple[int, Kind]],
    ) -> None:
        """A body whose content follows its calls, perhaps as a turn of its own."""
        position = self._lead(text, start, content[0], (reasoning, Kind.reasoning) if reasoning else None, True, spans)
        if reasoning is not None:
            position = self._after_reasoning(text, reasoning, None, content[0], True, spans)
        spans.append((position, Kind.tool_call))
        header = self.shape.header
        again = text.rfind(header, position, content[0]) if header else -1
        if again >= 0:
            for tail, length in self._tails:
                if text.startswith(tail, again - len(tail)):
                    spans.append((again - len(tail), Kind.stop))
                    if length < len(tail):
                        spans.append((again - len(tail) + length, Kind.trailer))
                    break
            spans.append((again, Kind.header))
        spans.append((again + len(header) if again >= 0 else content[0], Kind.content))
        self._check_left(text[self._after_content(text, content[1], end, False) : end], Kind.content)

    def _check_left(self, left: str, last: Kind) -> None:
        if left.strip() and not (last is Kind.reasoning and left.startswith(self.shape.reasoning_close.rstrip())):
            msg = f"the template wrote {left[:60]!r} after the message's last part"
            raise NotProved(msg)

    def _closed(self, text: str, position: int, end: int) -> bool:
        left = text[position:end]
        return not left.strip() or left in self.shape.content_close

    def _called(self, text: str, after: int, end: int, fields: Fields) -> bool:
        """Whether the calls stand in a stretch of text; some templates write only the first of several."""
        if not fields.names or "T" in fields.found:
            return False
        position, found = after, 0
        for name in fields.names:
            at = text.find(name, position, end)
            if at >= 0:
                found += 1
                position = at + len(name)
        if not found:
            return False
        fields.found.add("T")
        fields.lost_calls = len(fields.names) - found
        return True

    def _lead(
        self,
        text: str,
        start: int,
        end: int,
        first: tuple[tuple[int, int], Kind] | None,
        called: bool,
        spans: list[tuple[int, Kind]],
    ) -> int:
        """Mark what stands before the first part; returns where the first part's own text begins."""
        shape = self.shape
        limit = first[0][0] if first else end
        position = start
        if shape.prefill and text.startswith(shape.prefill, start) and start + len(shape.prefill) <= limit:
            spans.append((start, Kind.prefill))
            position = start + len(shape.prefill)
        empty = self._empty.match(text, start, limit) if self._empty is not None else None
        if empty is not None and empty.end() > position:
            spans.append((position, Kind.scaffold))
            position = empty.end()
        if first is None and not called and position < end:
            spans.append((position, Kind.scaffold))
            return end
        if first is not None and first[1] is Kind.reasoning:
            spans.append((position, Kind.reasoning))
        return position

    def _after_reasoning(
        self,
        text: str,
        reasoning: tuple[int, int],
        content: tuple[int, int] | None,
        end: int,
        called: bool,
        spans: list[tuple[int, Kind]],
    ) -> int:
        """Where what follows the reasoning and its closing text begins."""
        position = reasoning[1]
        if content is not None:
            gap = text[position : content[0]]
            for known, cut in self.shape.between:
                if gap == known:
                    return position + cut
            return content[0]
        for known, cut in self.shape.between if not called else ():
            left = text[position:end]
            if cut < len(known) and left.startswith(known) and self._closed(text, position + len(known), end):
                spans.append((position + cut, Kind.scaffold))  # the frame of a content that is not there
                return end
        close = self.shape.reasoning_close
        if text.startswith(close, position, end):
            position += len(close)
        elif close.rstrip() and text.startswith(close.rstrip(), position, end):
            position += len(close.rstrip())
        if called:
            return self._empty_content(text, position, end, spans)
        if text[position:end] in self.shape.content_close:
            spans.append((position, Kind.scaffold))
            return end
        return position if text[position:end].strip() else end

    def _empty_content(self, text: str, position: int, end: int, spans: list[tuple[int, Kind]]) -> int:
        for opened in self._content_opens:
            for close in self.shape.content_close:
                block = opened + close.strip()
                if opened and text.startswith(block, position, end):
                    spans.append((position, Kind.scaffold))
                    return position + len(block)
        return position

    def _after_content(self, text: str, position: int, end: int, called: bool) -> int:
        for close in self.shape.content_close:
            if text.startswith(close, position, end) and (close.strip() or not called):
                return position + len(close)
        left = text[position:end]
        if not called and not left.strip():
            return end
        return position


def _stands_before(text: str, names: list[str], start: int, content: tuple[int, int], end: int) -> bool:
    """Whether the calls stand before the content: their first name does, and does not stand after it."""
    return bool(names) and text.find(names[0], start, content[0]) >= 0 and text.find(names[0], content[1], end) < 0


def _first_form(text: str, forms: Iterable[str], position: int, end: int) -> tuple[int, int] | None:
    for form in forms:
        if text.startswith(form, position, end):
            return position, position + len(form)
    return None


def _only_place(text: str, forms: list[str], start: int, end: int, what: str) -> tuple[int, int] | None:
    for form in forms:
        at = text.find(form, start, end)
        if at >= 0:
            if text.find(form, at + 1, end) >= 0:
                msg = f"the {what} {form[:60]!r} stands at more than one place of its message"
                raise NotProved(msg)
            return at, at + len(form)
    return None
