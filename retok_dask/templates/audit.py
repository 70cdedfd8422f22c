"""What a chat template does, and to how many of the user's records."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from retok_dask.errors import count_of
from retok_dask.templates.context import REASONING_FIELDS
from retok_dask.templates.history import HistoryCost, history_costs
from retok_dask.templates.notices import NOTICES, known_counts, noticed
from retok_dask.templates.original import Original, original_of
from retok_dask.templates.probed import scaffolds, unstable_prefixes
from retok_dask.types import Kind, RecordRejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retok_dask.templates.loading import TokenizerFacts
    from retok_dask.templates.template import ChatTemplate
    from retok_dask.types import Conversation, Rendered


class Setting(Protocol):
    """A setting of the tokenizer with what it changes, which draws itself."""

    def to_dict(self) -> dict[str, Any]: ...
    def to_text(self) -> str: ...


HISTORY_SAMPLE = 200
"""Conversations, at most, on which the cost of history settings is measured."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One fact.

    Attributes:
        fact: its name.
        value: what the template does.
        count: records that it touches; None where no records were given.
        share: the same as a share of all records.
        example: of a record that it touches, or of a probe; empty if there is none.
    """

    fact: str
    value: str
    count: int | None = None
    share: float | None = None
    example: str = ""


@dataclass(slots=True)
class Audit:
    """A template's audit: what it does, and the records that each thing touches.

    Attributes:
        rows: one a fact.
        records: how many conversations were looked at.
        rejected: how many of them could not be rendered, by reason.
        roles: how often each sequence of roles was seen, the most frequent first.
        history: cost of each ``history`` setting, in characters, on some of the records, evenly spread.
        settings: what settings of the tokenizer change, where they matter.
    """

    rows: list[AuditRow]
    records: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    history: dict[str, HistoryCost] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "records": self.records,
            "rows": [asdict(row) for row in self.rows],
            "rejected": self.rejected,
            "roles": self.roles,
            "history": {name: cost.to_dict() for name, cost in self.history.items()},
            "settings": [one.to_dict() for one in self.settings],
        }

    def to_text(self) -> str:
        """As aligned plain text."""
        width = max(len(row.fact) for row in self.rows)
        lines = []
        for row in self.rows:
            touched = (
                f"  [{row.count:,} of {self.records:,}, {row.share:.1%}]"
                if row.count is not None and self.records
                else ""
            )
            lines.append(f"{row.fact:<{width}}  {row.value}{touched}")
            if row.example:
                lines.append(f"{'':<{width}}    e.g. {row.example}")
        for reason, number in self.rejected.items():
            lines.append(f"{'rejected':<{width}}  {reason}: {number:,} of {self.records:,}")
        for name, cost in self.history.items():
            lines.append(
                f"{'history ' + name:<{width}}  {count_of(cost.rows, 'row')} of {count_of(cost.records, 'record')}, {count_of(cost.size, 'character')}, "
                f"{cost.trained:,} trained, {cost.reasoning_lost:,} of reasoning lost"
            )
        lines += [one.to_text() for one in self.settings]
        return "\n".join(lines)

    __str__ = to_text
    __repr__ = to_text

    def _repr_html_(self) -> str:
        from retok_dask.views import audit_html  # noqa: PLC0415  views draws; a notebook alone needs it

        return audit_html(self.to_dict())


@dataclass(slots=True)
class _Seen:
    """Records that one thing touched."""

    count: int = 0
    example: str = ""

    def add(self, example: str) -> None:
        self.count += 1
        self.example = self.example or example


def audit(
    template: ChatTemplate, conversations: Iterable[Conversation] = (), *, tokenizer: TokenizerFacts | None = None
) -> Audit:
    """What a template does: from its probes, and on conversations if there are any.

    Args:
        template: it.
        conversations: records of the user's.
        tokenizer: whose own template one with generation tags is compared with; None for no comparison.
    """
    original = original_of(template, tokenizer) if tokenizer is not None else None
    seen: dict[str, _Seen] = {}
    rejected: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    kept: list[Conversation] = []
    records, step = 0, 1
    for conversation in conversations:
        if records % step == 0:
            kept.append(conversation)
            if len(kept) > HISTORY_SAMPLE:
                kept, step = kept[::2], 2 * step
        records += 1
        roles[_roles(conversation)] += 1
        for name, example in _touched(template, conversation, rejected, original):
            seen.setdefault(name, _Seen()).add(example)
    rows = [_row(name, value, example, seen, records) for name, value, example in _facts(template, original)]
    if records:
        rows += [_row(name, value, "", seen, records) for name, value in NOTICES.items()]
    known = {row.fact for row in rows}
    rows += [_row(name, "noticed in the data", "", seen, records) for name in sorted(seen) if name not in known]
    history = history_costs(template, kept)
    return Audit(rows, records, dict(rejected.most_common()), dict(roles.most_common(20)), history)


def _row(name: str, value: str, example: str, seen: dict[str, _Seen], records: int) -> AuditRow:
    touched = seen.get(name, _Seen())
    if not records or (name in _OF_THE_TEMPLATE and name not in seen):
        return AuditRow(name, value, example=example)
    return AuditRow(name, value, touched.count, touched.count / records, touched.example or example)


def _roles(conversation: Conversation) -> str:
    names = [str(message.get("role")) for message in conversation.messages]
    return " ".join(names[:12]) + (" ..." if len(names) > 12 else "")


def _touched(
    template: ChatTemplate, conversation: Conversation, rejected: Counter[str], original: Original | None
) -> Iterator[tuple[str, str]]:
    """Facts that a conversation meets, each with what of it."""
    yield from _extra_keys(conversation)
    try:
        row = template.render_whole(conversation)
    except RecordRejected as problem:
        rejected[str(problem.reason)] += 1
        yield f"rejected: {problem.reason}", problem.detail[:200]
        return
    found = noticed(row, conversation)
    yield from found.items()
    for name in row.counts.keys() - _AMOUNTS - known_counts():
        yield name, _example(row, name)
    yield from _tagged(template, conversation, original)
    kinds = set(row.kinds)
    for name, kind in (("prefill", Kind.prefill), ("scaffold", Kind.scaffold), ("tools", Kind.tools)):
        if kind in kinds:
            yield name, _text_of(row, kind)
    if template.facts.prints_date:
        yield "date", _text_of(row, Kind.system)
    assistants = [n for n, message in enumerate(conversation.messages) if message.get("role") == "assistant"]
    stopped = {owner for kind, owner in zip(row.kinds, row.messages, strict=True) if kind == Kind.stop}
    if any(number not in stopped for number in assistants):
        yield "assistant message without a stop token", _roles(conversation)


def _tagged(template: ChatTemplate, conversation: Conversation, original: Original | None) -> Iterator[tuple[str, str]]:
    """What generation tags change, against the default policy and against the tokenizer's own template."""
    if not template.facts.generation_tags:
        return
    for one in template.compare_tags(conversation)[:1]:
        side = "tagged, not trained by default" if one.tagged else "trained by default, not tagged"
        yield TAG_POLICY, f"{side}: {one.kind} {one.text[:80]!r}"
    if original is not None:
        found = original.difference(conversation)
        if found:
            yield TAG_TEXT, found


TAG_POLICY = "tags against the default policy"
TAG_TEXT = "text against the tokenizer's own template"


def _extra_keys(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Keys of messages that no layout or normalizing knows: a template may read them, most do not."""
    found = {key: message[key] for message in conversation.messages for key in message.keys() - _KNOWN_KEYS}
    for key in sorted(found)[:EXTRA_KEYS]:
        yield f"message key {key[:40]!r}", repr(found[key])[:120]


EXTRA_KEYS = 8
"""Further keys of messages that are named for one record."""

_KNOWN_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "id", *REASONING_FIELDS})

_AMOUNTS = frozenset({"reasoning_chars", "reasoning_dropped_chars"})
"""Counts of characters, which are no facts."""

_OF_THE_TEMPLATE = frozenset(
    {"engine", "method", "generation tags", "prefix-stable", "header", "stop", "refuses", "called with"}
)
"""Facts that hold whatever the data is."""


def _example(row: Rendered, name: str) -> str:
    return f"{row.counts[name]} x" if row.counts[name] > 1 else ""


def _text_of(row: Rendered, kind: Kind) -> str:
    at = row.kinds.index(int(kind)) if int(kind) in row.kinds else -1
    if at < 0:
        return ""
    end = row.starts[at + 1] if at + 1 < len(row.starts) else len(row.text)
    return repr(row.text[row.starts[at] : min(end, row.starts[at] + 120)])


def _facts(template: ChatTemplate, original: Original | None) -> Iterator[tuple[str, str, str]]:
    """(fact, value, example) from the probes."""
    facts = template.facts
    yield "engine", template.engine, ""
    yield "method", facts.method, ""
    yield "generation tags", "yes" if facts.generation_tags else "none", ""
    yield "prefix-stable", *_prefix_stable(template)
    yield "drops reasoning", *_drops(facts.dropped)
    yield "date", "prints the run's date" if facts.prints_date else "prints none", ""
    yield "header", repr(facts.header), ""
    yield "prefill", repr(facts.prefill) if facts.prefill else "none", ""
    yield "stop", *_stop(template)
    yield "tools", _tools(facts.dropped, facts.refused), facts.refused.get("call", "")
    yield "refuses", *_refuses(facts.refused)
    yield "swallows", *_swallows(facts.dropped)
    yield "scaffold", *_scaffold(template)
    yield "called with", _form(template), ""
    if facts.generation_tags:
        yield TAG_POLICY, "tags decide the mask", ""
    if original is not None:
        yield TAG_TEXT, *_beside(original)


def _beside(original: Original) -> tuple[str, str]:
    if not original.probed:
        return "renders the same text", ""
    name, difference = next(iter(original.probed.items()))
    what = "differs in blanks: a run refuses it" if original.blanks_only else "renders other text"
    return what, f"probe {name}, {difference}"


def _prefix_stable(template: ChatTemplate) -> tuple[str, str]:
    broken = unstable_prefixes(template)
    if not broken:
        return "yes: what was rendered stays as turns are added", ""
    return "no: it rewrites earlier turns", ", ".join(broken)


def _drops(dropped: tuple[tuple[str, int, str], ...]) -> tuple[str, str]:
    lost = sorted({probe for probe, _, part in dropped if part == "R"})
    if not lost:
        return "never", ""
    every = "of earlier turns" if ("reasoning", 3, "R") not in dropped else "always: it prints none"
    return every, f"probe {lost[0]}"


def _stop(template: ChatTemplate) -> tuple[str, str]:
    facts = template.facts
    if facts.stops:
        return ", ".join(map(repr, facts.stops)), ""
    return ("the next role marker", "") if facts.marker_stops else ("none", "")


def _tools(dropped: tuple[tuple[str, int, str], ...], refused: dict[str, str]) -> str:
    if "call" in refused:
        return "refuses tool calls"
    if ("call", 1, "T") in dropped:
        return "drops tool calls"
    return "prints calls, but only the first of several" if ("parallel", 1, "T") in dropped else "prints tool calls"


_ROLE_PROBES = {
    "system": "system",
    "late_system": "system after the start",
    "developer": "developer",
    "call": "tool",
    "two_users": "two user messages in a row",
    "two_answers": "two assistant messages in a row",
    "answer_first": "an assistant message first",
}


def _refuses(refused: dict[str, str]) -> tuple[str, str]:
    names = [name for probe, name in _ROLE_PROBES.items() if probe in refused]
    return (", ".join(names) or "nothing"), next((refused[p][:160] for p in _ROLE_PROBES if p in refused), "")


def _swallows(dropped: tuple[tuple[str, int, str], ...]) -> tuple[str, str]:
    roles = {("system", 0): "system", ("late_system", 2): "system after the start", ("call", 2): "tool results"}
    roles |= {("developer", 0): "developer"}
    lost = [name for (probe, number), name in roles.items() if (probe, number, "C") in dropped]
    return (", ".join(lost) or "nothing"), ""


def _scaffold(template: ChatTemplate) -> tuple[str, str]:
    for text in scaffolds(template):
        return repr(text), ""
    return "none", ""


def _form(template: ChatTemplate) -> str:
    form = template.facts.form
    said = [
        "contents as lists of parts" if form.parts else "contents as text",
        "arguments as JSON text" if form.text_arguments else "arguments as objects",
    ]
    return ", ".join([*said, *(["tools always"] if form.needs_tools else [])])


Measure = "Callable[[Rendered], tuple[int, int]]"
