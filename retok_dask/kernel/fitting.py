"""The last few characters between what was read back from a row and what the row says.

A token that spans two parts is in one of their segments as a whole, so a field may have lost characters to its
neighbour, or gained some. A text of blanks alone stands in the template's own text. Whatever is tried is kept
only where the rendering then goes along with the row's text for longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.kernel.wrappers import SLACK, shifts
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ALIKE = 12
"""So many characters alike behind a difference say that it is explained; with fewer, something else may explain more."""


@dataclass(slots=True)
class Field:
    """Where a message's own text lies in the row's text.

    Attributes:
        message, name: the message, and under which name it has the text.
        start, end: where it lies; of a text that is not there, where its message lies.
        bare: no segment says that the text is there; blanks alone are the template's, for a segment.
        guesses: blanks that it may be then.
    """

    message: dict[str, Any]
    name: str
    start: int
    end: int
    bare: bool = False
    guesses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Change:
    """Other edges and another text for a field; None for no text."""

    field: Field
    start: int
    end: int
    value: str | None

    def make(self) -> _Change:
        """Make the change; returns the one that undoes it."""
        one = self.field
        undo = _Change(one, one.start, one.end, one.message.get(one.name))
        one.start, one.end = self.start, self.end
        if self.value is None:
            one.message.pop(one.name, None)
        else:
            one.message[one.name] = self.value
        return undo


class Fitting:
    """Changes fields of a conversation until its rendering is the row's text.

    Args:
        text: the row's text.
        fields: the texts of its messages.
        render: renders the conversation as it is now.
    """

    def __init__(self, text: str, fields: list[Field], render: Callable[[], str]) -> None:
        self._text, self._fields, self._render = text, fields, render

    def fit(self) -> None:
        """Change fields until nothing differs.

        Raises:
            RecordRejected: ``not_recovered``, with the first place that is not explained.
        """
        found = self._render()
        at = self._differs_at(found)
        while at >= 0:
            found, at = self._mend(found, at)

    def _mend(self, found: str, at: int) -> tuple[str, int]:
        """Make the change that explains the first difference; returns the rendering then, and where the next one is."""
        best, furthest = None, at
        for change in self._changes(found, at):
            undo = change.make()
            rendered = self._render()
            following = self._differs_at(rendered)
            if following < 0 or following >= at + _ALIKE:
                return rendered, following
            undo.make()
            if following > furthest:
                best, furthest = change, following
        if best is not None:
            best.make()
            return self._render(), furthest
        detail = (
            f"what was read back renders to another text at character {at}: {found[at : at + 40]!r}, "
            f"not {self._text[at : at + 40]!r}"
        )
        raise RecordRejected(RejectReason.not_recovered, detail)

    def _differs_at(self, found: str) -> int:
        if found == self._text:
            return -1
        both = zip(found, self._text, strict=False)
        return next((n for n, (a, b) in enumerate(both) if a != b), min(len(found), len(self._text)))

    def _changes(self, found: str, at: int) -> Iterator[_Change]:
        """What may explain that the rendering differs at a place, likeliest first."""
        text = self._text
        near = [one for one in self._fields if one.start - SLACK <= at <= one.end + SLACK]
        for one in sorted(near, key=lambda one: min(abs(one.end - at), abs(one.start - at))):
            if one.bare:
                yield from (_Change(one, one.start, one.end, value) for value in self._blanks(one, found, at))
                continue
            if text[one.start - 1 : one.start] == text[one.end : one.end + 1] == '"':
                yield from _unquoted(one, text)
            edges = [(shift, last) for last in (True, False) for shift in shifts()[1:]]
            if abs(one.start - at) < abs(one.end - at):
                edges.sort(key=lambda edge: edge[1])
            for shift, last in edges:
                start, end = one.start + (0 if last else shift), one.end + (shift if last else 0)
                if 0 <= start <= end <= len(text) and min(abs(one.end - at), abs(one.start - at)) <= SLACK:
                    yield _Change(one, start, end, text[start:end])

    def _blanks(self, one: Field, found: str, at: int) -> Iterator[str]:
        """Blanks that stand where the template wrote none, and those that it may have written around them."""
        yield from one.guesses
        run = len(self._text) - at - len(self._text[at:].lstrip())
        ahead = found[at : at + _ALIKE]
        for length in range(1, run + 1):
            if self._text.startswith(ahead, at + length):
                yield self._text[at : at + length]


def _unquoted(one: Field, text: str) -> Iterator[_Change]:
    """The text that a field is the JSON of."""
    try:
        value = json.loads(text[one.start - 1 : one.end + 1])
    except ValueError:
        return
    if isinstance(value, str) and value != one.message.get(one.name):
        yield _Change(one, one.start, one.end, value)
