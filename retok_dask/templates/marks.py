"""Marks in a rendering: a few characters that no text holds, put in and cut out again."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Marks:
    """The two characters that no text of a conversation holds.

    A mark is ``begin``, a payload and ``end``; the payload is a message's
    number, ``+`` (remember) or ``-`` (return). ``begin`` is also the key under
    which a message carries its own mark.
    """

    begin: str = "\x01"
    end: str = "\x02"

    def make(self, payload: str) -> str:
        """The mark with this payload."""
        return f"{self.begin}{payload}{self.end}"

    def messages(self, count: int) -> list[str]:
        """The marks that open the first so many messages; not to be changed."""
        return _message_marks(self.begin, self.end, count)


@lru_cache(maxsize=256)
def _message_marks(begin: str, end: str, count: int) -> list[str]:
    return [f"{begin}{index}{end}" for index in range(count)]


# Control characters keep an ASCII text one byte a character; those that str.strip removes are left out.
ALL_MARKS = (
    Marks(),
    Marks("\x03", "\x04"),
    Marks("\x0e", "\x0f"),
    Marks("\ue1f0", "\ue1f1"),
    Marks("\U000fcaf0", "\U000fcaf1"),
)


@dataclass(slots=True)
class Runs:
    """A rendering with its marks cut out.

    Attributes:
        text: as the template renders it without marks.
        starts: ascending starts of its runs; no run is empty, neighbours differ.
        owners: the message of each run, -1 for none.
        texts: the text of each run. Short texts of their own are faster to look
            at than stretches of a long one, in which one rare character makes
            all of them wide.
        generated: (start, end) of what stands in ``{% generation %}`` tags.
        escapes: (start, end) of control-token text that came with the input;
            an empty range where such a token was cut in two.
        fields: (start, end) of fields that were marked, by message and part.
    """

    text: str
    starts: list[int]
    owners: list[int]
    texts: list[str]
    generated: list[tuple[int, int]] = field(default_factory=list)
    escapes: list[tuple[int, int]] = field(default_factory=list)
    fields: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)


REMEMBER, BACK, GENERATED, NOT_GENERATED, ESCAPE, PLAIN, NO_MESSAGE = "+", "-", "{", "}", "<", ">", "!"


def unmark(marked: str, marks: Marks) -> Runs:
    """Cut the marks out of a marked rendering.

    Raises:
        ValueError: the marks are broken, because the template cuts or changes text.
    """
    head, *pieces = marked.split(marks.begin)
    starts, owners, texts = ([0], [-1], [head]) if head else ([], [], [])
    position, current, before, end = len(head), -1, [-1][:0], marks.end
    runs = Runs("", starts, owners, texts)
    for piece in pieces:
        payload, _, text = piece.partition(end)
        if payload.isdigit():
            current = int(payload)
        elif payload == REMEMBER:
            before.append(current)
        elif payload == BACK:
            current = before.pop() if before else -1
        elif payload == NO_MESSAGE:
            current = -1
        else:
            _note(runs, payload, position)
        if text:
            if owners and owners[-1] == current:
                texts[-1] += text
            else:
                starts.append(position)
                owners.append(current)
                texts.append(text)
            position += len(text)
    runs.text = "".join(texts)
    return runs


def _note(runs: Runs, payload: str, position: int) -> None:
    """Take down a mark that is no message's: tags, escapes, fields."""
    if payload == GENERATED:
        runs.generated.append((position, -1))
    elif payload == NOT_GENERATED:
        runs.generated[-1] = (runs.generated[-1][0], position)
    elif payload == ESCAPE:
        runs.escapes.append((position, position))
    elif payload == PLAIN:
        if not runs.escapes or runs.escapes[-1][0] != runs.escapes[-1][1]:
            runs.escapes.append((position, position))
        runs.escapes[-1] = (runs.escapes[-1][0], position)
    elif payload[:1] in ("o", "c") and payload[2:].isdigit():
        key = (int(payload[2:]), payload[1])
        runs.fields[key] = (position, -1) if payload[0] == "o" else (runs.fields.get(key, (-1, -1))[0], position)
    else:
        msg = f"a mark came out as {payload[:20]!r}"
        raise ValueError(msg)


def all_texts(value: Any) -> Iterator[str]:
    """All texts in a nested value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from all_texts(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from all_texts(item)
