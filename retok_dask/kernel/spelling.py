"""Which bytes each id of a tokenizer stands for, as far as its definition says so exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import orjson

from retok_dask.tokenizers.bytelevel import CHAR_TO_BYTE
from retok_dask.tokenizers.fallback import BYTE_PIECE, MARK, piece_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from retok_dask.tokenizers import Tokenizer


@dataclass(slots=True)
class Spelling:
    """The bytes of every id.

    Attributes:
        tokens: bytes by id; empty where no token has this id.
        prefix: where the tokenizer puts a space that the text does not have:
            nowhere, before the first word, or after every control token too.
        if_missing: it does so only where the text does not begin with a space.
    """

    tokens: list[bytes]
    prefix: Literal["never", "first", "always"] = "never"
    if_missing: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """The spelling of byte-level and SentencePiece-like tokenizers; None for others (WordPiece)."""
        if tokenizer.table is not None:
            return cls(tokenizer.table.tokens)
        data = orjson.loads(tokenizer.definition.json)
        vocabulary = _vocabulary(data["model"])
        decoders = {step["type"] for step in _steps(data.get("decoder"), "decoders")}
        if "ByteLevel" in decoders and data["model"].get("type") == "BPE":
            tokens = {index: _from_alphabet(text) for text, index in vocabulary.items()}
            spaced = any(step.get("add_prefix_space") for step in _steps(data.get("pre_tokenizer"), "pretokenizers"))
            prefix: Literal["never", "first", "always"] = "first" if spaced else "never"
        elif _blanks_are_marked(data):
            tokens = {index: piece_bytes(text) for text, index in vocabulary.items()}
            prefix = _dummy_prefix(data)
        else:
            return None
        tokens |= {token["id"]: token["content"].encode() for token in data.get("added_tokens", ())}
        size = max(max(tokens, default=-1) + 1, tokenizer.vocab_size)
        return cls([tokens.get(index, b"") for index in range(size)], prefix, not _prepends(data))

    def take_prefix(self, parts: list[bytes], controls: Collection[int]) -> None:
        """Take off, in place, each space that the tokenizer put where the text had none.

        Args:
            parts: the bytes of a row's tokens.
            controls: numbers of those that are control tokens.
        """
        if self.prefix == "never":
            return
        starts = [n for n in range(len(parts)) if n not in controls and (n == 0 or n - 1 in controls)]
        for start in starts[: 1 if self.prefix == "first" else None]:
            if not parts[start].startswith(b" "):
                continue
            rest = parts[start][1:]
            if not rest and start + 1 < len(parts) and start + 1 not in controls:
                rest = parts[start + 1]
            # " x" may have been "x", but "  x" and a lone " " were written as they are
            if self.if_missing and (not rest or rest.startswith(b" ")):
                continue
            parts[start] = parts[start][1:]


def byte_pieces(tokenizer: Tokenizer) -> npt.NDArray[np.bool_]:
    """By id: the token is one byte of a character that has several: the tokenizer had no piece for it."""
    if tokenizer.table is not None:
        return tokenizer.table.parts_of_characters()[: tokenizer.vocab_size]
    found = np.zeros(tokenizer.vocab_size, np.bool_)
    data = orjson.loads(tokenizer.definition.json)
    marked = _blanks_are_marked(data)
    for text, index in _vocabulary(data["model"]).items():
        if index >= found.size:
            continue
        if marked:
            found[index] = BYTE_PIECE.fullmatch(text) is not None
        else:
            found[index] = len(text) == 1 and CHAR_TO_BYTE.get(text, 0) >= 0x80
    return found


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece[0]: index for index, piece in enumerate(vocabulary)}  # Unigram: a list of [piece, score]


def _steps(step: Mapping[str, Any] | None, key: str) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for part in step[key]:
            yield from _steps(part, key)
    else:
        yield step


def _blanks_are_marked(data: Mapping[str, Any]) -> bool:
    if data["model"].get("type") not in ("BPE", "Unigram"):
        return False
    return any(
        step["type"] == "Metaspace" or (step["type"] == "Replace" and step["pattern"].get("String") == MARK)
        for step in _steps(data.get("decoder"), "decoders")
    )


def _prepends(data: Mapping[str, Any]) -> bool:
    return any(step["type"] == "Prepend" for step in _steps(data.get("normalizer"), "normalizers"))


def _dummy_prefix(data: Mapping[str, Any]) -> Literal["never", "first", "always"]:
    if _prepends(data):
        return "always"
    for step in _steps(data.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme", "always")
            return scheme if scheme in ("never", "first") else "always"
    return "never"


def _from_alphabet(text: str) -> bytes:
    try:
        return bytes(map(CHAR_TO_BYTE.__getitem__, text))
    except KeyError:  # outside the alphabet: reached as an added token alone
        return text.encode()
