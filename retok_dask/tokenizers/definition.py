"""What a tokenizer is, as plain data: enough to make it again in another process."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

WAY_OUT = "name a hub id, a folder, a tokenizer.json, or a tiktoken rank file with its pattern"


FILE_WORDS = (
    *("two words", "a  b   c", " lead", "line\n    indent\ttab", "naïve", "don't", "DON'T", "MacBook", "foo_bar(x);"),
    *("12345", "3.14", "...\n\n", "日本語", "Привет", "😀"),
)
"""Blanks, case, apostrophes, digits, signs, scripts: where the pre-tokenizers of model classes differ."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tokenizer's files, read and brought into one form.

    Attributes:
        json: the ``tokenizer.json`` that `tokenizers` loads.
        digest: sha256 over the files (and settings) that it was read from.
        source: the path or hub id it was asked by.
        files: name to sha256 of each of these files.
        special_tokens_map: as transformers passes it to a chat template.
        chat_templates: the tokenizer's own template, or its named ones, or None.
        adds_bos: the tokenizer puts its BOS in front of plain text by itself.
        notes: what a user should know about how it was loaded.
        by_file: ids of :data:`FILE_WORDS` by the folder's own ``tokenizer.json``, where transformers, which loads the
            folder, gives others for one of them; else empty.
    """

    json: str
    digest: str
    source: str
    files: dict[str, str]
    special_tokens_map: dict[str, Any] = field(default_factory=dict)
    chat_templates: str | dict[str, str] | None = None
    adds_bos: bool = False
    notes: list[str] = field(default_factory=list)
    by_file: list[list[int]] = field(default_factory=list)

    @property
    def json_digest(self) -> str:
        """sha256 of `json`: what decides the ids."""
        return sha256_of(self.json.encode())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def adds_bos(backend: Any, bos: str | None) -> bool:
    """Whether plain text gets a BOS in front by a `tokenizers` object's own rule."""
    ids = backend.encode("a").ids
    return bos is not None and bool(ids) and ids[0] == backend.token_to_id(bos)


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of libraries; a missing one is left out."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def sha256_of(data: bytes) -> str:
    """As hex."""
    return hashlib.sha256(data).hexdigest()


def digest_of(files: dict[str, str]) -> str:
    """One digest of the digests of named files."""
    return sha256_of(orjson.dumps(files, option=orjson.OPT_SORT_KEYS))


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches added tokens in a text as the reference does: the longest where one holds another."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
