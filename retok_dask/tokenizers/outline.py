"""What a definition says beside its vocabulary and merges, and the bytes of its ids: read once, then sent along.

Reading a definition takes half a second and many times its size in memory: too
much for each worker process, and for each who wants to know a small part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.tokenizers.bytelevel import ByteTable, is_byte_level
from retok_dask.tokenizers.fallback import fallback_table, has_byte_fallback

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Outline:
    """The small parts of a definition.

    Attributes:
        steps: the definition as `tokenizers` writes it, its model without vocabulary and merges.
        table: the bytes of its ids, if the text can be measured by them.
        byte_level: whether ids are cut from the text's own bytes.
        size: one more than its largest id. Some vocabularies have gaps, and then hold fewer tokens than that.
    """

    steps: dict[str, Any]
    table: ByteTable | None
    byte_level: bool
    size: int

    @classmethod
    def of(cls, definition_json: str) -> Self:
        """Read a definition."""
        data = orjson.loads(definition_json)
        byte_level = is_byte_level(data)
        table = ByteTable.of(data) if byte_level else fallback_table(data) if has_byte_fallback(data) else None
        model = {name: value for name, value in data["model"].items() if name not in ("vocab", "merges")}
        return cls(data | {"model": model}, table, byte_level, _size(data))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        table = None if self.table is None else self.table.to_dict()
        return {"steps": self.steps, "table": table, "byte_level": self.byte_level, "size": self.size}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The outline of :meth:`to_dict`."""
        table = None if data["table"] is None else ByteTable.from_dict(data["table"])
        return cls(data["steps"], table, data["byte_level"], data["size"])


def _size(definition: Mapping[str, Any]) -> int:
    vocabulary = definition["model"]["vocab"]
    # a unigram model's is a list, where a token's place is its id
    ids = vocabulary.values() if isinstance(vocabulary, dict) else (len(vocabulary) - 1,)
    return max([*ids, *(token["id"] for token in definition.get("added_tokens", ()))], default=-1) + 1
