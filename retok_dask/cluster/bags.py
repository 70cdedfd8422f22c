"""Completions and samples as ``dask.bag``s, for one's own analysis in a notebook."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import dask
import dask.bag

from retok_dask.cluster.connect import current_client
from retok_dask.cluster.job import EncodeJob, OpenEncodeJob
from retok_dask.cluster.models import load_models
from retok_dask.completions import Unit, layout_for, list_inputs, read_records
from retok_dask.datasets.rows import rows_of
from retok_dask.errors import RecipeError, did_you_mean
from retok_dask.recipe import DatasetSpec, Recipe
from retok_dask.types import RecordRejected, Reject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dask.bag import Bag

    from retok_dask.types import Item

_NO_TOKENIZER = "none"
_opened: dict[str, OpenEncodeJob] = {}


def read_completions(source: Recipe | DatasetSpec | str, *, dataset: str | None = None, rejects: bool = False) -> Bag:
    """The records of a data set as a bag of conversations (or documents, or rows of ids), one unit a partition.

    Args:
        source: a recipe (or the path of its YAML file), one of its data sets, or an input (file, glob, folder, URL).
        dataset: which data set of a recipe; None for all of them.
        rejects: give records that are none as :class:`~retok_dask.types.Reject`
            too; else they are left out.

    Raises:
        InputError: the input matches nothing.
        RecipeError: the recipe has no such data set.
    """
    recipe = _recipe_of(source)
    names = [spec.name for spec in recipe.datasets]
    if dataset is not None and dataset not in names:
        msg = f"the recipe has no data set {dataset!r}.{did_you_mean(dataset, names)}"
        raise RecipeError(msg)
    units = [unit.to_dict() for unit in list_inputs(recipe).units if dataset in {None, unit.dataset}]
    data = recipe.model_dump(mode="json", exclude_unset=True)
    return dask.bag.from_sequence(units, npartitions=max(1, len(units))).map_partitions(_read_units, data, rejects)


def _recipe_of(source: Recipe | DatasetSpec | str) -> Recipe:
    if isinstance(source, Recipe):
        return source
    if isinstance(source, str) and source.endswith((".yaml", ".yml")):
        return Recipe.load(source)
    spec = (
        source.model_dump(mode="json", exclude_unset=True)
        if isinstance(source, DatasetSpec)
        else {"input": str(source)}
    )
    return Recipe.from_dict({"tokenizer": _NO_TOKENIZER, "output": _NO_TOKENIZER, "datasets": [spec]})


def _read_units(units: Iterable[dict[str, Any]], recipe_data: dict[str, Any], rejects: bool) -> Iterator[Item | Reject]:
    recipe = Recipe.from_dict(recipe_data)
    specs = {spec.name: spec for spec in recipe.datasets}
    for data in units:
        unit = Unit.from_dict(data)
        layout = layout_for(specs[unit.dataset])
        for record in read_records(unit, specs[unit.dataset], recipe):
            if isinstance(record, Reject):
                if rejects:
                    yield record
                continue
            try:
                yield from layout(record)
            except RecordRejected as problem:
                if rejects:
                    yield Reject(record.file, record.row, record.offset, problem.reason, problem.detail, record.raw)


def encode(bag: Bag, *, tokenizer: Any, template: Any = None, mask: Any = "assistant", **settings: Any) -> Bag:
    """A bag of conversations, documents or rows of ids as a bag of samples.

    Args:
        bag: as :func:`read_completions` gives it, or made otherwise.
        tokenizer, template, mask: as in a recipe.
        settings: any other key of a recipe that changes samples, such as
            ``history``, ``max_length`` or ``control_tokens``.

    Returns:
        One dict a row: numpy arrays ``input_ids`` and ``loss_mask``,
        ``segments`` and the rest of the sample schema. An item that cannot be
        used comes as a dict with ``reason`` and ``detail`` instead.

    Raises:
        RecipeError, TokenizerError, TemplateError: a setting cannot be used.
    """
    mode = settings.pop("mode", "chat")
    data: dict[str, Any] = {"tokenizer": tokenizer, "mask": mask, "output": "memory", **settings}
    data["datasets"] = [{"name": "memory", "input": "memory", "mode": mode}]
    if template is not None:
        data["template"] = template
    recipe = Recipe.from_dict(data, source="encode")
    date = recipe.date or dt.datetime.now(dt.UTC).date()
    loaded, proved = load_models(recipe.with_changes(date=date), date)
    job = EncodeJob.of(f"bag-{uuid.uuid4().hex}", recipe.with_changes(date=date), loaded, proved)
    client = current_client()
    # sent once to each worker, or kept once in this process: never a copy in each task
    shared = dask.delayed(client.scatter(job, broadcast=True) if client is not None else job, traverse=False)
    return bag.map_partitions(_encode_items, shared)


def _encode_items(items: Iterable[Item], job: EncodeJob) -> Iterator[dict[str, Any]]:
    if job.run_id not in _opened:
        _opened.clear()  # one job at a time: a notebook makes many
        _opened[job.run_id] = job.open()
    opened = _opened[job.run_id]
    for batch in opened.kernel("memory").process_items(items):
        yield from rows_of(batch.samples)
        for refused in batch.rejects.to_pylist():
            yield {"reason": refused["reason"], "detail": refused["detail"], "source_row": refused["source_row"]}
