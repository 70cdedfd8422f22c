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
    """

    steps: dict[str, Any]
    table: ByteTable | None

    @classmethod
    def of(cls, definition_json: str) -> Self:
        """Read a definition."""
        data = orjson.loads(definition_json)
        table = ByteTable.of(data) if is_byte_level(data) else None
        model = {name: value for name, value in data["model"].items() if name not in ("vocab", "merges")}
        return cls(data | {"model": model}, table)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"steps": self.steps, "table": None if self.table is None else self.table.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The outline of :meth:`to_dict`."""
        return cls(data["steps"], None if data["table"] is None else ByteTable.from_dict(data["table"]))
