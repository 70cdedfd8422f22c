"""Keys that a record's JSON holds twice, of those that layouts use."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import ID_NAMES, MESSAGE_LISTS
from retok_dask.completions.parsing import duplicated_key
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Collection

    from retok_dask.recipe import DatasetSpec

_ELSEWHERE = {*ID_NAMES, "role", "content", "from", "value"}
"""Keys that occur in many places of a record, so that counting them at its top tells nothing."""

IN_MESSAGES = ("role", "content", "from", "value")
"""Keys of a message that decide what it is."""


def refuse_duplicates(
    raw: bytes, value: dict[str, Any], fields: Collection[str], spec: DatasetSpec, counts: dict[str, int]
) -> None:
    """Refuse a record in which one object holds a key twice that a layout reads.

    Parsers take the last one silently. Counting the key in the bytes tells
    nearly all records at once; only where it occurs more often than it should
    are the objects looked at one by one.

    Raises:
        RecordRejected: ``duplicate_key``, unless the recipe mends it.
    """
    if not _suspicious(raw, value, fields, spec):
        return
    key = duplicated_key(raw, {*fields, *IN_MESSAGES, *spec.fields.values()} - set(ID_NAMES))
    if key is None:
        return
    if "duplicate_keys" not in spec.mend:
        raise RecordRejected(RejectReason.duplicate_key, f"one object holds the key {key!r} twice")
    counts["duplicate_keys_mended"] = counts.get("duplicate_keys_mended", 0) + 1


def _suspicious(raw: bytes, value: dict[str, Any], fields: Collection[str], spec: DatasetSpec) -> bool:
    if "replies" in value:
        return False  # a message tree: the same keys at every level, too many to count
    messages: list[Any] = []
    names: list[str] = []
    for name, item in value.items():
        if name in fields or (spec.fields and name in spec.fields.values()):
            if name not in _ELSEWHERE:
                names.append(name)
            if name in MESSAGE_LISTS and isinstance(item, list) and not messages:
                messages = item
    inner = [name for name in IN_MESSAGES if name in messages[0]] if messages and isinstance(messages[0], dict) else []
    if not names and not inner:
        return False
    found = _pattern((*names, *inner)).findall(raw)
    return any(found.count(name.encode()) > 1 for name in names) or any(
        found.count(name.encode()) > len(messages) for name in inner
    )


@lru_cache(256)
def _pattern(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Finds these names as JSON strings: one pass over the bytes, whatever their number."""
    return re.compile(b'"(%b)"' % b"|".join(re.escape(name.encode()) for name in names))
