"""What an assistant message says, and the texts around it that were explained before.

A template writes the same few texts around the parts of its messages. A run
that is such a text, the message's own parts, and such a text again has its
parts exactly there; what the parser proved for it once holds for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retok_dask.types import Kind

Place = tuple[int, int]
Places = tuple[Place | None, Place | None]
"""Where reasoning and content lie in a run."""

KNOWN, LONGEST = 256, 1024
"""How many frames are remembered, and of how many characters."""

TAIL = -1
"""Stands for the text after the last call in the place of a part's number."""


@dataclass(slots=True)
class Fields:
    """What an assistant message says, and what of it has been found so far."""

    reasoning: str
    content: str
    names: list[str]
    found: set[str] = field(default_factory=set)
    lost_calls: int = 0

    @classmethod
    def of(cls, message: dict[str, Any]) -> Fields:
        """The fields of a normalised assistant message."""
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        calls = message.get("tool_calls")
        names = _names(calls) if calls else []
        return cls(message.get("reasoning_content") or "", content, names)

    def missing(self) -> set[str]:
        """Parts that are there but were not found: of R, C, T."""
        texts = (("R", self.reasoning), ("C", self.content))
        left = {part for part, text in texts if text and part not in self.found and not text.isspace()}
        return left | {"T"} if self.names and "T" not in self.found else left


def _names(calls: list[Any]) -> list[str]:
    return [str((call.get("function") or call).get("name") or "") for call in calls if isinstance(call, dict)]


@dataclass(slots=True)
class Cut:
    """A run taken apart.

    Attributes:
        frame: all of its text that is not the message's own, and which parts the message has.
        places: where reasoning and content lie, without outer white space.
        called: where the first call's name begins; the run's end if there are no calls.
        tail: where the text after the calls begins; the run's end if there are no calls.
    """

    frame: tuple[str, ...]
    places: Places
    called: int
    tail: int


class KnownFrames:
    """Frames of one template's assistant messages, each with the kinds that the parser gave it.

    Args:
        tails: texts that end a message, longest first.
    """

    def __init__(self, tails: Iterable[str]) -> None:
        self._spans: dict[tuple[str, ...], tuple[tuple[int, int, Kind], ...]] = {}
        self._leads: list[str] = []
        self._tails = [*tails, ""]

    def cut(self, text: str, fields: Fields) -> Cut | None:
        """A run without its parts; None if it does not hold them in the usual order."""
        if fields.found:
            return None
        around: list[str] = [""]
        places: list[Place | None] = []
        at = 0
        for part in (fields.reasoning, fields.content):
            core = part.strip()
            if not core:
                around.append(part)
                places.append(None)
                continue
            begin = self._begin(text, core, at)
            if begin < 0:
                return None
            before = part.find(core[0])
            around += (part[:before], text[at:begin], part[before + len(core) :])
            at = begin + len(core)
            places.append((begin, at))
        called = tail = len(text)
        if fields.names:
            tail = self._after_calls(text, fields.names, at)
            if tail < 0:
                return None
            called = text.find(fields.names[0], at)
            around.append(text[at:called])
            at = tail
        around[0] = f"{places[0] is not None}{places[1] is not None}{bool(fields.names)}"
        return Cut((*around, text[at:]), (places[0], places[1]), called, tail)

    def _begin(self, text: str, core: str, at: int) -> int:
        # looking at the usual places costs nothing; a search prepares for the whole length of what it looks for
        for lead in self._leads:
            if text.startswith(lead, at) and text.startswith(core, at + len(lead)):
                return at + len(lead)
        return text.find(core, at)

    def _after_calls(self, text: str, names: list[str], at: int) -> int:
        """Where a known tail begins after the calls; -1 if there is none, or not every call."""
        tail = next((len(text) - len(tail) for tail in self._tails if text.endswith(tail)), -1)
        for name in names:
            at = text.find(name, at, tail)
            if at < 0:
                return -1
            at += len(name)
        return tail

    def spans(self, cut: Cut, fields: Fields) -> list[tuple[int, Kind]] | None:
        """The kinds of a run with a known frame, as ascending (start, kind); None if it is not known.

        Parts that are there are noted in `fields`.
        """
        known = self._spans.get(cut.frame)
        if known is None:
            return None
        ends = [0]
        for part, place in zip("RC", cut.places, strict=True):
            if place:
                ends.append(place[1])
                fields.found.add(part)
        if fields.names:
            fields.found.add("T")
            ends.append(cut.tail)
        return [(ends[part] + distance, kind) for part, distance, kind in known]

    def remember(self, cut: Cut, spans: list[tuple[int, Kind]], found: Places, fields: Fields) -> None:
        """Keep a frame with the kinds that the parser gave it, if it read the run the same way."""
        if len(self._spans) >= KNOWN or sum(map(len, cut.frame)) > LONGEST or fields.lost_calls:
            return
        if (fields.names and "T" not in fields.found) or not all(map(_covers, found, cut.places)):
            return
        ends = [0, *[place[1] for place in cut.places if place]]
        relative = []
        for start, kind in spans:
            if any(place and place[0] < start < place[1] for place in cut.places) or cut.called < start < cut.tail:
                return
            part = TAIL if fields.names and start >= cut.tail else sum(end <= start for end in ends) - 1
            relative.append((part, start - (cut.tail if part == TAIL else ends[part]), kind))
        self._spans[cut.frame] = tuple(relative)
        self._learn_leads(cut)

    def _learn_leads(self, cut: Cut) -> None:
        """Remember what stands before parts, the longest first."""
        for number, place in enumerate(cut.places):
            # a part that is there has three texts in the frame, one that is not has one
            lead = cut.frame[2 + (number and (1 if cut.places[0] is None else 3))]
            if place is not None and lead not in self._leads:
                self._leads = sorted([*self._leads, lead], key=len, reverse=True)


def _covers(wider: Place | None, place: Place | None) -> bool:
    """Whether the parser found a part at the same place, perhaps with white space around it."""
    if wider is None or place is None:
        return wider is place
    return wider[0] <= place[0] < place[1] <= wider[1]
