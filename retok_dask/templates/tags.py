"""``{% generation %}`` tags compared with what the segments say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from retok_dask.templates.history import TRAINED
from retok_dask.types import Kind

if TYPE_CHECKING:
    from retok_dask.types import Rendered


class TagDifference(NamedTuple):
    """A text on which tags and the default policy disagree.

    Attributes:
        kind: its segment's kind.
        tagged: True if it stands within tags and the policy does not train it,
            False if the policy trains it and it stands outside.
        text: the text.
        message: its message, -1 for none.
    """

    kind: str
    tagged: bool
    text: str
    message: int


def tag_differences(row: Rendered, tags: list[tuple[int, int]]) -> list[TagDifference]:
    """Texts on which a row's segments (made without regard to tags) and its tags disagree."""
    found = []
    ends = [*row.starts[1:], len(row.text)]
    for start, end, kind, owner in zip(row.starts, ends, row.kinds, row.messages, strict=True):
        position = start
        while position < end:
            inside = next((tag for tag in tags if tag[0] <= position < tag[1]), None)
            ahead = min((tag[0] for tag in tags if tag[0] > position), default=end)
            stop = min(end, inside[1] if inside else ahead)
            if (kind in TRAINED) != (inside is not None):
                found.append(TagDifference(Kind(kind).name, inside is not None, row.text[position:stop], owner))
            position = stop
    return found
