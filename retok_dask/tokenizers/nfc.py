"""Unicode form NFC: which characters leave a text in it, and what the reference makes of one that is not.

On Chinese and Japanese, engines spend much of their time looking whether the
text is in NFC. Here that costs a look into a table, so the fast engine is made
without its normalizer and given texts that are in NFC already.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from retok_dask.tokenizers.definition import any_of
from retok_dask.tokenizers.engines import replace_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from retok_dask.tokenizers.engines import Engine, Flat

STAYS, IF_IN_ORDER, MAY_CHANGE = 0, 1, 2
"""What a character means for its text: nothing; in NFC if marks are in order; nobody knows without trying."""

_KNOWN = 0x20000
"""Code points that the table tells of; the last one stands for all that follow."""

_LOOKED_AT = (range(0x10000), range(0x1F000, 0x1FB00))
"""Those that texts are made of: the first plane and emoji. The others may change, for all that the table says."""

_HANGUL_LETTERS = range(0x1100, 0x1200)


@cache
def nfc_classes() -> npt.NDArray[np.uint8]:
    """The class of each code point, by what its Unicode properties say.

    Those of an assigned character never change with later versions of Unicode;
    what this Python's version does not know may change.
    """
    classes = np.full(_KNOWN, MAY_CHANGE, np.uint8)
    joins = {*_HANGUL_LETTERS}
    for point in chain(*_LOOKED_AT):
        char = chr(point)
        canonical = unicodedata.decomposition(char)
        if canonical and not canonical.startswith("<"):
            joins.update(int(part, 16) for part in canonical.split()[1:])
        if unicodedata.category(char) not in ("Cn", "Cs") and unicodedata.is_normalized("NFC", char):
            classes[point] = IF_IN_ORDER if unicodedata.combining(char) else STAYS
    classes[[point for point in joins if point < _KNOWN]] = MAY_CHANGE
    return classes


def token_marks(tokens: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Which ids, by their bytes, may take a text out of NFC: with a character that may change, or a part of one."""
    marks = np.zeros(len(tokens), np.bool_)
    wide = [index for index, data in enumerate(tokens) if not data.isascii()]
    for start in range(0, len(wide), 4096):  # not all at once, because what a process had at its start it keeps
        whole: dict[int, str] = {}
        for index in wide[start : start + 4096]:
            try:
                whole[index] = tokens[index].decode()
            except UnicodeDecodeError:
                marks[index] = True
        if whole:
            points = np.frombuffer("".join(whole.values()).encode("utf-32-le"), np.uint32)
            starts = [0, *accumulate(map(len, whole.values()))][:-1]
            marks[[*whole]] = np.maximum.reduceat(nfc_classes().take(points, mode="clip"), starts) > STAYS
    return marks


class Composer:
    """Brings a text into NFC as the reference does: each stretch between added tokens by itself.

    Args:
        normalize: the reference's own normalizer, for one text.
        added_tokens: texts of all added tokens.
    """

    def __init__(self, normalize: Callable[[str], str], added_tokens: Iterable[str]) -> None:
        self._normalize = normalize
        self._added = any_of(added_tokens)

    @classmethod
    def of(cls, definition: Mapping[str, Any], normalize: Callable[[str], str]) -> Self | None:
        """The composer of a definition; None where an engine must normalize for itself.

        That is where there is nothing to normalize, and where an added token is looked for in the normalized text.
        """
        added = definition.get("added_tokens", ())
        plain = (definition.get("normalizer") or {}).get("type") == "NFC"
        if not plain or any(token["normalized"] or token["single_word"] for token in added):
            return None
        return cls(normalize, [token["content"] for token in added])

    def compose(self, text: str) -> str | None:
        """What the reference's model sees of a text; None if that holds other added tokens than the text does."""
        parts: list[str] = []
        places: list[tuple[int, int]] = []
        at = length = 0
        for token in self._added.finditer(text):
            parts += [self._normalize(text[at : token.start()]), token[0]]
            length += len(parts[-2]) + len(token[0])
            places.append((length - len(token[0]), length))
            at = token.end()
        composed = "".join([*parts, self._normalize(text[at:])])
        return composed if places == [token.span() for token in self._added.finditer(composed)] else None


class ComposingEngine:
    """An engine without a normalizer, given any text: what a certificate is about."""

    def __init__(self, bare: Engine, composer: Composer, reference: Engine) -> None:
        self.name = bare.name
        self._bare, self._composer, self._reference = bare, composer, reference

    def encode(self, texts: Sequence[str]) -> Flat:
        composed = [text if text.isascii() else self._composer.compose(text) for text in texts]
        flat = self._bare.encode([text or "" for text in composed])
        others = [row for row, text in enumerate(composed) if text is None]
        ids, splits = self._reference.encode([texts[row] for row in others])
        return replace_rows(flat, {row: ids[splits[n] : splits[n + 1]] for n, row in enumerate(others)})
