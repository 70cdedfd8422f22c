"""Leaving good records out on purpose: share, roles, a user's function; and the key of exact duplicates."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.completions.layouts.own import call_own, own_answer, own_function
from retok_dask.types import (
    Conversation,
    Document,
    FilterReason,
    Item,
    Record,
    RecordFiltered,
    TokenRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.recipe import DatasetSpec


def record_filter(dataset_spec: DatasetSpec) -> Callable[[Record], None]:
    """The filter of parsed records: the sample by hash, then the user's function.

    The function given back raises :class:`RecordFiltered` for a record that
    is left out and :class:`RecordRejected` where the user's function fails.
    """
    share, seed = dataset_spec.sample, str(dataset_spec.seed)
    name = dataset_spec.filters.function
    function = None if name is None else own_function(name, "filter function")

    def check(record: Record) -> None:
        if share is not None and not in_sample(record, share, seed):
            raise RecordFiltered(FilterReason.sampled_out)
        if function is None:
            return
        assert name is not None
        kept = own_answer(call_own(function, name, record.value or {}), name)
        if not kept:
            raise RecordFiltered(FilterReason.user_filter, name)

    return check


def in_sample(record: Record, share: float, seed: str) -> bool:
    """Whether a record is in the sample: a hash of its file's name, its place and the seed.

    The place is the byte offset where there is one, else the row, so that the
    choice does not depend on how files are cut into units.
    """
    place = record.offset if record.offset >= 0 else record.row
    name = record.file.rpartition("/")[2]
    key = f"{seed}\0{name}\0{place}".encode("utf-8", "surrogateescape")
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return number < share * 2**64


def item_filter(dataset_spec: DatasetSpec) -> Callable[[Item], None]:
    """The filter of items by their roles; raises :class:`RecordFiltered`."""
    roles = dataset_spec.filters.roles
    allowed = None if roles is None else frozenset(roles)

    def check(item: Item) -> None:
        if allowed is None or not isinstance(item, Conversation):
            return
        other = {message["role"] for message in item.messages} - allowed
        if other:
            raise RecordFiltered(FilterReason.roles, f"has {', '.join(sorted(other))}")

    return check


def content_key(item: Item) -> bytes:
    """16 bytes that are the same for items with the same content, whatever their file, id or kept columns."""
    if isinstance(item, Conversation):
        content: Any = ["chat", item.messages, item.tools, item.flags]
    elif isinstance(item, Document):
        content = ["text", item.text]
    else:
        content = ["tokens", _tokens(item)]
    try:
        data = orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    except TypeError:  # integers past 64 bits, in a tool call for example
        data = json.dumps(content, sort_keys=True, default=str).encode()
    return hashlib.blake2b(data, digest_size=16).digest()


def _tokens(item: TokenRow) -> list[Any]:
    mask = None if item.loss_mask is None else [bool(flag) for flag in item.loss_mask]
    return [[int(token) for token in item.input_ids], mask]
