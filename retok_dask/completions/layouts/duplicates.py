"""Keys that a record's JSON holds twice, of those that layouts use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import ID_NAMES, MESSAGE_LISTS
from retok_dask.completions.parsing import duplicated_key
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Collection

    from retok_dask.recipe import DatasetSpec

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
    messages: list[Any] = []
    for name, item in value.items():
        used = name in fields or (spec.fields and name in spec.fields.values())
        if used and name not in ID_NAMES and name not in IN_MESSAGES and raw.count(b'"%b"' % name.encode()) > 1:
            return True
        if name in MESSAGE_LISTS and isinstance(item, list) and not messages:
            messages = item
    if not messages or not isinstance(messages[0], dict):
        return False
    return any(raw.count(b'"%b"' % name.encode()) > len(messages) for name in IN_MESSAGES if name in messages[0])
