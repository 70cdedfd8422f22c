"""What stands before the conversation proper: BOS, system text and tools."""

from __future__ import annotations

from typing import NamedTuple

from retok_dask.types import Kind


class Head(NamedTuple):
    """What stands before the conversation proper.

    Attributes:
        text: all of it.
        start: where the BOS token ends.
        system: the text of a leading system message, or empty.
        owner: 0 if runs of it are that message's, else -1.
    """

    text: str
    start: int
    system: str
    owner: int


def head_spans(head: Head, bare: str | None) -> list[tuple[int, Kind, int]]:
    """Spans after the BOS token.

    Args:
        head: the text.
        bare: the same without tools; None where there are none.
    """
    owner = 0 if head.system and head.text.find(head.system, head.start) >= 0 else head.owner
    spans = [(head.start, Kind.system, owner)]
    first, last = _inserted(head.text, bare, head.start) if bare is not None else (0, 0)
    if first < last:  # what is there only because of the tools
        spans.append((first, Kind.tools, -1))
        if last < len(head.text):
            spans.append((last, Kind.system, owner))
    return spans


def _inserted(here: str, bare: str, start: int) -> tuple[int, int]:
    """Where the one stretch of a text lies, from `start` on, that another text does not have."""
    head = _common_head(here, bare)
    tail = _common_head(here[: head - 1 if head else None : -1], bare[: head - 1 if head else None : -1])
    first, last = max(head, start), len(here) - tail
    if first > start and here[first - 1] == here[last - 1] and here[first - 1] in "<[{(":
        first, last = first - 1, last - 1  # the same difference, told from the opening bracket on
    return first, last


def _common_head(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
