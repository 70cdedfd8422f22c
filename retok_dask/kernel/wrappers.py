"""What a chat template writes around the parts of messages, learned from probe conversations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.kernel.readback import json_objects
from retok_dask.templates.probes import probes
from retok_dask.types import KIND_NAMES, Conversation, RecordRejected

if TYPE_CHECKING:
    from retok_dask.templates import ChatTemplate
    from retok_dask.types import Rendered

Key = tuple[str, str]
"""(role, kind): what a wrapper stands around."""

SLACK = 4
"""Characters by which a shared token may move a boundary between two parts."""


@dataclass(slots=True)
class Part:
    """Where a kind of a message lies in the row's text."""

    message: int
    kind: str
    start: int
    end: int


@dataclass(slots=True)
class Wrappers:
    """Text that the template writes before and after each part, longest first; learned from probes."""

    before: dict[Key, list[str]] = field(default_factory=dict)
    after: dict[Key, list[str]] = field(default_factory=dict)
    between: list[str] = field(default_factory=list)

    @classmethod
    def learn(cls, template: ChatTemplate) -> Wrappers:
        """Render the probes of the templates room and note what stands around their texts."""
        before: dict[Key, set[str]] = defaultdict(set)
        after: dict[Key, set[str]] = defaultdict(set)
        between: set[str] = set()
        for probe in probes():
            try:
                (rendered,) = template.render(Conversation(list(probe.messages), probe.tools))
            except (RecordRejected, ValueError):
                continue  # a template may refuse a probe
            for part in _parts_of_rendering(rendered):
                message = probe.messages[part.message]
                text = rendered.text[part.start : part.end]
                if part.kind == "tool_call":
                    between |= _gaps(text, message)
                    continue
                value = message.get("reasoning_content") if part.kind == "reasoning" else message.get("content")
                if not value or value != value.strip() or value not in text:
                    continue
                key = (message["role"], part.kind)
                at = text.index(value)
                before[key].add(text[:at])
                after[key].add(text[at + len(value) :])
        return cls(_longest_first(before), _longest_first(after), sorted(between, key=len, reverse=True))

    def cut(self, text: str, part: Part, role: str) -> tuple[int, int] | None:
        """Where the part's own text lies; None where nothing that is known stands around it."""
        key = (role, part.kind)
        for slack in shifts():
            start, end = part.start, part.end
            before = next((b for b in self.before.get(key, ()) if text.startswith(b, max(start + slack, 0))), None)
            if before is None:
                continue
            begin = start + slack + len(before)
            for tail in shifts():
                stop = end + tail
                after = next((a for a in self.after.get(key, ()) if text.endswith(a, begin, stop)), None)
                if after is not None and begin <= stop - len(after):
                    return begin, stop - len(after)
        return None


def shifts() -> list[int]:
    """Distances by which a boundary may have moved, nearest first."""
    return sorted(range(-SLACK, SLACK + 1), key=abs)


def _longest_first(found: dict[Key, set[str]]) -> dict[Key, list[str]]:
    return {key: sorted(texts, key=len, reverse=True) for key, texts in found.items()}


def _gaps(text: str, message: dict[str, Any]) -> set[str]:
    """What stands between a probe's function name and the JSON of its arguments."""
    found = set()
    starts = [start for start, _, value in json_objects(text) if "name" not in value]
    for call, start in zip(message.get("tool_calls") or (), starts, strict=False):
        name = call["function"]["name"]
        at = text.rfind(name, 0, start)
        if at >= 0:
            found.add(text[at + len(name) : start])
    return found


def _parts_of_rendering(rendered: Rendered) -> list[Part]:
    ends = [*rendered.starts[1:], len(rendered.text)]
    spans = zip(rendered.starts, ends, rendered.kinds, rendered.messages, strict=True)
    return merged([Part(m, KIND_NAMES[k], a, b) for a, b, k, m in spans if m >= 0])


def merged(parts: list[Part]) -> list[Part]:
    """One part for each kind of a message that lies in one piece; of several pieces the first."""
    out: list[Part] = []
    seen: dict[tuple[int, str], Part] = {}
    for part in parts:
        known = seen.get((part.message, part.kind))
        if known is None:
            seen[(part.message, part.kind)] = part
            out.append(part)
        elif known.end == part.start:
            known.end = part.end
    return out
