"""Tokenizers with byte fallback that write blanks as ``▁``: which bytes of the text each id stands for.

Gemma's and Llama 2's kind. Nothing is added to a text or taken from it but,
for some, one ``▁`` at its start or after each added token. So ids are measured
in bytes as those of byte-level tokenizers are, and with that a fast engine,
which has no offsets, can be used. A text that holds a ``▁`` itself comes out
too short, which its sum of bytes shows.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from retok_dask.tokenizers.bytelevel import ByteTable
from retok_dask.tokenizers.definition import any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from retok_dask.tokenizers.engines import Engine, Flat

    Int64 = npt.NDArray[np.int64]

MARK = "▁"
"""What SentencePiece writes for a blank."""

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_Rule = Literal["never", "first", "always", "even before blanks"]
"""Where a ``▁`` is put before a text."""

_BLANKS = (b" ", MARK.encode())

_WRITE_BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
_METASPACE = re.compile(r'"pre_tokenizer"\s*:\s*\{\s*"type"\s*:\s*"Metaspace"[^{}]*\}')
_NO_NORMALIZER = re.compile(r'"normalizer"\s*:\s*null')
"""Quotes inside a JSON string are escaped, so that no token's text looks like these."""

_PREPEND = {"type": "Prepend", "prepend": MARK}


def has_byte_fallback(definition: Mapping[str, Any]) -> bool:
    """Whether a definition is of this kind, and each character can be written."""
    model = definition["model"]
    return (
        model.get("type") == "BPE"
        and bool(model.get("byte_fallback"))
        and _prefix_rule(definition) is not None
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and not any(token["lstrip"] or token["rstrip"] for token in definition.get("added_tokens", ()))
        and all(
            f"<0x{byte:02X}>" in model["vocab"] or (byte < 0x80 and chr(byte) in model["vocab"]) for byte in range(256)
        )
    )


def _prefix_rule(definition: Mapping[str, Any]) -> _Rule | None:
    """The rule of a definition; None where it writes blanks in a way that is not understood."""
    normalizer, split = definition.get("normalizer"), definition.get("pre_tokenizer")
    if normalizer is None and split is not None and split["type"] == "Metaspace" and split["replacement"] == MARK:
        rule: _Rule = split["prepend_scheme"]
        return rule
    keeps = split is None or (
        split["type"] == "Split" and split["pattern"] == {"String": " "} and split["behavior"] != "Removed"
    )
    if keeps and normalizer == _WRITE_BLANKS:
        return "never"
    if keeps and normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _WRITE_BLANKS]}:
        return "even before blanks"
    return None


class Prefixes:
    """Takes the blanks that a tokenizer puts before texts off the lengths of their tokens.

    Args:
        definition: of a tokenizer of this kind.
        size: one more than its largest id.
    """

    def __init__(self, definition: Mapping[str, Any], size: int) -> None:
        self._rule = _prefix_rule(definition)
        self._added = np.zeros(size, np.bool_)
        self._added[[token["id"] for token in definition.get("added_tokens", ())]] = True

    @classmethod
    def of(cls, definition: Mapping[str, Any], size: int) -> Self | None:
        """None where there are none."""
        made = cls(definition, size)
        return made if made._rule in ("first", "always", "even before blanks") else None

    def take_off(self, lengths: npt.NDArray[np.integer[Any]], flat: Flat, texts: Sequence[str]) -> None:
        """Shorten the tokens that begin with such a blank.

        Args:
            lengths: bytes of each token; they are changed.
            flat: the tokens, row by row.
            texts: the text of each row.
        """
        ids, splits = flat
        added = self._added.take(ids)
        begins = np.zeros(ids.size + 1, np.bool_)
        if self._rule != "first":
            begins[1:] = added
        begins[splits[:-1]] = True
        places = np.flatnonzero(begins[:-1] & ~added)
        if self._rule != "even before blanks":
            places = places[self._is_put(places, lengths, splits, texts)]
        lengths[places] -= 1

    def _is_put(
        self, places: Int64, lengths: npt.NDArray[np.integer[Any]], splits: Int64, texts: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Before which of some tokens a blank was put: not where the text has one there."""
        before = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=before[1:])
        rows = np.searchsorted(splits, places, side="right") - 1
        at = (before[places] - before[splits[rows]]).tolist()
        found: list[bool] = []
        current, put, data = -1, 0, b""
        for row, place in zip(rows.tolist(), at, strict=True):
            if row != current:
                current, put, data = row, 0, texts[row].encode("utf-8", "replace")
            found.append(not data.startswith(_BLANKS, place - put))
            put += found[-1]
        return np.array(found, np.bool_)


class PrefixWriter:
    """Puts the blanks into texts that a tokenizer would put before them, for an engine that does not."""

    def __init__(self, rule: _Rule, added_tokens: Iterable[str]) -> None:
        self._rule = rule
        self._added = any_of(added_tokens)

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Self | None:
        """The writer of a definition; None where an engine must do it itself, or there is nothing to put."""
        split, added = definition.get("pre_tokenizer") or {}, definition.get("added_tokens", ())
        rule = _prefix_rule(definition)
        if split.get("type") != "Metaspace" or split["split"] or rule is None:
            return None
        if any(token["normalized"] or token["single_word"] for token in added):
            return None
        return cls(rule, [token["content"] for token in added])

    def write(self, text: str) -> str:
        """A text as the model sees it."""
        if self._rule == "never":
            return text
        parts: list[str] = []
        at = 0
        for token in self._added.finditer(text):
            parts += [self._section(text[at : token.start()], at), token[0]]
            at = token.end()
        return "".join([*parts, self._section(text[at:], at)])

    def _section(self, text: str, at: int) -> str:
        is_bare = text and not text.startswith((" ", MARK))
        return f" {text}" if is_bare and not (self._rule == "first" and at) else text


class PrefixingEngine:
    """An engine whose definition puts no blanks before texts, given texts that have them."""

    def __init__(self, bare: Engine, writer: PrefixWriter) -> None:
        self.name = bare.name
        self._bare, self._writer = bare, writer

    def encode(self, texts: Sequence[str]) -> Flat:
        """See :class:`~retok_dask.tokenizers.engines.Engine`."""
        return self._bare.encode([*map(self._writer.write, texts)])


def without_prefixes(definition_json: str) -> str:
    """A definition with Metaspace as one whose normalizer writes blanks, and nothing else.

    In its text, because a parsed vocabulary takes many times its size.
    """
    bare = _METASPACE.sub('"pre_tokenizer":null', definition_json)
    return _NO_NORMALIZER.sub(lambda _: f'"normalizer":{json.dumps(_WRITE_BLANKS)}', bare)


def piece_bytes(piece: str) -> bytes:
    """What a piece of such a vocabulary stands for."""
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(MARK, " ").encode()


def fallback_table(definition: Mapping[str, Any]) -> ByteTable:
    """The bytes of each id of such a definition; added tokens stand for their own text."""
    vocabulary: dict[str, int] = definition["model"]["vocab"]
    added = {token["content"]: token["id"] for token in definition.get("added_tokens", ())}
    tokens = [b""] * (max([*vocabulary.values(), *added.values()], default=-1) + 1)
    for text, index in (*vocabulary.items(), *added.items()):
        tokens[index] = piece_bytes(text)
    return ByteTable(b"".join(tokens), np.array([*map(len, tokens)], np.int32))
