"""Looking at completions before anything is run: what layouts, roles, lengths and odd records there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.compare.language import language_of
from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.recipe import Recipe
from retok_dask.types import Conversation, Document, Record, RecordRejected, Reject
from retok_dask.views import plots
from retok_dask.views.conversation import ConversationView, conversation_view
from retok_dask.views.stack import Stack
from retok_dask.views.summary import Summary, cell, counts_table, percent, size, table
from retok_dask.views.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retok_dask.completions import Layout, Unit
    from retok_dask.recipe import DatasetSpec


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
    """

    looks: dict[str, DatasetLook]
    odd: list[tuple[str, str, int, str, str]]
    examples: dict[str, Conversation]

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
        for title, name, attribute, what in (
            ("Layouts found", "layout", "layouts", "records"),
            ("Roles", "role", "roles", "messages"),
            ("Languages", "language or script", "writing", "conversations"),
            ("What reading put in order", "change", "changes", "times"),
            ("Records that would be rejected", "reason", "rejected", "records"),
        ):
            total: Counter[str] = sum((getattr(look, attribute) for look in looks), Counter())
            if total:
                summary.tables.append(counts_table(title, total, name=name, number=what))
        return summary

    def odd_records(self, limit: int = 30) -> Summary:
        """Records that would be rejected, with the place where they lie."""
        rows = [(name, file.rsplit("/", 1)[-1], row, reason, detail) for name, file, row, reason, detail in self.odd]
        columns = ["data set", "file", "row", "reason", "detail"]
        return Summary("Odd records", tables=[table("", columns, rows, limit=limit)])

    def kept_values(self) -> Summary:
        """Values of the columns that the recipe keeps, such as a language."""
        tables = []
        for name in sorted({name for look in self.looks.values() for name in look.kept}):
            total: Counter[str] = sum((look.kept[name] for look in self.looks.values() if name in look.kept), Counter())
            tables.append(counts_table(name, total, name="value", number="conversations"))
        return Summary("Kept columns", tables=tables)

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
        return Stack([(name, self.view(name)) for name in self.examples])

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

    Nothing is rendered or encoded, and no cluster is needed.

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
    for spec in recipe.datasets:
        files = [file for file in listing.files if file.dataset == spec.name]
        look = looks[spec.name] = DatasetLook(spec.name, len(files), sum(file.size for file in files))
        layout = layout_for(spec)
        units = [unit for unit in listing.units if unit.dataset == spec.name]
        for record in _spread(units, spec, recipe, records, look):
            look.records += 1
            if isinstance(record, Reject):
                _note_reject(look, odd, record.file, record.row, record.reason, record.detail)
            else:
                _note_record(look, layout, record, odd, best)
    return Exploration(looks, odd, {name: item for name, (_, item) in best.items()})


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


def _note_reject(
    look: DatasetLook, odd: list[tuple[str, str, int, str, str]], file: str, row: int, reason: str, detail: str
) -> None:
    look.rejected[str(reason)] += 1
    if len(odd) < 200:
        odd.append((look.name, file, row, str(reason), one_line(detail, 200)))


def _note_record(
    look: DatasetLook,
    layout: Layout,
    record: Record,
    odd: list[tuple[str, str, int, str, str]],
    best: dict[str, tuple[int, Conversation]],
) -> None:
    try:
        items = layout(record)
        if record.value is not None and ":" not in layout.spec.layout:
            look.layouts[layout.rule_for(record.value).name] += 1
    except RecordRejected as problem:
        _note_reject(look, odd, record.file, record.row, problem.reason, problem.detail)
        return
    for item in items:
        look.changes.update(item.counts)
        for name, value in item.kept.items():
            look.kept[name][one_line(value, 60)] += 1
        if isinstance(item, Conversation):
            _note_conversation(look, item, best)
        elif isinstance(item, Document):
            look.documents += 1
            _note_length(look, item.text)


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
