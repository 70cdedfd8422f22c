"""Encoders behind one small protocol: the reference and the fast one."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from retok_dask.tokenizers.definition import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    Flat = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]


def limit_native_threads() -> None:
    """Let the native libraries use one thread in this process, unless the user said otherwise.

    A run's parallelism is its worker processes; a pool of threads in each of
    them only fights for the same cores.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # its own pool heeds no other setting, and spins


Made = TypeVar("Made")

_IN_USE: WeakValueDictionary[tuple[Any, str], Any] = WeakValueDictionary()


def made_once(make: Callable[[str], Made], definition_json: str) -> Made:
    """What `make` gives for a definition: the same object as long as somebody holds it.

    Each takes a second or more and hundreds of megabytes, and a session that
    plans, runs and looks at rows asks for the same again and again.
    """
    key = (make, sha256_of(definition_json.encode()))
    found: Made | None = _IN_USE.get(key)
    if found is None:
        found = _IN_USE[key] = make(definition_json)
        _give_back()
    return found


def _give_back() -> None:
    """Return freed memory to the system: reading a definition takes a hundred megabytes that nobody needs again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library has it; pyarrow's pools do not call it
    if trim is not None:
        trim(0)


class Engine(Protocol):
    """Encodes texts to ids; added tokens in the text become their ids, nothing is added."""

    name: str

    def encode(self, texts: Sequence[str]) -> Flat:
        """Ids of all texts one after the other (int32), and texts + 1 offsets (int64)."""


class ReferenceEngine:
    """The `tokenizers` library: the reference for ids, and the only one with offsets."""

    name = "tokenizers"

    def __init__(self, definition_json: str) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415  native library, loaded when a tokenizer is

        self.backend = Tokenizer.from_str(definition_json)
        self.backend.post_processor = None  # it only adds special tokens and trims blanks off the offsets
        self.backend.no_truncation()
        self.backend.no_padding()

    def encode(self, texts: Sequence[str]) -> Flat:
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([encoding.ids for encoding in encodings])

    def encode_offsets(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Ids of one text and the (start, end) characters of each, shape (tokens, 2)."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def encode_ordinary(self, text: str) -> list[int]:
        """Ids of one text in which no added token is looked for, as transformers does it."""
        backend = self.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        pieces = (
            [text] if backend.pre_tokenizer is None else [p for p, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        )
        return [token.id for piece in pieces for token in backend.model.tokenize(piece)]


class FastEngine:
    """`fastokens`: the same ids at many times the speed, where a certificate says so."""

    name = "fastokens"

    def __init__(self, definition_json: str) -> None:
        from fastokens import Tokenizer  # noqa: PLC0415  optional native library

        self._backend = Tokenizer.from_json_str(definition_json)

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self._backend.encode_batch_flat(list(texts))
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)


def flatten(rows: Sequence[Sequence[int]]) -> Flat:
    """Lists of ids as one array with offsets."""
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    ids = np.empty(int(splits[-1]), np.int32)
    for row, start, end in zip(rows, splits[:-1].tolist(), splits[1:].tolist(), strict=True):
        ids[start:end] = row
    return ids, splits


def replace_rows(flat: Flat, rows: Mapping[int, npt.NDArray[np.int32]]) -> Flat:
    """The flat encoding with other ids for some rows."""
    if not rows:
        return flat
    ids, splits = flat
    sizes = np.diff(splits)
    parts: list[npt.NDArray[np.int32]] = []
    at = 0
    for number in sorted(rows):
        parts += [ids[splits[at] : splits[number]], rows[number]]
        sizes[number] = rows[number].size
        at = number + 1
    parts.append(ids[splits[at] :])
    return np.concatenate(parts).astype(np.int32, copy=False), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
