"""Control tokens: which added tokens are, where their text stands, what they become in another tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retok_dask.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from retok_dask.tokenizers import Tokenizer

SHOWN = 8
"""Tokens that an error message names one by one."""


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Added tokens by text, those left out that are nothing but blanks.

    Some vocabularies (Gemma) list runs of newlines and blanks as added tokens;
    in a document these are its text, not control tokens.
    """
    return {text: index for text, index in tokenizer.added_tokens.items() if text.strip()}


def special_texts(tokenizer: Tokenizer) -> frozenset[str]:
    """Texts of the added tokens that are flagged special."""
    added = tokenizer.outline.steps.get("added_tokens", ())
    return frozenset(token["content"] for token in added if token.get("special"))


class ControlFinder:
    """Finds the text of control tokens in a text, leftmost and longest first, as `tokenizers` does.

    Thousands of added tokens cost no more than a few: a text is searched only
    if it holds the first character of one of them (looking for one character
    is nearly free), and then by a pattern that begins with this character, for
    which `re` looks without trying to match.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        found = sorted({text for text in texts if text.strip()})
        firsts = sorted({text[0] for text in found})
        self._by_first = [
            (first, re.compile(_trie_pattern([text for text in found if text[0] == first]))) for first in firsts
        ]
        self._pattern = re.compile(_trie_pattern(found))

    def find(self, text: str) -> list[tuple[int, int]]:
        """(start, end) characters of each, ascending and disjoint."""
        for first, one in self._by_first:
            if first in text and one.search(text):
                return [match.span() for match in self._pattern.finditer(text)]
        return []


def document_escapes(found: list[tuple[int, int]], length: int, *, byte_level: bool) -> list[tuple[int, int]]:
    """What is ordinary text of a document that holds control-token text.

    Byte-level tokenizers encode the whole document as if they had no added
    tokens. A tokenizer that marks the first word (SentencePiece) must still
    see where the document begins, so only the found texts are escaped.
    """
    return [(0, length)] if found and byte_level else found


def _trie_pattern(texts: list[str]) -> str:
    """A pattern of all texts, common beginnings taken out, that prefers the longer one."""
    tails: dict[str, list[str]] = {}
    for text in texts:
        if text:
            tails.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _trie_pattern(rest) for first, rest in tails.items() if rest]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{joined})?" if "" in texts else joined


Fate = Literal["token", "text", "drop", "reject"]


@dataclass(frozen=True, slots=True)
class TokenFate:
    """What becomes of one control token.

    Attributes:
        text, id: the token of the old tokenizer.
        fate: ``token`` of the new one, ordinary ``text``, ``drop``ped, or its rows are ``reject``ed.
        target, target_id: the new token, where there is one.
        rule: ``token_map``, ``same text``, or ``not special``.
    """

    text: str
    id: int
    fate: Fate
    target: str = ""
    target_id: int = -1
    rule: str = "same text"


class ControlMap:
    """The table from control tokens of an old tokenizer to those of a new one; complete or refused.

    Rules, in order: the recipe's ``token_map`` by exact text; the new tokenizer
    has a token of the same text; an added token that is not flagged special is
    ordinary text; patterns with ``*`` of the ``token_map``.

    Args:
        old, new: the tokenizers.
        token_map: see :class:`~retok_dask.recipe.DatasetSpec`.
        dataset: the data set's name, for messages.

    Raises:
        RecipeError: a special token has no entry, or an entry names a token that does not exist.
    """

    def __init__(
        self, old: Tokenizer, new: Tokenizer, token_map: Mapping[str, str | None], dataset: str = "data"
    ) -> None:
        self._new = control_tokens(new)
        self._check_names(old, token_map, dataset)
        special = special_texts(old)
        self.rows: list[TokenFate] = []
        missing = []
        for text, index in sorted(control_tokens(old).items(), key=lambda item: item[1]):
            row = self._row(text, index, token_map, special=text in special)
            if row is None:
                missing.append(text)
            else:
                self.rows.append(row)
        if missing:
            raise RecipeError(_incomplete(missing, self._new, dataset))
        size = max([*old.added_tokens.values(), -1]) + 1
        self._by_id: dict[int, TokenFate] = {row.id: row for row in self.rows}
        self._is_control = np.zeros(max(size, old.vocab_size), np.bool_)
        self._is_control[list(self._by_id)] = True

    def __getitem__(self, index: int) -> TokenFate:
        return self._by_id[index]

    def positions(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where control tokens stand in a row of old ids."""
        return np.flatnonzero(self._is_control[ids])

    def to_dict(self) -> list[dict[str, Any]]:
        """The table as JSON values, one entry a control token, for ``plan`` to show."""
        return [
            {
                "token": row.text,
                "id": row.id,
                "becomes": row.target if row.fate == "token" else f"({row.fate})",
                "new_id": row.target_id if row.fate == "token" else None,
                "rule": row.rule,
            }
            for row in self.rows
        ]

    def _row(self, text: str, index: int, token_map: Mapping[str, str | None], *, special: bool) -> TokenFate | None:
        if text in token_map:
            return self._named(text, index, token_map[text])
        if text in self._new:
            return TokenFate(text, index, "token", text, self._new[text])
        if not special:
            return TokenFate(text, index, "text", text, rule="not special")
        key = next((key for key in token_map if fnmatchcase(text, key)), None)
        return None if key is None else self._named(text, index, token_map[key])

    def _named(self, text: str, index: int, target: str | None) -> TokenFate:
        """What the recipe says of a token."""
        if target is None:
            return TokenFate(text, index, "reject", rule="token_map")
        if not target:
            return TokenFate(text, index, "drop", rule="token_map")
        if target in self._new:
            return TokenFate(text, index, "token", target, self._new[target], "token_map")
        return TokenFate(text, index, "text", text, rule="token_map")

    def _check_names(self, old: Tokenizer, token_map: Mapping[str, str | None], dataset: str) -> None:
        known = control_tokens(old)
        for key, target in token_map.items():
            if key not in known and not any(fnmatchcase(text, key) for text in known):
                msg = f"data set {dataset!r}: token_map names {key!r}, which the old tokenizer lacks.{did_you_mean(key, known)}"
                raise RecipeError(msg)
            if target and target not in self._new and target != key:
                msg = (
                    f"data set {dataset!r}: token_map sends {key!r} to {target!r}, which is no added token of the new "
                    f"tokenizer.{did_you_mean(target, self._new)} To write it as ordinary text, send it to itself."
                )
                raise RecipeError(msg)


def _incomplete(missing: list[str], new: Mapping[str, int], dataset: str) -> str:
    names = ", ".join(map(repr, missing[:SHOWN]))
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    legal = ", ".join(list(new)[:SHOWN])
    return (
        f"data set {dataset!r}: {len(missing)} control tokens of the old tokenizer have no counterpart: {names}{more}. "
        f"Give each an entry under token_map: a token of the new tokenizer ({legal}, ...), '' to leave it out, itself "
        "for ordinary text, or null to reject rows that hold it; '*': null covers all the rest"
    )
