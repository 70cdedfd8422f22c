"""Documents far above the usual: cut where that is exact, else encoded whole within limits.

The cost of joining bytes grows faster than a piece, and an engine's memory
with the text it is given, so a text of a gigabyte is encoded in parts of
:data:`PART` characters, cut where :class:`~retok_dask.tokenizers.cuts.CutRule`
shows that the ids stay the same. Where it shows no cut (base64 without a line
end, one character repeated) the stretch stays whole, up to :data:`WHOLE`
characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from retok_dask.errors import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from retok_dask.tokenizers.cuts import CutRule
    from retok_dask.tokenizers.engines import Engine, Flat

PART = 1 << 18
"""Characters of one part."""
LOOK_BACK = 1 << 13
"""How far before the end of a part a cut is looked for, before looking onwards."""
GROUP = 1 << 23
"""Characters given to the engine in one call."""
WHOLE = 1 << 23
"""Longest stretch without an exact cut that is still encoded."""


class TooLarge(ValueError):
    """A stretch of text without an exact cut is longer than :data:`WHOLE`."""


def parts(text: str, rule: CutRule) -> Iterator[str]:
    """The text in parts whose ids, one after the other, are the text's ids.

    Raises:
        TooLarge: where it cannot be cut.
    """
    at = 0
    while len(text) - at > PART:
        stop = at + PART
        place = rule.last_cut(text, max(at, stop - LOOK_BACK), stop)
        if place is None:
            place = rule.first_cut(text, stop)
        if place is None:
            break
        _check(place - at)
        yield text[at:place]
        at = place
    _check(len(text) - at)
    yield text[at:] if at else text


def normalize_long(normalize: Callable[[str], str], rule: CutRule, text: str) -> str:
    """A text of any length in NFC, by a function that needs many times the memory of what it is given.

    No character that parts begin with changes, whatever stands before it (see :data:`cuts.SECOND`).
    """
    try:
        return normalize(text) if len(text) <= PART else "".join(map(normalize, parts(text, rule)))
    except TooLarge:
        return text  # nor is it encoded


def _check(length: int) -> None:
    if length > WHOLE:
        msg = f"{count_of(length, 'character')} without a place to cut exactly; the limit is {WHOLE:,}"
        raise TooLarge(msg)


def encode_long(texts: Sequence[str], engine: Engine, rule: CutRule) -> Flat:
    """Encode texts of any length; each one's ids equal those of encoding it in one piece.

    Raises:
        TooLarge: see :func:`parts`; callers look at each text before.
    """
    if all(len(text) <= PART for text in texts):
        return engine.encode(texts)
    ids = []
    sizes = np.zeros(len(texts), np.int64)
    for group in _groups(texts, rule):
        found, splits = engine.encode([part for _, part in group])
        ids.append(found)
        np.add.at(sizes, [number for number, _ in group], np.diff(splits))
    return np.concatenate(ids), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _groups(texts: Sequence[str], rule: CutRule) -> Iterator[list[tuple[int, str]]]:
    group: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        for part in parts(text, rule):
            group.append((number, part))
            size += len(part)
            if size >= GROUP:
                yield group
                group, size = [], 0
    if group:
        yield group


def can_encode(text: str, rule: CutRule) -> str | None:
    """None if the text is within limits, else why not."""
    if len(text) <= WHOLE:
        return None
    try:
        for _ in parts(text, rule):
            pass
    except TooLarge as error:
        return str(error)
    return None
