"""The table of layouts, and the choice among them, record by record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts import chats, ids, pairs, texts, trees, written
from retok_dask.completions.layouts.duplicates import DuplicateKeys
from retok_dask.completions.layouts.own import call_own, own_function, own_items
from retok_dask.errors import RecipeError, did_you_mean
from retok_dask.types import Conversation, Item, Record, RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retok_dask.recipe import DatasetSpec

CHAT = frozenset({"chat", "prompts"})
TEXT = frozenset({"text"})
TOKENS = frozenset({"tokens"})
PROMPTS = frozenset({"prompts"})
ANY = CHAT | TEXT | TOKENS

_ID_TYPES = (str, int)


@dataclass(frozen=True, slots=True)
class Rule:
    """One layout.

    Attributes:
        name: what a recipe calls it.
        modes: modes of a data set that it can serve.
        looks_like: what to look for in the data, for people.
        fits: whether a record has this layout, told by its keys.
        build: record and data set -> items; raises RecordRejected.
    """

    name: str
    modes: frozenset[str]
    looks_like: str
    fits: Callable[[dict[str, Any]], bool]
    build: Callable[[dict[str, Any], DatasetSpec], list[Item]]


RULES: tuple[Rule, ...] = (
    Rule("preference", CHAT, "chosen and rejected", pairs.fits_preference, pairs.build_preference),
    Rule("messages", CHAT, "a list of objects with role and content", chats.fits_messages, chats.build_messages),
    Rule("sharegpt", CHAT, "a list of objects with from and value", chats.fits_sharegpt, chats.build_messages),
    Rule("tree", CHAT, "a message with replies", trees.fits_tree, trees.build_tree),
    Rule("prompt_completion", CHAT, "prompt and completion", pairs.fits_completion, pairs.build_completion),
    Rule("alpaca", CHAT, "instruction, input and output", pairs.fits_alpaca, pairs.build_alpaca),
    Rule("question_answer", CHAT, "question and answer", pairs.fits_question, pairs.build_question),
    Rule("dialogue_text", CHAT, "a text that starts with Human:", texts.fits_dialogue, texts.build_dialogue),
    Rule("prompt", PROMPTS, "prompt or question alone", pairs.fits_prompt, pairs.build_prompt),
    Rule("paragraphs", TEXT, "paragraphs with a context each", texts.fits_paragraphs, texts.build_paragraphs),
    Rule("text", TEXT, "one text", texts.fits_text, texts.build_text),
    Rule("retok", ANY, "a row written by retok", written.fits_written, written.build_written),
    Rule("ids", TOKENS, "input_ids and perhaps a mask", ids.fits_ids, ids.build_ids),
)
"""All layouts, in the order in which they are tried."""


FIELDS: frozenset[str] = frozenset(
    [
        *chats.MESSAGE_LISTS,
        *chats.TOOL_LISTS,
        *chats.ID_NAMES,
        *("system", "chosen", "rejected", "prompt", "replies", "role", "instruction", "input", "history", "paragraphs"),
        *pairs.COMPLETIONS,
        *pairs.QUESTIONS,
        *pairs.ANSWERS,
        *texts.TEXTS,
        *texts.DIALOGUES,
        *ids.IDS,
        *ids.MASKS,
        *("labels", "segments"),
        *written.COLUMNS,
    ]
)
"""All field names of a record that some layout looks at."""


def known_fields() -> frozenset[str]:
    """All field names of a record that some layout looks at."""
    return FIELDS


def layout_names() -> list[str]:
    """Names that a recipe's ``layout`` may have."""
    return [rule.name for rule in RULES]


class Layout:
    """Turns records of one data set into items.

    Args:
        spec: the data set.

    Raises:
        RecipeError: no such layout, or one that does not serve the mode.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self._function = own_function(spec.layout, "layout") if ":" in spec.layout else None
        self._rules = () if self._function else _eligible(spec)
        self._duplicates = DuplicateKeys(FIELDS, spec)

    def __call__(self, record: Record) -> list[Item]:
        """Items of a record, one or more.

        Raises:
            RecordRejected: with the reason why the record is none.
        """
        original = record.value or {}
        value = self.renamed(original)
        counts = dict(record.counts) if record.counts else {}
        if self._function:
            items = own_items(call_own(self._function, self.spec.layout, value), self.spec.layout, self.spec.mode)
        else:
            rule = self.rule_for(value)
            if not record.exact and record.raw is not None:
                self._duplicates.refuse(record.raw, original, counts)
            items = _built(rule, value, self.spec)
        for item in items:
            self._finish(item, value, original)
        if counts and items:
            mine = items[0].counts
            for name, count in counts.items():
                mine[name] = mine.get(name, 0) + count
        return items

    def rule_for(self, value: dict[str, Any]) -> Rule:
        """The layout of one record."""
        if self.spec.layout != "auto":
            return self._rules[0]
        for rule in self._rules:
            if rule.fits(value):
                return rule
        raise RecordRejected(RejectReason.unknown_layout, _no_layout(value, self.spec.mode))

    def renamed(self, value: dict[str, Any]) -> dict[str, Any]:
        """The record with the data's field names replaced by those that layouts use."""
        names = self.spec.fields
        if not names:
            return value
        renamed = _with_names(value, names)
        for name in chats.MESSAGE_LISTS:
            messages = renamed.get(name)
            if isinstance(messages, list):
                renamed[name] = [_with_names(m, names) if isinstance(m, dict) else m for m in messages]
        return renamed

    def _finish(self, item: Item, value: dict[str, Any], original: dict[str, Any]) -> None:
        """Fill in the id and kept columns, and hold a conversation to its mode."""
        if item.id is None:
            for name in chats.ID_NAMES:
                if name in value and isinstance(value[name], _ID_TYPES):
                    item.id = str(value[name])
                    break
        for name in self.spec.keep:
            if name in original:
                item.kept[name] = original[name]
        if isinstance(item, Conversation):
            item.output_markers = self.spec.tool_output_markers or ()
            check_conversation(item, self.spec)


def _with_names(value: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    found = {ours: value[theirs] for ours, theirs in names.items() if theirs in value}
    gone = {names[ours] for ours in found} - set(found)
    return {key: item for key, item in value.items() if key not in gone} | found


def _built(rule: Rule, value: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """Items of a record; data that a layout did not think of is the record's fault, not the run's."""
    try:
        return rule.build(value, spec)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
        detail = f"layout {rule.name} cannot read it: {type(error).__name__}: {error}"
        raise RecordRejected(RejectReason.bad_layout, detail[:500]) from error


def _no_layout(value: dict[str, Any], mode: str) -> str:
    """Why no layout fits, with the mode that would take the record if there is one."""
    keys = ", ".join(list(value)[:12]) or "none"
    detail = f"no layout for mode {mode} fits the keys: {keys}"
    other = next((rule for rule in RULES if rule.fits(value)), None)
    return f"{detail}; layout {other.name} would, in mode {min(other.modes)}" if other else detail


def check_conversation(item: Conversation, spec: DatasetSpec) -> None:
    """Hold a conversation to its data set's mode and tail.

    Raises:
        RecordRejected: ``no_prompt``, ``no_assistant``.
    """
    roles = [message["role"] for message in item.messages]
    if spec.mode == "prompts":
        if "user" not in roles:
            raise RecordRejected(RejectReason.no_prompt, f"no user message among {len(roles)}")
        return
    if "assistant" not in roles:
        raise RecordRejected(RejectReason.no_assistant, f"no assistant message among {len(roles)}")
    if roles[-1] in ("user", "tool"):
        if spec.tail == "cut":
            last = len(roles) - 1 - roles[::-1].index("assistant")
            item.counts["tail_cut"] = len(roles) - 1 - last
            del item.messages[last + 1 :]
            del item.flags[last + 1 :]
        else:
            item.counts["tail_untrained"] = 1


def _eligible(spec: DatasetSpec) -> tuple[Rule, ...]:
    # rows of a run are read as such where the recipe says that they are; elsewhere they are plain ids
    rules = tuple(r for r in RULES if spec.mode in r.modes and (r.name == "retok") == (spec.format == "retok"))
    if spec.layout == "auto":
        return rules
    chosen = [rule for rule in RULES if rule.name == spec.layout]
    if not chosen:
        msg = f"data set {spec.name!r}: {spec.layout!r} is no layout.{did_you_mean(spec.layout, layout_names())}"
        raise RecipeError(msg)
    if chosen[0] not in rules:
        legal = ", ".join(rule.name for rule in rules)
        msg = f"data set {spec.name!r}: layout {spec.layout!r} does not serve mode {spec.mode!r}; these do: {legal}"
        raise RecipeError(msg)
    return (chosen[0],)


def layout_for(dataset_spec: DatasetSpec) -> Layout:
    """The layout of a data set; see :class:`Layout` for the errors."""
    return Layout(dataset_spec)


@dataclass(slots=True)
class LayoutEvidence:
    """What a sample of records tells about a data set's layout.

    Attributes:
        records: how many were looked at.
        layouts: records by the layout found.
        keys: records by their keys, the most frequent first.
        rejected: records by the reason why none fits or none can be built.
        examples: one detail a reason.
    """

    records: int = 0
    layouts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)


def detect_layout(records: Iterable[Record], dataset_spec: DatasetSpec) -> LayoutEvidence:
    """Look at a sample of records and count what they are."""
    layout = Layout(dataset_spec)
    found: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    evidence = LayoutEvidence()
    rejected: Counter[str] = Counter()
    for record in records:
        evidence.records += 1
        value = record.value or {}
        keys[", ".join(value)] += 1
        try:
            name = dataset_spec.layout if ":" in dataset_spec.layout else layout.rule_for(layout.renamed(value)).name
            found[name] += 1
            layout(record)
        except RecordRejected as problem:
            rejected[problem.reason.value] += 1
            evidence.examples.setdefault(problem.reason.value, problem.detail)
    evidence.layouts = dict(found.most_common())
    evidence.keys = dict(keys.most_common(5))
    evidence.rejected = dict(rejected.most_common())
    return evidence
