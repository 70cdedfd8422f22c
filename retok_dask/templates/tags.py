"""``{% generation %}`` tags: kept to, and compared with what the segments say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from retok_dask.templates.history import TRAINED
from retok_dask.types import Kind

if TYPE_CHECKING:
    from retok_dask.types import Counts, Rendered


def keep_to_tags(row: Rendered, tags: list[tuple[int, int]], counts: Counts) -> None:
    """Take out of training what stands outside of tags, as the template's author says.

    Args:
        row: its spans are cut at the tags' ends; what the assistant said outside
            becomes ``scaffold``, and a stop ``trailer``.
        tags: character ranges, ascending and disjoint.
        counts: ``outside_generation_tags`` is counted here.
    """
    spans = list(zip(row.starts, [*row.starts[1:], len(row.text)], row.kinds, row.messages, strict=True))
    kept: list[tuple[int, int, int]] = []
    tags = [tag for tag in tags if tag[0] < tag[1]]
    at = 0
    for start, end, kind, owner in spans:
        while at < len(tags) and tags[at][1] <= start:
            at += 1
        outside = int(Kind.trailer if kind == Kind.stop else Kind.scaffold)
        position, tag = start, at
        while position < end:
            inside = tag < len(tags) and tags[tag][0] <= position
            stop = end if tag == len(tags) else min(end, tags[tag][inside])
            becomes = kind if inside or kind not in TRAINED else outside
            if kind in TRAINED and not inside:
                counts["outside_generation_tags"] += 1
            if not kept or kept[-1][1:] != (becomes, owner):
                kept.append((position, becomes, owner))
            position = stop
            tag += inside
    row.starts, row.kinds, row.messages = ([span[part] for span in kept] for part in range(3))


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
