"""Which language a text is in, as far as its letters tell."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

SAMPLE = 2000
"""Characters of a text that are looked at."""

_CODE = re.compile(r"[{}()\[\];=<>_\\]")
_SCRIPTS = {
    "LATIN": "Latin",
    "CYRILLIC": "Cyrillic",
    "GREEK": "Greek",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "THAI": "Thai",
    "HANGUL": "Korean",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "CJK": "Chinese",
}


def language_of(text: str) -> str:
    """A language where its script is its own, else a script, or ``code``.

    >>> language_of("Guten Tag"), language_of("今日は良い天気です"), language_of("for (i = 0; i < n; i++) { x[i] = y; }")
    ('Latin', 'Japanese', 'code')
    """
    sample = text[:SAMPLE]
    counts = Counter(filter(None, map(_script, sample)))
    if not counts:
        return "no letters"
    if len(_CODE.findall(sample)) > len(sample) / 16 and counts["Latin"] >= counts.total() / 2:
        return "code"
    # Japanese mixes Chinese characters with its own, and they may be more
    if counts["Japanese"] > counts["Chinese"] / 10 and counts["Japanese"] + counts["Chinese"] > counts.total() / 2:
        return "Japanese"
    return counts.most_common(1)[0][0]


@lru_cache(maxsize=20_000)
def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    first = re.split(r"[ -]", unicodedata.name(character, ""), maxsplit=1)[0]
    return _SCRIPTS.get(first, "other")
