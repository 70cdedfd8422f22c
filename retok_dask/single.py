"""One tokenizer and one template in this process, without a cluster: show, audit, encode a pipe."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.compute as pc

from retok_dask.completions import layout_for, list_inputs, open_fs, read_records, read_stream
from retok_dask.datasets import open_dataset
from retok_dask.datasets.rows import rows_of
from retok_dask.doing import doing
from retok_dask.errors import InputError, RecipeError, count_of, did_you_mean
from retok_dask.kernel import Kernel
from retok_dask.recipe import Recipe
from retok_dask.templates import ChatTemplate, control_strings, require_same_text
from retok_dask.tokenizers import Tokenizer
from retok_dask.tokenizers.switches import switches
from retok_dask.types import Conversation, Record, RecordRejected, Reject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import BufferedReader
    from typing import BinaryIO

    import pyarrow as pa

    from retok_dask.datasets import TokenDataset
    from retok_dask.kernel import Batch
    from retok_dask.recipe import DatasetSpec
    from retok_dask.templates import Audit
    from retok_dask.types import Item

AUDIT_RECORDS = 2000
"""Records that `retok audit` reads when it is given an input."""


LOOK_BYTES = 64 * 1024
"""Text that is encoded at once where one row is looked for: the first rows of a file are found soon."""


@dataclass
class Pipeline:
    """A tokenizer, a chat template and a mask policy, ready to use in this process.

    Attributes:
        recipe: what they were made from; its output is never written.
    """

    recipe: Recipe

    @classmethod
    def open(
        cls,
        tokenizer: str,
        *,
        template: str | None = None,
        mask: str | None = None,
        mode: str | None = None,
        data: str | None = None,
        dataset: str | None = None,
    ) -> Pipeline:
        """Make a pipeline from what a command line names.

        Args:
            tokenizer: anything that a recipe takes as tokenizer, or the path of
                a recipe (``.yaml``) whose tokenizer, template and mask are used.
            template: a file with the chat template, in place of the tokenizer's own.
            mask: a policy in place of ``assistant`` or the recipe's.
            mode: ``chat``, ``text``, ``tokens`` or ``prompts``, in place of ``chat`` or the recipe's.
            data: an input in place of the recipe's.
            dataset: which of a recipe's data sets says how records are read;
                None for the one whose input holds `data`, else the first.

        Raises:
            RecipeError: there is no tokenizer or data set, or a value is impossible.
        """
        if not tokenizer:
            msg = "no tokenizer; name one with --tokenizer: a hub id, a folder, a tokenizer.json, or a recipe"
            raise RecipeError(msg)
        if tokenizer.endswith((".yaml", ".yml")):
            recipe = Recipe.load(tokenizer)
            given = recipe.model_dump(mode="json", exclude_unset=True)
        else:
            given = {"tokenizer": tokenizer, "output": "-", "datasets": [{"input": "-"}]}
            recipe = Recipe.from_dict(given, source="command line")
        spec = dict(given["datasets"][_chosen(recipe, dataset, data)])
        spec |= {name: value for name, value in (("input", data), ("mode", mode)) if value is not None}
        changes = {name: value for name, value in (("template", template), ("mask", mask)) if value is not None}
        return cls(Recipe.from_dict(given | changes | {"datasets": [spec]}, source="command line"))

    @property
    def dataset(self) -> DatasetSpec:
        """The one data set."""
        return self.recipe.datasets[0]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded when first asked for."""
        recipe = self.recipe
        return Tokenizer.load(recipe.tokenizer, storage=recipe.storage, engine=recipe.engine, patient=True)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template, loaded and proved when first asked for."""
        date = self.recipe.date or dt.datetime.now(dt.UTC).date()
        template = ChatTemplate.load(self.recipe.template, tokenizer=self.tokenizer, recipe=self.recipe, date=date)
        if not self.recipe.template.plain_markers:
            self.tokenizer.require_control(control_strings(template))
        return template

    def _kernel(self) -> Kernel:
        if self.dataset.mode not in ("chat", "prompts"):
            return Kernel(self.recipe, self.dataset, self.tokenizer, None)
        require_same_text(self.template, self.tokenizer)
        return Kernel(self.recipe, self.dataset, self.tokenizer, self.template)

    def process(self, records: Iterable[Record | Reject]) -> Iterator[Batch]:
        """Records to batches, as a worker does it."""
        return self._kernel().process(records)

    def records(self) -> Iterator[Record | Reject]:
        """Records of the pipeline's input, in order."""
        for unit in list_inputs(self.recipe).units:
            yield from read_records(unit, self.dataset, self.recipe)

    def items(self) -> Iterator[Item]:
        """Conversations, documents or rows of ids of the input; records that are none are left out."""
        layout = layout_for(self.dataset)
        for record in self.records():
            if isinstance(record, Reject):
                continue
            try:
                yield from layout(record)
            except RecordRejected:
                continue

    def encode(self, items: Sequence[Item | dict[str, Any]]) -> list[dict[str, Any]]:
        """Samples of conversations, documents or records.

        Args:
            items: :class:`~retok_dask.types.Conversation` objects and the like,
                or dicts as they lie in a file (``{"messages": [...]}``).

        Returns:
            One dict a row: lists as numpy arrays, segments as (start, end, kind, message).

        Raises:
            RecordRejected: one of them cannot be used; its reason says why.
        """
        layout = layout_for(self.dataset)
        found: list[Item] = []
        for number, item in enumerate(items):
            found += layout(Record("memory", number, -1, None, item)) if isinstance(item, dict) else [item]
        rows: list[dict[str, Any]] = []
        for batch in self._kernel().process_items(found):
            refused = batch.rejects.to_pylist()
            if refused:
                raise RecordRejected(refused[0]["reason"], refused[0]["detail"])
            rows.extend(rows_of(batch.samples))
        return rows


def _chosen(recipe: Recipe, name: str | None, data: str | None) -> int:
    """Which data set of a recipe says how records are read: the one named, the one that holds an input, the first."""
    names = [spec.name for spec in recipe.datasets]
    if name is not None:
        if name not in names:
            msg = f"there is no data set {name!r}.{did_you_mean(name, names)}"
            raise RecipeError(msg)
        return names.index(name)
    holding = (number for number, spec in enumerate(recipe.datasets) if data is not None and _holds(spec, data))
    return next(holding, 0)


def _holds(spec: DatasetSpec, data: str) -> bool:
    """Whether a data set's input names a place, as far as the names say."""
    place = _full(data)
    patterns = map(_full, [spec.input] if isinstance(spec.input, str) else spec.input)
    return any(fnmatch(place, pattern) or place.startswith(f"{pattern}/") for pattern in patterns)


def _full(place: str) -> str:
    local = place.removeprefix("file://")
    return place if "://" in local else str(Path(local).absolute())


@dataclass(frozen=True)
class FoundSample:
    """A sample and the tokenizer that made it; draws itself in a notebook.

    Attributes:
        sample: the row as a dict.
        tokenizer: decodes its ids.
    """

    sample: dict[str, Any]
    tokenizer: Tokenizer

    def to_text(self) -> str:
        """The tokens for a terminal, coloured where it takes colours."""
        from retok_dask.views import show_text  # noqa: PLC0415  drawing is asked for here only

        return show_text(self.sample, self.tokenizer)

    def _repr_html_(self) -> str:
        from retok_dask.views import token_view  # noqa: PLC0415

        return token_view(self.sample, self.tokenizer)._repr_html_()


def find_sample(
    place: str,
    *,
    row: int = 0,
    sample: str | None = None,
    tokenizer: str | None = None,
    template: str | None = None,
    dataset: str | None = None,
) -> FoundSample:
    """One sample of a written run, or of an input file encoded on the spot.

    Args:
        place: a folder written by a run, or an input file or glob.
        row: which one, from 0, where `sample` does not say.
        sample: a sample id.
        tokenizer, template, dataset: as in :meth:`Pipeline.open`; a tokenizer is needed for an input file.

    Raises:
        InputError: there is no such row.
        OutputError: the folder is no finished run.
    """
    if row < 0:
        msg = f"row is {row}; it is 0 or more"
        raise InputError(msg)
    if tokenizer is None:
        return _written_sample(place, row, sample)
    pipeline = Pipeline.open(tokenizer, template=template, data=place, dataset=dataset)
    units = pipeline.recipe.units.model_dump(exclude_unset=True) | {"batch_bytes": LOOK_BYTES}
    pipeline = replace(pipeline, recipe=pipeline.recipe.with_changes(units=units))
    rows = 0
    for batch in pipeline.process(pipeline.records()):
        number = row - rows if sample is None else _index(batch.samples, sample)
        if 0 <= number < batch.samples.num_rows:
            return FoundSample(next(rows_of(batch.samples.slice(number, 1))), pipeline.tokenizer)
        rows += batch.samples.num_rows
    raise InputError(_not_there(place, rows, row, sample, "--row shows one by its number, with its id"))


def show(place: str, **choice: Any) -> FoundSample:
    """The sample of :func:`find_sample`, which draws itself in a notebook."""
    return find_sample(place, **choice)


def _written_sample(place: str, row: int, sample: str | None) -> FoundSample:
    fs, path = open_fs(place, None)
    if fs.isfile(path):
        msg = f"{place!r} is an input file; name its tokenizer with --tokenizer"
        raise InputError(msg)
    data = open_dataset(place)
    if sample is not None:
        row = _row_of(data, sample)
    if not 0 <= row < len(data):
        way = f"open_dataset({place!r}).to_pandas() lists them, `retok rejects {place}` what was left out"
        raise InputError(_not_there(place, len(data), row, sample, way))
    return FoundSample(
        data[row], Tokenizer.load(data.recipe.tokenizer, storage=data.recipe.storage, engine="reference")
    )


def _row_of(data: TokenDataset, sample: str) -> int:
    """The number of the row with a sample id, which is looked for once, in order; -1 if there is none."""
    before = 0
    for batch in data.select(["sample_id"]).batches():
        number = _index(batch, sample)
        if number >= 0:
            return before + number
        before += batch.num_rows
    return -1


def _index(rows: pa.RecordBatch, sample: str) -> int:
    return int(pc.index(rows.column("sample_id"), sample).as_py())


def _not_there(place: str, rows: int, row: int, sample: str | None, way: str) -> str:
    if not rows:
        return f"{place!r} has no rows; {way}"
    if sample is None:
        return f"{place!r} has no row {row:,}: it has {count_of(rows, 'row')}, the last is {rows - 1:,}; {way}"
    return f"{place!r} has no sample {sample!r} among its {count_of(rows, 'row')}; {way}"


def audit_input(data: str | None, *, tokenizer: str, template: str | None = None, dataset: str | None = None) -> Audit:
    """What a chat template does, and to how many of the first records of an input.

    Args:
        data: an input file or glob, or None to look at the template alone.
        tokenizer, template, dataset: as in :meth:`Pipeline.open`.

    Raises:
        TemplateError: there is no template, or it does not compile.
    """
    from retok_dask.templates import audit  # noqa: PLC0415

    pipeline = Pipeline.open(tokenizer, template=template, data=data, dataset=dataset)
    found = islice(pipeline.items(), AUDIT_RECORDS) if data is not None else iter(())
    talks = [item for item in found if isinstance(item, Conversation)]
    result = audit(pipeline.template, talks, tokenizer=pipeline.tokenizer)
    result.settings += switches(pipeline.tokenizer, pipeline.recipe.tokenizer, pipeline.recipe.storage)
    return result


def encode_stream(
    source: BufferedReader,
    sink: BinaryIO,
    *,
    tokenizer: str,
    template: str | None = None,
    mask: str | None = None,
    mode: str | None = None,
    dataset: str | None = None,
) -> int:
    """JSON lines in, JSON lines with ids, mask and segments out; returns how many records were left out.

    A record that is left out comes out as a line with ``reason`` and
    ``detail`` in place of ids, so that nothing goes missing in silence. Each
    segment is ``[start, end, kind, message]``.
    """
    pipeline = Pipeline.open(tokenizer, template=template, mask=mask, mode=mode, dataset=dataset)
    left_out = 0
    for batch in pipeline.process(read_stream(source, "-", pipeline.recipe.units.record_bytes)):
        doing("")
        sink.writelines(
            orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
            for row in rows_of(batch.samples)
        )
        for refused in batch.rejects.to_pylist():
            del refused["raw"]
            left_out += 1
            sink.write(orjson.dumps(refused, option=orjson.OPT_APPEND_NEWLINE))
        sink.flush()
    return left_out
