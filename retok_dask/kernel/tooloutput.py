"""Tool output that sits inside an answer's text, between markers that the data set names: seen, not written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retok_dask.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.types import Rendered

WRITTEN = frozenset({Kind.reasoning, Kind.content})
"""Kinds of text in which output can sit."""


def tool_output(markers: tuple[str, str]) -> Callable[[Rendered], Rendered]:
    """The function that gives text between two markers the kind ``tool``, the markers with it.

    An output whose closing marker is missing reaches to the end of its part.
    The row's counts say how many were found (``tool_output_in_answer``), and
    how many of these were not closed (``tool_output_not_closed``).

    Args:
        markers: opening and closing text; they may be equal.
    """
    opening, closing = map(re.escape, markers)
    output = re.compile(rf"{opening}.*?(?:{closing}|(\Z))", re.DOTALL)

    def mark(row: Rendered) -> Rendered:
        spans: list[tuple[int, int, int]] = []
        found = open_ends = 0
        ends = [*row.starts[1:], len(row.text)]
        for start, end, kind, message in zip(row.starts, ends, row.kinds, row.messages, strict=True):
            at = start
            for part in output.finditer(row.text, start, end) if kind in WRITTEN else ():
                spans += [(at, kind, message)] if part.start() > at else []
                spans.append((part.start(), int(Kind.tool), message))
                at = part.end()
                found += 1
                open_ends += part.group(1) is not None
            spans += [(at, kind, message)] if at < end else []
        if found:
            row.starts, row.kinds, row.messages = (list(column) for column in zip(*spans, strict=True))
            counts = {"tool_output_in_answer": found, "tool_output_not_closed": open_ends}
            row.counts = row.counts | {name: number for name, number in counts.items() if number}
        return row

    return mark
