"""Exact duplicates, found before the run so that every unit knows its own, whatever the order of work.

One pass reads the records and hashes their content, 16 bytes each; the client
keeps the first of each in the order of the listing. What a unit must leave out
lies in the output folder beside the receipts, so a resumed run needs no second
pass, and the graph stays small.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import dask.bag as db
import numpy as np
import orjson
from distributed import as_completed

from retok_dask.cluster.connect import refuse_lost
from retok_dask.cluster.local import own_cluster
from retok_dask.completions import Unit, content_key, item_filter, layout_for, read_records, record_filter
from retok_dask.errors import ClusterError, count_of
from retok_dask.recipe import Recipe, digest
from retok_dask.types import Conversation, RecordFiltered, RecordRejected, Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from distributed import Client, Future

    from retok_dask.datasets import OutputFolder
    from retok_dask.kernel.pending import Mark
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item, Record

FOLDER = "_retok/duplicates"
INDEX = f"{FOLDER}/index.json"
KEY_BYTES = 16

QUIET_SECONDS = 600.0
"""Longest time without one unit read that a cluster of ours is given."""


@dataclass(frozen=True)
class Found:
    """What the pass found.

    Attributes:
        items: how many items are duplicates.
        unread: why the keys of a unit are unknown, by its id; all its items stay.
    """

    items: int
    unread: dict[str, str]

    @property
    def warning(self) -> str:
        """A sentence on the units that were not read; empty if there are none."""
        if not self.unread:
            return ""
        name, why = next(iter(self.unread.items()))
        return (
            f"duplicates were not looked for in {count_of(len(self.unread), 'unit')} that could not be read then, so all "
            f"items there stay; the first is {name!r}: {why}"
        )


def drops_duplicates(spec: DatasetSpec) -> bool:
    """Whether duplicates of a data set are left out: where it says so, and always for prompts."""
    return spec.filters.duplicates == "drop" or spec.mode == "prompts"


def mark_duplicates(
    client: Client, recipe: Recipe, units: Sequence[Unit], folder: OutputFolder, tick: Callable[[], None]
) -> Found | None:
    """Find the duplicates among all units of a run and leave each unit its list.

    The first item in the order of the listing stays, across data sets. A unit
    whose keys cannot be read keeps all its items, and is named with the reason:
    its own faults are found when it is encoded.

    Args:
        client: the run's client.
        recipe: as the run resolved it.
        units: all units of the run, committed ones too.
        folder: the run's output.
        tick: called now and then, to draw and to look for trouble.

    Returns:
        What was found; None if no data set asks.

    Raises:
        ClusterError: the scheduler is lost, tasks are cancelled, or workers of ours read nothing for
            :data:`QUIET_SECONDS`.
    """
    names = {spec.name for spec in recipe.datasets if drops_duplicates(spec)}
    chosen = [unit for unit in units if unit.dataset in names]
    if not chosen:
        return None
    listing = digest([unit.id for unit in chosen])
    known = folder.read_json(INDEX) if folder.exists(INDEX) else None
    if known is not None and known["listing"] == listing:
        return Found(int(known["found"]), known.get("unread", {}))
    keys = _all_keys(client, recipe, chosen, tick)
    found = 0
    for unit, marks in _later_ones(chosen, keys):
        if marks:
            folder.write_json(unit_list(unit.id), marks)
            found += len(marks)
    unread = {unit.id: keys[unit.id]["failed"] for unit in chosen if keys[unit.id]["failed"]}
    folder.write_json(INDEX, {"listing": listing, "found": found, "unread": unread})
    return Found(found, unread)


def unit_list(unit: str) -> str:
    """Path of a unit's list of duplicates below the output folder."""
    return f"{FOLDER}/units/{unit}.json"


def duplicates_of(folder: OutputFolder, unit: str) -> frozenset[Mark]:
    """The items that a unit must leave out."""
    path = unit_list(unit)
    if not folder.exists(path):
        return frozenset()
    return frozenset((file, position, number) for file, position, number in folder.read_json(path))


def unit_keys(unit: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Task: content key and place of every item of a unit that would be encoded.

    Returns:
        ``keys``: 16 bytes an item, joined; ``marks``: JSON of their places;
        ``failed``: why the unit could not be read, if so.
    """
    loaded = Recipe.from_dict(recipe)
    made = Unit.from_dict(unit)
    spec = next(spec for spec in loaded.datasets if spec.name == made.dataset)
    keys: list[bytes] = []
    marks: list[Mark] = []
    try:
        _collect(made, spec, loaded, keys, marks)
    except Exception as error:  # noqa: BLE001  the unit's faults are judged when it is encoded
        return {"keys": b"", "marks": b"[]", "failed": f"{type(error).__name__}: {error}"}
    return {"keys": b"".join(keys), "marks": orjson.dumps(marks), "failed": ""}


def _collect(unit: Unit, spec: DatasetSpec, recipe: Recipe, keys: list[bytes], marks: list[Mark]) -> None:
    for key, mark in _keys_of(read_records(unit, spec, recipe), spec):
        keys.append(key)
        marks.append(mark)


def _keys_of(records: Iterable[Record | Reject], spec: DatasetSpec) -> Iterator[tuple[bytes, Mark]]:
    """Content key and place of every item that would be encoded."""
    layout, check_record, check_item = layout_for(spec), record_filter(spec), item_filter(spec)
    for record in records:
        if isinstance(record, Reject):
            continue
        try:
            check_record(record)
            items = layout(record)
        except (RecordRejected, RecordFiltered):
            continue
        for number, item in enumerate(items):
            try:
                check_item(item)
            except RecordFiltered:
                continue
            place = record.offset if record.offset >= 0 else record.row
            yield content_key(_compared(item, spec)), (record.file, place, number)


def sampled_duplicates(records: Iterable[Record | Reject], spec: DatasetSpec, seen: set[bytes]) -> frozenset[Mark]:
    """The items of a sample that a run would leave out for what is in the sample before them.

    Args:
        records: of one data set.
        spec: the data set.
        seen: keys of the samples before; those of this one are added.
    """
    if not drops_duplicates(spec):
        return frozenset()
    later = set()
    for key, mark in _keys_of(records, spec):
        if key in seen:
            later.add(mark)
        seen.add(key)
    return frozenset(later)


def _compared(item: Item, spec: DatasetSpec) -> Item:
    """What of an item is compared: of a prompt, what is before the answer."""
    if spec.mode != "prompts" or not isinstance(item, Conversation):
        return item
    users = [number for number, message in enumerate(item.messages) if message.get("role") == "user"]
    return Conversation(item.messages[: users[-1] + 1] if users else item.messages, item.tools)


def _all_keys(
    client: Client, recipe: Recipe, units: Sequence[Unit], tick: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    data = recipe.model_dump(mode="json", exclude_unset=True)
    bag = db.from_sequence([unit.to_dict() for unit in units], npartitions=len(units)).map(unit_keys, recipe=data)
    futures = client.compute(bag.to_delayed())
    owner = {future.key: unit.id for future, unit in zip(futures, units, strict=True)}
    answers: dict[str, dict[str, Any]] = {}
    waiting, heard = as_completed(futures, loop=client.loop), monotonic()
    while waiting.count():
        tick()
        if not waiting.has_ready():
            sleep(0.02)
            if own_cluster(client) and monotonic() - heard > QUIET_SECONDS:
                msg = (
                    f"no unit was read for {QUIET_SECONDS:.0f} s while looking for duplicates: a worker or the storage "
                    "stands still; nothing is lost: start the same command again"
                )
                raise ClusterError(msg)
            continue
        for future in waiting.next_batch(block=False):
            heard = monotonic()
            if future.cancelled():
                _refuse_cancelled(client, owner[future.key])
            answers[owner[future.key]] = _answer_of(future)
            future.release()
    return answers


def _refuse_cancelled(client: Client, unit: str) -> None:
    """A unit whose task was cancelled is at no fault: what it holds must not go unread for good.

    Raises:
        ClusterError: always.
    """
    error = CancelledError(unit)
    refuse_lost(client, error)
    msg = (
        f"the task that looks for duplicates in unit {unit!r} was cancelled on the cluster, by a restart or by another "
        "client; nothing is lost: start the same command again"
    )
    raise ClusterError(msg) from error


def _answer_of(future: Future) -> dict[str, Any]:
    if future.status == "finished":
        return dict(future.result()[0])
    why = future.exception() if future.status == "error" else future.status
    return {"keys": b"", "marks": b"[]", "failed": f"its worker brought no answer: {why!r:.300}"}


def _later_ones(units: Sequence[Unit], answers: dict[str, dict[str, Any]]) -> list[tuple[Unit, list[Any]]]:
    """Each unit with the marks of its items whose content came before."""
    counts = [len(answers[unit.id]["keys"]) // KEY_BYTES for unit in units]
    keys = np.frombuffer(b"".join(answers[unit.id]["keys"] for unit in units), np.dtype((np.void, KEY_BYTES)))
    later = np.ones(len(keys), np.bool_)
    if len(keys):
        later[np.unique(keys, return_index=True)[1]] = False
    ends = np.cumsum(counts)
    found = []
    for unit, end, count in zip(units, ends.tolist(), counts, strict=True):
        marks = orjson.loads(answers[unit.id]["marks"])
        mine = later[end - count : end]
        found.append((unit, [marks[place] for place in np.flatnonzero(mine).tolist()]))
    return found
