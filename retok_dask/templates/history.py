"""What each way of keeping history costs, measured on conversations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retok_dask.types import Kind, RecordRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retok_dask.templates.template import ChatTemplate
    from retok_dask.types import Conversation, Rendered

TRAINED = frozenset({Kind.reasoning, Kind.content, Kind.tool_call, Kind.stop})
"""Kinds that the default policy trains."""


@dataclass(slots=True)
class HistoryCost:
    """What one ``history`` setting makes of some conversations, in the unit that was asked for.

    Attributes:
        records: conversations, those that were rejected included.
        rows: samples.
        size: characters (or tokens) of all rows.
        trained: those of them that the default policy trains.
        reasoning_lost: characters of reasoning that no row trains.
        rejected: conversations that could not be rendered.
    """

    records: int = 0
    rows: int = 0
    size: int = 0
    trained: int = 0
    reasoning_lost: int = 0
    rejected: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def history_costs(
    template: ChatTemplate,
    conversations: Iterable[Conversation],
    measure: Callable[[Rendered], tuple[int, int]] | None = None,
) -> dict[str, HistoryCost]:
    """Cost of ``whole``, ``per_turn`` and ``auto`` on a sample of conversations.

    Args:
        template: the chat template.
        conversations: a sample.
        measure: gives size and trained size of a row, such as in tokens;
            None counts characters.
    """
    measure = measure or characters
    costs = {name: HistoryCost() for name in ("whole", "per_turn", "auto")}
    for conversation in conversations:
        try:
            whole = [template.render_whole(conversation)]
        except RecordRejected:
            whole = None
        try:
            turns = template.render_turns(conversation)
        except RecordRejected:
            turns = None
        drops = bool(whole and whole[0].counts.get("reasoning_dropped"))
        for name, rows in (("whole", whole), ("per_turn", turns), ("auto", turns if drops else whole)):
            _add(costs[name], rows, measure)
    return costs if costs["whole"].records else {}


def _add(cost: HistoryCost, rows: list[Rendered] | None, measure: Callable[[Rendered], tuple[int, int]]) -> None:
    cost.records += 1
    if rows is None:
        cost.rejected += 1
        return
    for row in rows:
        size, trained = measure(row)
        cost.rows += 1
        cost.size += size
        cost.trained += trained
    if rows[0].turn < 0:
        cost.reasoning_lost += rows[0].counts.get("reasoning_dropped_chars", 0)
    else:
        cost.reasoning_lost += _lost_in_turns(rows)


def _lost_in_turns(rows: list[Rendered]) -> int:
    """Reasoning that even the row made for its own turn does not hold."""
    before, lost = 0, 0
    for row in rows:
        given = row.counts.get("reasoning_chars", 0)
        mine, before = given - before, given
        owned = any(
            kind == Kind.reasoning and owner == row.turn for kind, owner in zip(row.kinds, row.messages, strict=True)
        )
        lost += 0 if owned else max(mine, 0)
    return lost


def characters(row: Rendered) -> tuple[int, int]:
    """Characters of a row, and those that the default policy trains."""
    ends = [*row.starts[1:], len(row.text)]
    trained = sum(
        end - start
        for start, end, kind, owner in zip(row.starts, ends, row.kinds, row.messages, strict=True)
        if kind in TRAINED and (row.turn < 0 or owner == row.turn)
    )
    return len(row.text), trained
