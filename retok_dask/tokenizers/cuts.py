"""Where a long text may be cut so that the ids of its parts are the ids of the whole.

A byte-level tokenizer splits a text by regular expressions, from left to
right, and joins bytes only inside a piece. A cut between two characters is
exact if, for every expression, no match can hold the two side by side, no
look-ahead can look past the cut, and at least one expression always matches
the first of them. This is shown from the alternatives of each expression:
which of their atoms can match which of the two characters is asked of the
tokenizer's own regex engine. Anything that is not understood means no cut.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECOND = ' \n\t.,;:!?()[]{}<>"=/\\-_#*|&%$@+~^`。，、！？；：「」（）'
"""Characters to cut before: none of them changes under NFC, whatever stands before it."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `tokenizers` splits by in its ByteLevel step, where that step splits at all."""

_ATOM = re.compile(
    r"""(?P<look>\(\?![^()]*\))            # negative look-ahead
      | (?P<body>\(\?i:[^()]*\)            # a group of plain alternatives
      | \[(?:\\.|\[(?:\\.|[^\]\\])*\]|[^\]\\\[])*\]   # a class, one level of nesting
      | \\[pP]\{\^?\w+\}|\\[sSdDwWrntfv]|\\[^A-Za-z0-9]|[^()\[\]|?*+{}\\^$.])
        (?P<times>[?*+]|\{\d+(?:,\d*)?\})?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Atom:
    pattern: str
    optional: bool
    repeats: bool


@dataclass(frozen=True, slots=True)
class _Alternative:
    atoms: tuple[_Atom, ...]
    looks_ahead: bool


class CutRule:
    """Decides whether a text may be cut between two characters, for one tokenizer.

    Attributes:
        possible: False where nothing can be shown for this tokenizer.
    """

    def __init__(self, definition: Mapping[str, Any]) -> None:
        patterns = _patterns(definition)
        parsed = [_parse(pattern) for pattern in patterns or ()]
        added = definition.get("added_tokens", ())
        self._contents = [token["content"] for token in added]
        self.possible = bool(parsed) and None not in parsed and not any(token["single_word"] for token in added)
        self._splits: list[tuple[_Alternative, ...]] = [split for split in parsed if split] if self.possible else []
        self._known: dict[str, bool] = {}
        self._matches: dict[tuple[str, str], bool] = {}

    def allows(self, pair: str) -> bool:
        """Whether a cut between the two characters of `pair` is exact."""
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = self._show(pair[0], pair[1])
        return known

    def last_cut(self, text: str, start: int, stop: int) -> int | None:
        """The last exact cut in ``text[start:stop]``, or None."""
        if not self.possible:
            return None
        for place in range(stop - 1, start, -1):
            if text[place] in SECOND and self.allows(text[place - 1 : place + 1]):
                return place
        return None

    def first_cut(self, text: str, start: int) -> int | None:
        """The first exact cut after `start`, or None."""
        if not self.possible:
            return None
        for match in _SECOND_CLASS.finditer(text, start + 1):
            if self.allows(text[match.start() - 1 : match.start() + 1]):
                return match.start()
        return None

    def _show(self, first: str, second: str) -> bool:
        if not self.possible or second not in SECOND or not (first.isalpha() or first.isdecimal()):
            return False
        # what NFC may join to the character before it is no sign of what stands before the cut
        if (
            unicodedata.normalize("NFC", first) != first
            or "\u1100" <= first <= "\u11ff"
            or any(first + second in text for text in self._contents)
        ):
            return False
        return all(self._separates(split, first, second) for split in self._splits) and any(
            self._always_matches(split, first) for split in self._splits
        )

    def _separates(self, split: tuple[_Alternative, ...], first: str, second: str) -> bool:
        for alternative in split:
            places = [i for i, atom in enumerate(alternative.atoms) if self._can(atom, first)]
            if not places:
                continue
            if alternative.looks_ahead:
                return False
            earliest = places[0]
            for i, atom in enumerate(alternative.atoms):
                if self._can(atom, second) and (i > earliest or (i == earliest and atom.repeats)):
                    return False
        return True

    def _always_matches(self, split: tuple[_Alternative, ...], char: str) -> bool:
        for alternative in split:
            needed = [atom for atom in alternative.atoms if not atom.optional]
            if not alternative.looks_ahead and len(needed) == 1 and self._can(needed[0], char):
                return True
        return False

    def _can(self, atom: _Atom, char: str) -> bool:
        """Whether an atom can match something that holds this character; groups count as all their letters."""
        if atom.pattern.startswith("(?i:"):
            return any(
                unicodedata.normalize("NFKC", char).casefold() in part.casefold()
                for part in atom.pattern[4:-1].split("|")
            )
        key = (atom.pattern, char)
        if key not in self._matches:
            self._matches[key] = _onig_matches(atom.pattern, char)
        return self._matches[key]


_SECOND_CLASS = re.compile(f"[{re.escape(SECOND)}]")


def _onig_matches(pattern: str, char: str) -> bool:
    from tokenizers import Regex  # noqa: PLC0415  native library, loaded when a tokenizer is
    from tokenizers.pre_tokenizers import Split  # noqa: PLC0415

    return not Split(Regex(pattern), "removed").pre_tokenize_str(char)


def _patterns(definition: Mapping[str, Any]) -> list[str] | None:
    """The split expressions of a byte-level pre-tokenizer in order; None if a step is something else."""
    step = definition.get("pre_tokenizer") or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    found: list[str] = []
    for part in steps:
        if part.get("type") == "ByteLevel":
            found += [GPT2_PATTERN] if part.get("use_regex", True) else []
        elif (
            part.get("type") == "Split"
            and part["behavior"] == "Isolated"
            and not part["invert"]
            and "Regex" in part["pattern"]
        ):
            found.append(part["pattern"]["Regex"])
        elif part.get("type") == "Digits":
            found.append(r"\p{N}" if part["individual_digits"] else r"\p{N}+")
        else:
            return None
    return found


def _parse(pattern: str) -> tuple[_Alternative, ...] | None:
    """The alternatives of a flat expression; None if there is anything in it that is not understood."""
    found = []
    for text in _alternatives(pattern):
        atoms: list[_Atom] = []
        looks = False
        at = 0
        while at < len(text):
            match = _ATOM.match(text, at)
            if match is None or looks:  # a look-ahead must be the last thing
                return None
            if match["look"]:
                looks = True
            else:
                times = match["times"] or ""
                optional = times in {"?", "*"} or times.startswith(("{0,", "{0}"))
                atoms.append(_Atom(match["body"], optional=optional, repeats=times not in {"", "?", "{1}"}))
            at = match.end()
        if not atoms:
            return None
        found.append(_Alternative(tuple(atoms), looks))
    return tuple(found)


def _alternatives(pattern: str) -> Iterator[str]:
    """Split at the bars that stand outside classes and groups."""
    depth = 0
    begin = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "|" and depth == 0:
            yield pattern[begin:at]
            begin = at + 1
        at += 1
    yield pattern[begin:]
