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
        return cls(*said(message))

    def missing(self) -> set[str]:
        """Parts that are there but were not found: of R, C, T."""
        texts = (("R", self.reasoning), ("C", self.content))
        left = {part for part, text in texts if text and part not in self.found and not text.isspace()}
        return left | {"T"} if self.names and "T" not in self.found else left


def said(message: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Reasoning, content and the names of the functions called of a normalised assistant message."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = message.get("tool_calls")
    return message.get("reasoning_content") or "", content, _names(calls) if calls else []


def variants(text: str) -> list[str]:
    """A text as templates print it: as it is, or trimmed in one of the usual ways."""
    if not text or not (text[0].isspace() or text[-1].isspace()):
        return [text] if text else []
    forms = (text, text.rstrip("\n"), text.lstrip("\n"), text.strip("\n"), text.rstrip(), text.lstrip(), text.strip())
    return [form for form in dict.fromkeys(forms) if form]


def _names(calls: list[Any]) -> list[str]:
    return [str((call.get("function") or call).get("name") or "") for call in calls if isinstance(call, dict)]


@dataclass(frozen=True, slots=True)
class Frame:
    """The texts around the parts of a run, and the kinds that the parser gave a run with them.

    Attributes:
        leads: what stands before reasoning, content and the first call's name;
            empty where the message has no such part.
        tail: what stands after the last part, or after the calls.
        ends: where each span begins: after which part (0 for none), and how far from its end.
        kinds: the spans' kinds.
        fixed: length of all its texts.
    """

    leads: tuple[str, str, str]
    tail: str
    ends: tuple[tuple[int, int], ...]
    kinds: tuple[int, ...]
    fixed: int


class KnownFrames:
    """Frames of one template's assistant messages, each with the kinds that the parser gave it.

    Args:
        tails: texts that end a message, longest first.
    """

    def __init__(self, tails: Iterable[str]) -> None:
        self._frames: dict[tuple[str, str, bool], list[Frame]] = {}
        self._tails = [*tails, ""]
        self._size = 0

    def fit(
        self, text: str, reasoning: str, content: str, names: list[str], position: int
    ) -> tuple[list[int], tuple[int, ...]] | None:
        """Spans of a run that is one known frame and the message's parts, and nothing else.

        Args:
            text: the run.
            reasoning, content, names: as :func:`said` gives them.
            position: where the run begins in its rendering.

        Returns:
            Where each span begins in the rendering, and its kind; None if no
            frame fits, or more than one.
        """
        reason, body = reasoning.strip(), content.strip()
        frames = self._frames.get((outside(reasoning, reason), outside(content, body), bool(names)))
        if frames is None:
            return None
        fixed = len(text) - len(reason) - len(body)
        found: Frame | None = None
        tail = 0
        for frame in frames:
            lead, before_body, before_call = frame.leads
            if names:
                front = f"{lead}{reason}{before_body}{body}{before_call}{names[0]}"
                if not (text.startswith(front) and text.endswith(frame.tail)):
                    continue
                tail = self._after_calls(text, names, len(front) - len(names[0]))
                if tail != len(text) - len(frame.tail):
                    continue
            elif fixed != frame.fixed or text != f"{lead}{reason}{before_body}{body}{frame.tail}":
                continue
            if found is not None:
                return None
            found = frame
        if found is None:
            return None
        ends = [position]
        if reason:
            ends.append(position + len(found.leads[0]) + len(reason))
        if body:
            ends.append(ends[-1] + len(found.leads[1]) + len(body))
        if names:
            ends.append(position + tail)
        return [ends[part] + distance for part, distance in found.ends], found.kinds

    def _after_calls(self, text: str, names: list[str], at: int) -> int:
        """Where a known tail begins after the calls; -1 if there is none, or not every call."""
        for known in self._tails:
            if text.endswith(known):
                tail = len(text) - len(known)
                break
        else:
            return -1
        for name in names:
            at = text.find(name, at, tail)
            if at < 0:
                return -1
            at += len(name)
        return tail

    def remember(self, text: str, spans: list[tuple[int, Kind]], found: Places, fields: Fields) -> None:
        """Keep the frame of a run with the kinds that the parser gave it, if it says where all parts are."""
        if self._size >= KNOWN or fields.lost_calls or any(start >= len(text) for start, _ in spans):
            return
        cores = fields.reasoning.strip(), fields.content.strip()
        if any((place is None) == bool(core) for place, core in zip(found, cores, strict=True)):
            return
        leads, parts, at = [], [], 0
        for place, core in zip(found, cores, strict=True):
            begin = text.find(core, place[0], place[1]) if place else -1
            if place is not None and begin < at:
                return
            leads.append(text[at:begin] if place else "")
            if place is not None:
                at = begin + len(core)
                parts.append((begin, at))
        tail, called = at, ""
        if fields.names:
            tail = self._after_calls(text, fields.names, at) if "T" in fields.found else -1
            if tail < 0:
                return
            first = text.find(fields.names[0], at)
            called = text[at:first]
            parts.append((first, tail))
        self._keep(text, spans, fields, (leads[0], leads[1], called), parts, tail)

    def _keep(
        self,
        text: str,
        spans: list[tuple[int, Kind]],
        fields: Fields,
        leads: tuple[str, str, str],
        parts: list[Place],
        tail: int,
    ) -> None:
        if sum(map(len, leads)) + len(text) - tail > LONGEST:
            return
        kept: list[tuple[int, Kind]] = []
        for start, kind in spans:
            if any(begin < start < end for begin, end in parts):
                return
            if kept and kept[-1][0] == start:
                kept.pop()
            if not kept or kept[-1][1] != kind:
                kept.append((start, kind))
        ends = [0, *(end for _, end in parts)]
        after = [sum(end <= start for end in ends) - 1 for start, _ in kept]
        frame = Frame(
            leads,
            text[tail:],
            tuple((part, start - ends[part]) for part, (start, _) in zip(after, kept, strict=True)),
            tuple(int(kind) for _, kind in kept),
            sum(map(len, leads)) + len(text) - tail,
        )
        key = tuple(outside(part, part.strip()) for part in (fields.reasoning, fields.content))
        frames = self._frames.setdefault((key[0], key[1], bool(fields.names)), [])
        if frame not in frames:
            frames.append(frame)
            self._size += 1


def outside(part: str, core: str) -> str:
    """White space around a part's text, or what tells that there is no text; one string, to be a key."""
    if len(core) == len(part):
        return "text" if part else ""
    begin = part.find(core[0]) if core else 0
    return f"{part[:begin]}|{part[begin + len(core) :]}" if core else part
