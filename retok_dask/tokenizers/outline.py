"""What a definition says beside its vocabulary and merges, and the bytes of its ids: read once, then sent along.

Reading a definition takes half a second and many times its size in memory: too
much for each worker process, and for each who wants to know a small part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.tokenizers.bytelevel import ByteTable, is_byte_level

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Outline:
    """The small parts of a definition.

    Attributes:
        steps: the definition as `tokenizers` writes it, its model without vocabulary and merges.
        table: the bytes of its ids, if it is byte-level.
        size: one more than its largest id. Some vocabularies have gaps, and then hold fewer tokens than that.
    """

    steps: dict[str, Any]
    table: ByteTable | None
    size: int

    @classmethod
    def of(cls, definition_json: str) -> Self:
        """Read a definition."""
        data = orjson.loads(definition_json)
        table = ByteTable.of(data) if is_byte_level(data) else None
        model = {name: value for name, value in data["model"].items() if name not in ("vocab", "merges")}
        return cls(data | {"model": model}, table, _size(data))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"steps": self.steps, "table": None if self.table is None else self.table.to_dict(), "size": self.size}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The outline of :meth:`to_dict`."""
        table = None if data["table"] is None else ByteTable.from_dict(data["table"])
        return cls(data["steps"], table, data["size"])


def _size(definition: Mapping[str, Any]) -> int:
    vocabulary = definition["model"]["vocab"]
    # a unigram model's is a list, where a token's place is its id
    ids = vocabulary.values() if isinstance(vocabulary, dict) else (len(vocabulary) - 1,)
    return max([*ids, *(token["id"] for token in definition.get("added_tokens", ()))], default=-1) + 1
