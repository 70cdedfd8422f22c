"""Looking at completions before anything is run: what layouts, roles, lengths and odd records there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.compare.language import language_of
from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.errors import RetokError, count_of
from retok_dask.kernel import Kernel
from retok_dask.recipe import Recipe
from retok_dask.templates import control_strings, require_same_text
from retok_dask.types import Conversation, Document, Record, RecordRejected, Reject
from retok_dask.views import plots
from retok_dask.views.conversation import ConversationView, conversation_view
from retok_dask.views.loaded import template_of, tokenizer_of
from retok_dask.views.stack import Stack
from retok_dask.views.summary import Summary, cell, counts_table, percent, size, table
from retok_dask.views.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retok_dask.completions import Layout, Unit
    from retok_dask.recipe import DatasetSpec


_ODD = 200
"""Records that would be rejected that are kept to be shown."""


@dataclass
class DatasetLook:
    """What was found in one data set; numbers count conversations unless they say otherwise."""

    name: str
    files: int
    stored_bytes: int
    records: int = 0
    conversations: int = 0
    documents: int = 0
    messages: int = 0
    with_reasoning: int = 0
    with_tools: int = 0
    tool_calls: int = 0
    characters: int = 0
    reasoning_characters: int = 0
    whole: bool = False
    layouts: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    writing: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    kept: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lengths: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)


@dataclass(repr=False)
class Exploration:
    """What the first records of a recipe's data sets look like; draws itself.

    Attributes:
        looks: by data set.
        odd: records that would be rejected: data set, file, row, reason, detail.
        examples: a few conversations worth looking at, by what is special about them.
        unrendered: why nothing was rendered, by data set, where tokenizer or template cannot be used.
    """

    looks: dict[str, DatasetLook]
    odd: list[tuple[str, str, int, str, str]]
    examples: dict[str, Conversation]
    unrendered: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, by data set."""
        return {name: _plain(look) for name, look in self.looks.items()}

    def summary(self) -> Summary:
        """All numbers as tables."""
        looks = list(self.looks.values())
        columns = [
            "data set",
            "files",
            "size",
            "records read",
            "conversations",
            "messages",
            "reasoning",
            "tools",
            "calls",
        ]
        rows = [
            (
                look.name,
                look.files,
                size(look.stored_bytes),
                f"{cell(look.records)}{' (all)' if look.whole else ''}",
                look.conversations,
                look.messages,
                percent(look.with_reasoning, look.conversations),
                percent(look.with_tools, look.conversations),
                look.tool_calls,
            )
            for look in looks
        ]
        summary = Summary("Completions", tables=[table("", columns, rows)])
        for title, name, attribute, what, of in (
            ("Layouts found", "layout", "layouts", "records", ""),
            ("Roles", "role", "roles", "messages", ""),
            ("Languages", "language or script", "writing", "conversations", ""),
            ("What reading put in order", "change", "changes", "times", "changes"),
            ("Records that would be rejected", "reason", "rejected", "records", "rejects"),
        ):
            total: Counter[str] = sum((getattr(look, attribute) for look in looks), Counter())
            if total:
                summary.tables.append(counts_table(title, total, name=name, number=what, of=of))
        return summary

    def odd_records(self, limit: int = 30) -> Summary:
        """Records that would be rejected, with the place where they lie."""
        rows = [(name, file.rsplit("/", 1)[-1], row, reason, detail) for name, file, row, reason, detail in self.odd]
        columns = ["data set", "file", "row", "reason", "detail"]
        lines = [
            f"{name}: what only rendering finds is not here: {one_line(why, 300)}"
            for name, why in self.unrendered.items()
        ]
        if not rows:
            read = sum(look.records for look in self.looks.values())
            none = f"Of {count_of(read, 'record')} read none would be rejected, as far as reading and rendering tell."
            lines.insert(0, none if read else "There was no record to read.")
        return Summary("Odd records", lines=lines, tables=[table("", columns, rows, limit=limit)] if rows else [])

    def kept_values(self) -> Summary:
        """Values of the columns that the recipe keeps, such as a language."""
        tables = []
        for name in sorted({name for look in self.looks.values() for name in look.kept}):
            total: Counter[str] = sum((look.kept[name] for look in self.looks.values() if name in look.kept), Counter())
            tables.append(counts_table(name, total, name="value", number="conversations"))
        lines = [] if tables else ["The records read have no columns that the recipe keeps."]
        return Summary("Kept columns", lines=lines, tables=tables)

    def lengths(self) -> plots.Plot:
        """Conversations by their length in characters."""
        series = {name: {"lengths": dict(look.lengths), "tokens": look.characters} for name, look in self.looks.items()}
        return plots.lengths(series, title="Length of conversations", unit="characters", rows="conversations")

    def view(self, name: str) -> ConversationView:
        """One of the examples as a conversation.

        Raises:
            KeyError: there is no such example; see ``examples``.
        """
        return conversation_view(self.examples[name])

    def gallery(self) -> Stack:
        """All examples as conversations, each under what is special about it."""
        stack = Stack(nothing="The records read hold no conversation.")
        for name in self.examples:
            stack.add(name, self.view(name))
        return stack

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_text(self) -> str:
        return self.summary().to_text()

    __str__ = to_text
    __repr__ = to_text


def _plain(look: DatasetLook) -> dict[str, Any]:
    data = {name: value for name, value in vars(look).items() if name != "kept"}
    return data | {"kept": {name: dict(values) for name, values in look.kept.items()}}


def explore(recipe: Recipe | str | Path, *, records: int = 2000) -> Exploration:
    """Read the first records of each data set and say what they are.

    They are rendered where tokenizer and template can be used, to find what
    only that rejects. Nothing is encoded, and no cluster is needed.

    Args:
        recipe: its data sets are read; a recipe, or the path of its YAML file.
        records: at most so many of each data set, spread over its units.

    Raises:
        InputError: a pattern matches nothing.
    """
    recipe = Recipe.of(recipe)
    listing = list_inputs(recipe)
    looks: dict[str, DatasetLook] = {}
    odd: list[tuple[str, str, int, str, str]] = []
    best: dict[str, tuple[int, Conversation]] = {}
    unrendered: dict[str, str] = {}
    for spec in recipe.datasets:
        files = [file for file in listing.files if file.dataset == spec.name]
        look = looks[spec.name] = DatasetLook(spec.name, len(files), sum(file.size for file in files))
        layout = layout_for(spec)
        kernel = _kernel(recipe, spec, unrendered)
        units = [unit for unit in listing.units if unit.dataset == spec.name]
        for record in _spread(units, spec, recipe, records, look):
            look.records += 1
            refused = record if isinstance(record, Reject) else _note_record(look, layout, record, best)
            if kernel is not None:
                refused = next((one for one in kernel.left_out([record]) if isinstance(one, Reject)), None)
            if refused is not None:
                look.rejected[str(refused.reason)] += 1
                if len(odd) < _ODD:
                    place = (look.name, refused.file, refused.row)
                    odd.append((*place, str(refused.reason), one_line(refused.detail, 200)))
    return Exploration(looks, odd, {name: item for name, (_, item) in best.items()}, unrendered)


def _kernel(recipe: Recipe, spec: DatasetSpec, unrendered: dict[str, str]) -> Kernel | None:
    """What renders a data set's records; None, and why, where tokenizer or template cannot be used."""
    try:
        tokenizer = tokenizer_of(recipe)
        template = template_of(recipe) if spec.mode in {"chat", "prompts"} else None
        if template is not None:
            require_same_text(template, tokenizer)
            if not recipe.template.plain_markers:
                tokenizer.require_control(control_strings(template))
        return Kernel(recipe, spec, tokenizer, template)
    except RetokError as error:
        unrendered[spec.name] = str(error)
        return None


def _spread(
    units: list[Unit], spec: DatasetSpec, recipe: Recipe, records: int, look: DatasetLook
) -> Iterator[Record | Reject]:
    """The first records of each unit, so that every part of a data set is seen."""
    share = max(1, -(-records // max(1, len(units))))
    look.whole = True
    for unit in units[:records]:
        for number, record in enumerate(read_records(unit, spec, recipe)):
            if number == share:
                look.whole = False
                break
            yield record
    look.whole &= len(units) <= records


def _note_record(
    look: DatasetLook, layout: Layout, record: Record, best: dict[str, tuple[int, Conversation]]
) -> Reject | None:
    """Count what a record holds; a reject where it is none that the layout knows."""
    try:
        items = layout(record)
        if record.value is not None and ":" not in layout.spec.layout:
            look.layouts[layout.rule_for(record.value).name] += 1
    except RecordRejected as problem:
        return Reject(record.file, record.row, record.offset, problem.reason, problem.detail, record.raw)
    for item in items:
        look.changes.update(item.counts)
        for name, value in item.kept.items():
            look.kept[name][one_line(value, 60)] += 1
        if isinstance(item, Conversation):
            _note_conversation(look, item, best)
        elif isinstance(item, Document):
            look.documents += 1
            _note_length(look, item.text)
    return None


def _note_length(look: DatasetLook, text: str) -> None:
    look.characters += len(text)
    look.lengths[str(max(1, len(text)).bit_length() - 1)] += 1
    look.writing[language_of(text)] += 1


def _note_conversation(look: DatasetLook, item: Conversation, best: dict[str, tuple[int, Conversation]]) -> None:
    texts: list[str] = []
    thoughts = calls = 0
    for message in item.messages:
        look.roles[one_line(message.get("role"), 40)] += 1
        content, thought = message.get("content"), message.get("reasoning_content")
        texts += [part for part in (content, thought) if isinstance(part, str)]
        thoughts += len(thought) if isinstance(thought, str) else 0
        calls += len(message.get("tool_calls") or ())
    text = "\n".join(texts)
    look.conversations += 1
    look.messages += len(item.messages)
    look.turns[len(item.messages)] += 1
    look.with_reasoning += thoughts > 0
    look.with_tools += bool(item.tools)
    look.tool_calls += calls
    look.reasoning_characters += thoughts
    _note_length(look, text)
    for name, score in (
        ("longest", len(text)),
        ("most messages", len(item.messages)),
        ("most reasoning", thoughts),
        ("most tool calls", calls),
        (f"first of {look.name}", int(look.conversations == 1)),
    ):
        if score > best.get(name, (0, item))[0]:
            best[name] = (score, item)
