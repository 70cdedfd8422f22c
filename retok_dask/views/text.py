"""Making hostile text harmless and invisible text visible."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

from retok_dask.errors import count_of

_MARKS = {" ": "·", "\t": "→", "\n": "↵", "\r": "␍", "\u00a0": "⍽"}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")


class Piece(NamedTuple):
    """A stretch of text; ``mark`` says that it stands for something that has no shape of its own."""

    text: str
    mark: bool


def code_point(character: str) -> str:
    """``⟨U+202E⟩`` for a character that must not act on its surroundings."""
    return f"⟨U+{ord(character):04X}⟩"


def pieces(text: str) -> list[Piece]:
    """Split text into what can be shown as it is and marks for white space and hidden characters.

    Every blank, tab and line break becomes a mark; control, format (bidi
    overrides, zero-width joiners), surrogate and private-use characters
    become their code point.
    """
    out: list[Piece] = []
    plain = 0
    for index, character in enumerate(text):
        if character.isascii() and character.isprintable() and character != " ":
            continue
        mark = _MARKS.get(character)
        if mark is None:
            category = unicodedata.category(character)
            if category == "Zs" or category in _HIDDEN:
                mark = code_point(character)
        if mark is not None:
            if plain < index:
                out.append(Piece(text[plain:index], mark=False))
            out.append(Piece(mark, mark=True))
            plain = index + 1
    if plain < len(text):
        out.append(Piece(text[plain:], mark=False))
    return out


def harmless(value: object, limit: int = 400) -> str:
    """Any value as text for people: hidden characters made visible, cut after `limit` characters.

    Tabs, line breaks and the joiners inside emoji stay, since they only act
    inside the text. A cut says how much is missing.
    """
    text = value if isinstance(value, str) else str(value)
    cut = text[:limit]
    shown = "".join(
        character
        if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in _HIDDEN
        else code_point(character)
        for character in cut
    )
    missing = len(text) - len(cut)
    return f"{shown}… (+{count_of(missing, 'character')})" if missing else shown


def one_line(value: object, limit: int = 120) -> str:
    """As :func:`harmless`, line breaks and tabs shown as marks."""
    return harmless(value, limit).replace("\n", "↵").replace("\t", "→")
