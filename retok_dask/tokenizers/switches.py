"""Settings of a tokenizer that nobody can guess: what each would change, on words that show it.

Three settings of a recipe decide ids without an error either way: whether the
pattern of older Mistral tokenizers is repaired, whether a rank file's text is
normalized, and whether a folder is named, which transformers reads its way, or
the ``tokenizer.json`` in it. They are shown before a run, as tokens off and on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retok_dask.tokenizers.definition import FILE_WORDS
from retok_dask.tokenizers.engines import ReferenceEngine
from retok_dask.tokenizers.tokenizer import Tokenizer
from retok_dask.types import Kind, Rendered

if TYPE_CHECKING:
    from retok_dask.recipe import StorageSpec, TokenizerSpec

REGEX_WORDS = ("eBay", "mL", "NaOH", "pH", "McDonald's", "'The", "2026")
"""Small and capital letters, apostrophes, digits: where patterns cut differently. Ids differ where a vocabulary shows it."""

NFC_WORDS = ("cafe\u0301", "A\u030angstro\u0308m", "\u1112\u1161\u11ab", "\u212b", "cafe")
"""Texts with letters in parts, a sign that NFC replaces, and one that is the same either way."""


@dataclass(frozen=True, slots=True)
class ProbeWord:
    """A word as tokens with a setting off and on; texts of tokens, bytes of cut characters as ``<0xE2>``."""

    word: str
    off: list[str]
    on: list[str]
    differs: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """What a setting changes.

    Attributes:
        setting: its name in a recipe.
        value: what it is set to.
        in_force: which side the run takes.
        words: the probe words.
        notes: what the library that loads the tokenizer says of it; its opinion, often a wrong one.
    """

    setting: str
    value: str
    in_force: Literal["off", "on"]
    words: list[ProbeWord]
    notes: list[str] = field(default_factory=list)

    @property
    def differing(self) -> int:
        """Words that get other ids."""
        return sum(word.differs for word in self.words)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"differing": self.differing}

    def to_text(self) -> str:
        """A sentence and an aligned table, for a terminal."""
        cells = [("word", "off", "on", "")] + [
            (one.word, "|".join(one.off), "|".join(one.on), "differs" if one.differs else "same") for one in self.words
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(4)]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        rows = [row.replace("\n", "↵").replace("\t", "→") for row in rows]
        return "\n".join([self.sentence, *(f"  {row}" for row in rows), *(f"  note: {note}" for note in self.notes)])

    @property
    def sentence(self) -> str:
        """What is set, and how much hangs on it."""
        return (
            f"{self.setting} is {self.value} ({self.in_force} in this run): "
            f"{self.differing} of {len(self.words)} probe words get other ids with it {_OTHER[self.in_force]}"
        )


_OTHER = {"off": "on", "on": "off"}


def switches(tokenizer: Tokenizer, spec: TokenizerSpec, storage: StorageSpec | None = None) -> list[Switch]:
    """The settings that matter for a tokenizer, each with what it changes.

    The pattern's repair is looked at where a recipe sets it or the library
    warns of it; NFC for rank files, which do not say whether they want it; the
    ``tokenizer.json`` of a folder where it gives other ids than the library.

    Args:
        tokenizer: as the recipe loads it.
        spec: how it was named.
        storage: how to reach it.

    Raises:
        TokenizerError: it cannot be loaded again.
    """
    if spec.pattern is not None:
        return [_nfc(tokenizer, spec)]
    found = []
    flag = spec.fix_mistral_regex
    if flag is not None or any(_REGEX in note for note in tokenizer.definition.notes):
        other = Tokenizer.load(spec.model_copy(update={_REGEX: not flag}), storage=storage, engine="reference")
        value = "not set" if flag is None else str(flag).lower()
        ids = _ids(other, REGEX_WORDS)
        found.append(_switch(f"tokenizer.{_REGEX}", value, REGEX_WORDS, tokenizer, ids, on=bool(flag)))
    by_file = file_switch(tokenizer)
    return found if by_file is None else [*found, by_file]


def file_switch(tokenizer: Tokenizer) -> Switch | None:
    """What the ``tokenizer.json`` of a tokenizer's folder would change; None where that is nothing."""
    if not tokenizer.definition.by_file:
        return None
    made = _switch(_FILE, _NOT_READ, FILE_WORDS, tokenizer, tokenizer.definition.by_file, on=False)
    return replace(made, notes=["ids follow transformers; to follow the file, name it instead of its folder"])


_FILE, _NOT_READ = "the folder's own tokenizer.json", "not what transformers makes of the folder"
_REGEX = "fix_mistral_regex"


def _nfc(tokenizer: Tokenizer, spec: TokenizerSpec) -> Switch:
    on = spec.normalizer is not None
    ids = _ids_with(tokenizer, not on)
    return _switch("tokenizer.normalizer", spec.normalizer or "not set", NFC_WORDS, tokenizer, ids, on=on)


@lru_cache(maxsize=4)
def _ids_with(tokenizer: Tokenizer, nfc: bool) -> list[list[int]]:
    """The words with NFC or without, whatever the tokenizer does."""
    from tokenizers import normalizers  # noqa: PLC0415  native library

    backend = ReferenceEngine(tokenizer.definition.json).backend
    backend.normalizer = normalizers.NFC() if nfc else None
    return [backend.encode(word, add_special_tokens=False).ids for word in NFC_WORDS]


def _switch(
    setting: str, value: str, words: tuple[str, ...], tokenizer: Tokenizer, other: list[list[int]], *, on: bool
) -> Switch:
    """`other` are the words' ids with the setting the other way; both ways share a vocabulary."""
    sides = [_ids(tokenizer, words), other]
    off, with_it = sides[::-1] if on else sides
    found = [
        ProbeWord(word, _texts(tokenizer, one), _texts(tokenizer, two), one != two)
        for word, one, two in zip(words, off, with_it, strict=True)
    ]
    notes = [note for note in tokenizer.definition.notes if setting.rpartition(".")[2] in note]
    return Switch(setting, value, "on" if on else "off", found, notes)


def _ids(tokenizer: Tokenizer, words: tuple[str, ...]) -> list[list[int]]:
    encoded = tokenizer.encode([Rendered(word, [0], [int(Kind.content)], [-1]) for word in words])
    return [part.tolist() for part in np.split(encoded.ids, encoded.row_splits[1:-1])]


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    known = tokenizer.vocab_size  # the other way may have a vocabulary of its own
    return [piece_text(tokenizer.decode_bytes([one])) if one < known else f"<id {one}>" for one in ids]


def piece_text(piece: bytes) -> str:
    """A token's bytes for people; those of a cut character one by one, as ``<0xE2>``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)
