"""Rows that hold token ids already, with their loss mask and segments if they have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retok_dask.errors import count_of
from retok_dask.types import KIND_NAMES, RecordRejected, RejectReason, TokenRow

if TYPE_CHECKING:
    import numpy.typing as npt

    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

IDS = ("input_ids", "token_ids", "tokens", "ids")
MASKS = ("loss_mask", "assistant_masks", "assistant_mask", "completion_mask", "labels_mask", "mask")
IGNORED = -100
"""The label of a token that is not trained."""


def fits_ids(record: dict[str, Any]) -> bool:
    """Something under one of the usual names of ids."""
    return any(name in record for name in IDS)


def build_ids(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """One row of ids; the mask from a mask column, or from unshifted labels.

    Raises:
        RecordRejected: ``bad_tokens``.
    """
    del spec
    name = next((n for n in IDS if record.get(n) is not None), None)
    if name is None:
        _refuse(f"no ids under any of: {', '.join(IDS)}")
    ids = _integers(record[name], name)
    if not len(ids):
        _refuse("no ids")
    return [TokenRow(ids, _mask(record, ids), _segments(record, len(ids)))]


def _refuse(detail: str) -> NoReturn:
    raise RecordRejected(RejectReason.bad_tokens, detail) from None


def _integers(value: Any, name: str) -> npt.NDArray[np.int64]:
    if isinstance(value, list) and not all(type(item) is int for item in value):
        _refuse(f"{name} holds something else than integers")
    if not isinstance(value, list | np.ndarray):
        _refuse(f"{name} is no list")
    try:
        return np.asarray(value, dtype=np.int64)
    except OverflowError:
        _refuse(f"{name} holds a number beyond 64 bits")


def _mask(record: dict[str, Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    name = next((n for n in MASKS if record.get(n) is not None), None)
    if name is not None:
        values = record[name]
        if isinstance(values, list) and not all(item in (0, 1) for item in values):
            _refuse(f"{name} holds something else than 0, 1, true and false")
        mask = np.asarray(values)
        if mask.shape != ids.shape or (mask.dtype != np.bool_ and not np.isin(mask, (0, 1)).all()):
            _refuse(
                f"{name} has {count_of(mask.size, 'entry', 'entries')} for {count_of(ids.size, 'id')}, or entries other than 0 and 1"
            )
        return mask.astype(np.bool_)
    if record.get("labels") is None:
        return None
    labels = _integers(record["labels"], "labels")
    if labels.shape != ids.shape:
        _refuse(f"labels has {count_of(labels.size, 'entry', 'entries')} for {count_of(ids.size, 'id')}")
    trained = labels != IGNORED
    if (labels[trained] != ids[trained]).any():
        _refuse("labels are neither -100 nor the id at the same place; shifted labels are not taken")
    return np.asarray(trained)


def _segments(record: dict[str, Any], size: int) -> list[tuple[int, int, str, int]] | None:
    value = record.get("segments")
    if value is None:
        return None
    try:
        # as files of a run hold them, or as lists, as ``retok encode`` prints them
        parts = [s if isinstance(s, list) else (s["start"], s["end"], s["kind"], s["message"]) for s in value]
        segments = [(int(start), int(end), str(kind), int(message)) for start, end, kind, message in parts]
    except (TypeError, KeyError, ValueError):
        _refuse("segments are no list of objects with start, end, kind and message")
    at = 0
    for start, end, kind, _ in segments:
        if start != at or end <= start or kind not in KIND_NAMES:
            _refuse(f"segments do not cover the ids in order, or have an unknown kind, at id {at}")
        at = end
    if at != size:
        _refuse(f"segments end at id {at} of {size}")
    return segments
