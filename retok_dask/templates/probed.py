"""What probes show a template to do with what it rendered before, and around nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.templates.probes import probes
from retok_dask.types import Conversation, Kind, RecordRejected

if TYPE_CHECKING:
    from retok_dask.templates.probes import Message
    from retok_dask.templates.template import ChatTemplate


def unstable_prefixes(template: ChatTemplate) -> list[str]:
    """Probes in which adding turns changes what was rendered before."""
    broken = []
    for probe in probes():
        ends = [end for end in range(1, len(probe.messages)) if probe.messages[end - 1]["role"] == "assistant"]
        whole = _text(template, probe.messages, probe.tools)
        parts = [_text(template, probe.messages[:end], probe.tools) for end in ends] if whole is not None else []
        if any(part is not None and not str(whole).startswith(part) for part in parts):
            broken.append(probe.name)
    return broken


def _text(template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]] | None) -> str | None:
    """What the template renders; None if it refuses."""
    try:
        return template.reference_text(Conversation(messages, tools))
    except RecordRejected:
        return None


def scaffolds(template: ChatTemplate) -> list[str]:
    """Texts that a template writes around nothing."""
    found: dict[str, None] = {}
    for probe in probes():
        if probe.name not in ("turns", "call", "empty_answer") or probe.name in template.facts.refused:
            continue
        try:
            row = template.render_whole(Conversation(probe.messages, probe.tools))
        except RecordRejected:
            continue
        ends = [*row.starts[1:], len(row.text)]
        for start, end, kind in zip(row.starts, ends, row.kinds, strict=True):
            if kind == Kind.scaffold:
                found[row.text[start:end]] = None
    return list(found)
