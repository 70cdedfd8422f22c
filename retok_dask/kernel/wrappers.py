"""What a chat template writes around the parts of messages, learned from probe conversations."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.kernel.readback import json_objects, read_tools, tools_at
from retok_dask.templates.probes import probes
from retok_dask.types import KIND_NAMES, Conversation, RecordRejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.templates import ChatTemplate
    from retok_dask.templates.probes import Probe
    from retok_dask.types import Rendered

Key = tuple[str, str]
"""(role, kind): what a wrapper stands around."""

Place = tuple[int, dict[str, Any]]
"""Where a part's own text begins or ends, and what the template's text there says."""

SLACK = 4
"""Characters by which a shared token may move a boundary between two parts."""

_NAMED = "probe_named"
"""The name that results of probes have, so that it is told from that of the function called."""

_LONGEST = 200
"""Characters of an id or a name, at most."""

_ID, _NAME = r"[\w.:\-/]+", r"[\w.\-/]+"
_NAME_OF_CALL = rf"(?P<name>{_NAME})"
_ID_WITH_NAME = rf"(?P<id>functions\.(?P<name>{_NAME}):\d+)"
"""What stands for the name where a template writes ids alone."""


@dataclass(slots=True)
class Part:
    """Where a kind of a message lies in the row's text."""

    message: int
    kind: str
    start: int
    end: int


@dataclass(slots=True)
class Cut:
    """Where a part's own text lies, and what the template's text around it says: a call's id, a name, tools."""

    start: int
    end: int
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wrap:
    """A text that the template writes before or after a part.

    Attributes:
        text: it, as it was in a probe; up to the tools, where it lists them.
        pattern: what it is where it holds a call's id or a name, else None.
        between, behind: what stands between the tools that it lists and after the last one; None where it lists none.
    """

    text: str
    pattern: re.Pattern[str] | None = None
    between: str | None = None
    behind: str | None = None

    def begins(self, text: str, start: int) -> Place | None:
        """Where it ends in `text` if it stands at `start`, and what it says."""
        if self.pattern is not None:
            found = self.pattern.match(text, start)
            return (found.end(), _said(found)) if found else None
        if not text.startswith(self.text, start):
            return None
        end = start + len(self.text)
        if self.between is None or self.behind is None:
            return end, {}
        tools, end = tools_at(text, end, self.between)
        return (end + len(self.behind), {"tools": tools}) if tools and text.startswith(self.behind, end) else None

    def ends(self, text: str, begin: int, stop: int) -> Place | None:
        """Where it begins in `text`, not before `begin`, if it ends at `stop`, and what it says."""
        if self.pattern is None:
            return (stop - len(self.text), {}) if text.endswith(self.text, begin, stop) else None
        found = self.pattern.search(text, max(begin, stop - len(self.text) - _LONGEST), stop)
        return (found.start(), _said(found)) if found else None


@dataclass(slots=True)
class Wrappers:
    """Text that the template writes before and after each part, longest first; learned from probes.

    Attributes:
        before, after: by role and kind.
        trimmed: around whose texts it takes blanks off.
        between: what it writes before the JSON of a call's arguments, the function's name (or the call's id) included.
    """

    before: dict[Key, list[Wrap]] = field(default_factory=dict)
    after: dict[Key, list[Wrap]] = field(default_factory=dict)
    trimmed: set[Key] = field(default_factory=set)
    between: list[re.Pattern[str]] = field(default_factory=list)

    @classmethod
    def learn(cls, template: ChatTemplate) -> Wrappers:
        """Render the probes of the templates room and note what stands around their texts."""
        before: dict[Key, set[Wrap]] = defaultdict(set)
        after: dict[Key, set[Wrap]] = defaultdict(set)
        trimmed, between = set[Key](), set[str]()
        for probe in probes():
            messages, rendered = _rendered(template, probe)
            if rendered is None:
                continue
            for part in _parts_of_rendering(rendered):
                message = messages[part.message]
                text = rendered.text[part.start : part.end]
                if part.kind == "tool_call":
                    between |= _gaps(text, message)
                    continue
                value = message.get("reasoning_content") if part.kind == "reasoning" else message.get("content")
                key = (message["role"], part.kind)
                if value and value not in text and value.strip() in text:
                    trimmed.add(key)
                if not value or value != value.strip() or value not in text:
                    continue
                at = text.index(value)
                before[key].add(_wrap(text[:at], message, r"{}"))
                after[key].add(_wrap(text[at + len(value) :], message, r"{}\Z"))
        patterns = [re.compile(text) for text in sorted(between, key=lambda text: (-len(text), text))]
        return cls(_longest_first(before), _longest_first(after), trimmed, patterns)

    def cut(self, text: str, part: Part, role: str, kind: str = "") -> Cut | None:
        """Where the part's own text lies; None where nothing that is known stands around it.

        Args:
            text: the row's text.
            part: the part.
            role: of its message.
            kind: what it is taken for, where that is not its own kind.
        """
        key = (role, kind or part.kind)
        for begin, said in self._beginnings(key, text, part.start):
            found = self._ending(key, text, begin, part.end)
            if found is not None:
                edges = _trim(text, begin, found[0]) if key in self.trimmed else (begin, found[0])
                return Cut(*edges, said | found[1])
        return None

    def _beginnings(self, key: Key, text: str, start: int) -> Iterator[Place]:
        for wrap, shift in _tries(self.before.get(key, [])):
            found = wrap.begins(text, max(start + shift, 0))
            if found is not None:
                yield found

    def _ending(self, key: Key, text: str, begin: int, end: int) -> Place | None:
        for wrap, shift in _tries(self.after.get(key, [])):
            found = wrap.ends(text, begin, end + shift)
            if found is not None and found[0] >= begin:
                return found
        return None


def _said(found: re.Match[str]) -> dict[str, Any]:
    return {name: text for name, text in found.groupdict().items() if text}


def _tries(wraps: list[Wrap]) -> Iterator[tuple[Wrap, int]]:
    """Wraps with the shifts to look for them at: what has letters or signs in it first, wherever it is near."""
    told, blank = [w for w in wraps if w.text.strip()], [w for w in wraps if not w.text.strip()]
    for some in (told, blank):
        yield from ((wrap, shift) for shift in shifts() for wrap in some)


def _trim(text: str, begin: int, end: int) -> tuple[int, int]:
    """A stretch without the blanks around it; unchanged where it is blank."""
    own = text[begin:end]
    return (begin + len(own) - len(own.lstrip()), begin + len(own.rstrip())) if own.strip() else (begin, end)


def shifts() -> list[int]:
    """Distances by which a boundary may have moved, nearest first."""
    return sorted(range(-SLACK, SLACK + 1), key=abs)


def _rendered(template: ChatTemplate, probe: Probe) -> tuple[list[dict[str, Any]], Rendered | None]:
    """A probe's messages and rendering: with names of their own for results, where the template allows that."""
    named = [one | {"name": _NAMED} if one["role"] == "tool" else one for one in probe.messages]
    for messages in (named, list(probe.messages)):
        try:
            return messages, template.render(Conversation(messages, probe.tools))[0]
        except (RecordRejected, ValueError):
            continue  # a template may refuse a probe
    return [], None


def _wrap(text: str, message: dict[str, Any], form: str) -> Wrap:
    """What a probe shows of the text before or after a message's part; `form` is that of its pattern."""
    if message["role"] == "tool":
        slots = {message.get("tool_call_id"): ("tool_call_id", rf"(?:{_ID})?"), message.get("name"): ("name", _NAME)}
        slots |= dict.fromkeys(("probe_weather", "probe_clock"), ("", _NAME))
        pattern = _with_slots(text, {value: slot for value, slot in slots.items() if value})
        return Wrap(text, None if pattern is None else re.compile(form.format(pattern)))
    listed = [(start, end) for start, end, value in json_objects(text) if read_tools(text[start:end])]
    if len(listed) < 2:  # one tool does not show what stands between two
        return Wrap(text)
    (start, end), (following, _) = listed[:2]
    return Wrap(text[:start], None, text[end:following], text[listed[-1][1] :])


def _with_slots(text: str, slots: dict[str, tuple[str, str]]) -> str | None:
    """A pattern for a probe's text with a group for each value of the probe's in it; None where there is none."""
    split = re.split("(" + "|".join(map(re.escape, sorted(slots, key=len, reverse=True))) + ")", text)
    if len(split) == 1:
        return None
    made, seen = "", set()
    for number, piece in enumerate(split):
        name, form = slots[piece] if number % 2 else ("", "")
        if not number % 2:
            made += re.escape(piece)
        elif not name:
            made += form
        else:
            made += f"(?P={name})" if name in seen else f"(?P<{name}>{form})"
            seen.add(name)
    return made


def _longest_first(found: dict[Key, set[Wrap]]) -> dict[Key, list[Wrap]]:
    """Those that list tools come before all others: the same text may stand there without any."""
    return {key: sorted(wraps, key=lambda w: (w.between is None, -len(w.text), w.text)) for key, wraps in found.items()}


def _gaps(text: str, message: dict[str, Any]) -> set[str]:
    """Patterns of what stands before the JSON of the arguments of a probe's calls."""
    found = set()
    objects = [(start, end) for start, end, value in json_objects(text) if "name" not in value]
    behind = 0
    for call, (start, end) in zip(message.get("tool_calls") or (), objects, strict=False):
        before, behind = text[behind:start], end
        for value, slot in ((call["function"]["name"], _NAME_OF_CALL), (call["id"], _ID_WITH_NAME)):
            _, told, gap = before.rpartition(value)
            if told and "Arg" not in gap:  # else it is no JSON that follows
                pieces = [re.sub(r"\d+", r"\\d+", re.escape(piece)) for piece in gap.split(call["id"], 1)]
                found.add(slot + rf"(?P<id>{_ID})".join(pieces) + r"\Z")
                break
    return found


def _parts_of_rendering(rendered: Rendered) -> list[Part]:
    ends = [*rendered.starts[1:], len(rendered.text)]
    spans = zip(rendered.starts, ends, rendered.kinds, rendered.messages, strict=True)
    return merged([Part(m, KIND_NAMES[k], a, b) for a, b, k, m in spans if m >= 0])


def merged(parts: list[Part]) -> list[Part]:
    """One part for each piece of a kind of a message: a system message may have the tools in its middle."""
    out: list[Part] = []
    last: dict[tuple[int, str], Part] = {}
    for part in parts:
        known = last.get((part.message, part.kind))
        if known is not None and known.end == part.start:
            known.end = part.end
        else:
            last[(part.message, part.kind)] = part
            out.append(part)
    return out
