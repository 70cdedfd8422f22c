"""Keys that a record's JSON holds twice, of those that layouts use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import ID_NAMES, MESSAGE_LISTS
from retok_dask.completions.parsing import duplicated_key
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from retok_dask.recipe import DatasetSpec

_ELSEWHERE = {*ID_NAMES, "role", "content", "from", "value"}
"""Keys that occur in many places of a record, so that counting them at its top tells nothing."""

IN_MESSAGES = ("role", "content", "from", "value")
"""Keys of a message that decide what it is."""


_LISTS = frozenset(MESSAGE_LISTS)

FEW = 4
"""So many keys are counted one by one, each much faster than a pattern finds several."""

KNOWN = 256
"""How many sets of keys are remembered; a data set has few."""


@dataclass(frozen=True, slots=True)
class _Count:
    """How often keys may occur in the bytes of a record.

    Attributes:
        pattern: finds the keys as JSON strings: one pass over the bytes, whatever their number.
        names: keys of the record, once each.
        inner: keys of its messages, once a message.
        quoted: the names as they stand in JSON, where they are few and all there is to count: then the pattern
            is not needed. Else empty.
    """

    pattern: re.Pattern[bytes]
    names: tuple[bytes, ...]
    inner: tuple[bytes, ...]
    quoted: tuple[bytes, ...]


class DuplicateKeys:
    """Refuses records in which one object holds a key twice that a layout reads.

    Parsers take the last one silently. Where parsing is not known to be exact,
    counting the keys in the bytes tells nearly all records at once; only where
    one occurs more often than it should are the objects looked at one by one.

    Args:
        fields: the names that layouts read.
        spec: the data set.
    """

    def __init__(self, fields: Collection[str], spec: DatasetSpec) -> None:
        self._fields = frozenset({*fields, *spec.fields.values()})
        self._looked_for = {*self._fields, *IN_MESSAGES} - set(ID_NAMES)
        self._mend = "duplicate_keys" in spec.mend
        self._counts: dict[tuple[tuple[str, ...], tuple[str, ...]], _Count | None] = {}

    def refuse(self, raw: bytes, value: dict[str, Any], counts: dict[str, int]) -> None:
        """Look at a record.

        Raises:
            RecordRejected: ``duplicate_key``, unless the recipe mends it.
        """
        if not self._suspicious(raw, value):
            return
        key = duplicated_key(raw, self._looked_for)
        if key is None:
            return
        if not self._mend:
            raise RecordRejected(RejectReason.duplicate_key, f"one object holds the key {key!r} twice")
        counts["duplicate_keys_mended"] = counts.get("duplicate_keys_mended", 0) + 1

    def _suspicious(self, raw: bytes, value: dict[str, Any]) -> bool:
        own = tuple(value)
        messages = () if _LISTS.isdisjoint(own) else _messages(value)
        keys = (own, tuple(messages[0]) if messages and type(messages[0]) is dict else ())
        if keys not in self._counts:
            if len(self._counts) >= KNOWN:
                self._counts.clear()
            self._counts[keys] = self._count(*keys)
        count = self._counts[keys]
        if count is None:
            return False
        if count.quoted:
            return max(map(raw.count, count.quoted)) > 1
        found = count.pattern.findall(raw)
        for name in count.names:
            if found.count(name) > 1:
                return True
        return any(found.count(name) > len(messages) for name in count.inner)

    def _count(self, keys: tuple[str, ...], of_message: tuple[str, ...]) -> _Count | None:
        """How often the keys of such a record may occur; None where counting them tells nothing."""
        if "replies" in keys:
            return None  # a message tree: the same keys at every level, too many to count
        names = tuple(key.encode() for key in keys if key in self._fields and key not in _ELSEWHERE)
        inner = tuple(key.encode() for key in IN_MESSAGES if key in of_message)
        if not names and not inner:
            return None
        joined = b"|".join(map(re.escape, (*names, *inner)))
        quoted = tuple(b'"%b"' % name for name in names) if not inner and len(names) <= FEW else ()
        return _Count(re.compile(b'"(%b)"' % joined), names, inner, quoted)


def _messages(value: dict[str, Any]) -> Sequence[Any]:
    """The first list of messages that a record has."""
    for place in MESSAGE_LISTS:
        if type(value.get(place)) is list and value[place]:
            found: list[Any] = value[place]
            return found
    return ()
