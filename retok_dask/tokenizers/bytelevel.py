"""Byte-level tokenizers: which bytes each id stands for."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow.compute as pc

from retok_dask.schema import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt


def _byte_alphabet() -> list[str]:
    """GPT-2's alphabet: printable bytes are themselves, the others move to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = [""] * 256
    for byte in printable:
        chars[byte] = chr(byte)
    others = [byte for byte in range(256) if not chars[byte]]
    for place, byte in enumerate(others):
        chars[byte] = chr(0x100 + place)
    return chars


BYTE_TO_CHAR: list[str] = _byte_alphabet()
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def is_byte_level(definition: Mapping[str, Any]) -> bool:
    """Whether ids are cut from the text's own UTF-8 bytes, none added, none lost.

    True for byte-level BPE whose normalizer is nothing or NFC, without a
    prefix space, and whose added tokens take no blanks with them.
    """
    return (
        definition["model"].get("type") == "BPE"
        and _parts(definition.get("normalizer"), "normalizers") <= {"NFC"}
        and _byte_level_split(definition.get("pre_tokenizer"))
        and not definition["model"].get("continuing_subword_prefix")
        and not definition["model"].get("end_of_word_suffix")
        and not definition["model"].get("byte_fallback")
        and not any(token["lstrip"] or token["rstrip"] for token in definition.get("added_tokens", ()))
        and all(char in definition["model"]["vocab"] for char in BYTE_TO_CHAR)
    )


def uses_nfc(definition: Mapping[str, Any]) -> bool:
    """Whether the text is brought into Unicode form NFC first."""
    return "NFC" in _parts(definition.get("normalizer"), "normalizers")


def _parts(step: Mapping[str, Any] | None, key: str) -> set[str]:
    if step is None:
        return set()
    if step["type"] == "Sequence":
        return {name for part in step[key] for name in _parts(part, key)}
    return {str(step["type"])}


def _byte_level_split(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return False
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    kinds = [part["type"] for part in steps]
    return (
        kinds.count("ByteLevel") == 1
        and set(kinds) <= {"Split", "ByteLevel", "Digits", "Punctuation"}
        and not any(part.get("add_prefix_space") for part in steps)
        and all(part.get("behavior", "Isolated") == "Isolated" for part in steps if part["type"] == "Split")
    )


class ByteTable:
    """The bytes of every id.

    Args:
        spelt: the bytes of all ids, one after the other.
        lengths: how many of them belong to each id, int32; 0 where no token has this id.
    """

    def __init__(self, spelt: bytes, lengths: npt.NDArray[np.int32]) -> None:
        self._spelt = spelt
        self.lengths = lengths

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Self:
        """The table of a byte-level definition; added tokens stand for their own text."""
        vocabulary: dict[str, int] = definition["model"]["vocab"]
        added = {token["id"]: _in_alphabet(token["content"]) for token in definition.get("added_tokens", ())}
        texts = [""] * (max([*vocabulary.values(), *added], default=-1) + 1)
        for text, index in vocabulary.items():
            texts[index] = text
        for index, text in added.items():
            texts[index] = text
        found = _bytes_of("".join(texts))
        ends = np.cumsum([len(text) for text in texts])
        odd = {*np.searchsorted(ends, np.flatnonzero(found < 0), side="right").tolist()}
        for index in odd:  # outside the alphabet: reached only as an added token
            texts[index] = _in_alphabet(texts[index])
        if odd:
            found = _bytes_of("".join(texts))
        return cls(found.astype(np.uint8).tobytes(), np.array([len(text) for text in texts], np.int32))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"spelt": self._spelt.decode("latin-1"), "lengths": self.lengths.tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The table of :meth:`to_dict`."""
        return cls(data["spelt"].encode("latin-1"), np.array(data["lengths"], np.int32))

    @cached_property
    def tokens(self) -> list[bytes]:
        """The bytes of each id; none where no token has this id."""
        return self.split()

    def split(self) -> list[bytes]:
        """The same, for one use: as many objects as there are ids, which take more memory than their bytes."""
        ends = np.cumsum(self.lengths).tolist()
        return [self._spelt[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def texts(self) -> list[str]:
        """The text of each id whose bytes are valid text."""
        found = []
        for data in self.split():
            with contextlib.suppress(UnicodeDecodeError):
                if data:
                    found.append(data.decode())
        return found

    def parts_of_characters(self) -> npt.NDArray[np.bool_]:
        """By id: it is one byte of a character that has several."""
        single = np.flatnonzero(self.lengths == 1)
        found = np.zeros(self.lengths.size, np.bool_)
        starts = np.cumsum(self.lengths)[single] - 1
        found[single] = np.frombuffer(self._spelt, np.uint8)[starts] >= 0x80
        return found

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """The bytes that ids stand for, exactly."""
        return b"".join(map(self.tokens.__getitem__, np.asarray(ids).tolist()))


class IdTable:
    """A number for each id, looked up for millions of ids at once.

    Arrow takes ids as they are; numpy makes wider ones of them first, which costs more than the look.
    """

    def __init__(self, values: npt.NDArray[np.int32]) -> None:
        self._values = values.astype(np.int16) if values.max(initial=0) < 1 << 15 else values
        self._arrow = numbers(self._values)

    def take(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.integer[Any]]:
        """The numbers of some ids.

        Raises:
            IndexError: an id that is not in the table.
        """
        if not ids.size or ids.view(np.uint32).max() >= self._values.size:
            return self._values.take(ids)
        found = pc.take(self._arrow, numbers(ids), boundscheck=False)
        return np.frombuffer(found.buffers()[1], self._values.dtype, ids.size)


def _in_alphabet(text: str) -> str:
    return "".join([BYTE_TO_CHAR[byte] for byte in text.encode()])


def _bytes_of(text: str) -> npt.NDArray[np.int16]:
    """The byte that each character of a text stands for; -1 for one outside the alphabet."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _BYTE_OF_POINT.take(points, mode="clip")


def _by_point() -> npt.NDArray[np.int16]:
    found = np.full(max(map(ord, CHAR_TO_BYTE)) + 2, -1, np.int16)
    for char, byte in CHAR_TO_BYTE.items():
        found[ord(char)] = byte
    return found


_BYTE_OF_POINT = _by_point()
"""By code point, with one more entry at the end for all that follow."""
