"""The real job of a run: read a unit, encode it, write it, commit it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson
from distributed.metrics import context_meter

from retok_dask.cluster.duplicates import drops_duplicates, duplicates_of
from retok_dask.cluster.isolation import SetAside
from retok_dask.cluster.resources import give_back
from retok_dask.completions import read_records
from retok_dask.datasets import OutputFolder, Receipt, UnitWriter
from retok_dask.datasets.receipts import check_files
from retok_dask.errors import OutputError
from retok_dask.kernel import Kernel, Source, UnitStats
from retok_dask.recipe import Recipe
from retok_dask.schema import kept_columns
from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import Kind, Record, Reject, Rendered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.cluster.worker import Teller
    from retok_dask.completions import Unit
    from retok_dask.kernel.pending import Mark


@dataclass(frozen=True)
class EncodeJob:
    """All that a worker needs, in a form that travels: no paths of the client's machine, no hub.

    Attributes:
        run_id: names the run on the cluster.
        recipe: as JSON values, with the date frozen.
        tokenizer: :meth:`Tokenizer.payload`.
        template: :meth:`ChatTemplate.reduce`'s state, or None.
        fingerprint: digest that receipts carry.
        sources: what made the rows of each data set of ids, packed.
    """

    run_id: str
    recipe: dict[str, Any]
    tokenizer: bytes
    template: Any
    fingerprint: str
    sources: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        run_id: str,
        recipe: Recipe,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        fingerprint: str = "",
        sources: dict[str, Source] | None = None,
    ) -> EncodeJob:
        """Pack a job on the client."""
        data = recipe.model_dump(mode="json", exclude_unset=True)
        state = template.reduce() if template is not None else None
        packed = {name: source.pack() for name, source in (sources or {}).items()}
        return cls(run_id, data, tokenizer.payload(), state, fingerprint, packed)

    def open(self) -> OpenEncodeJob:
        """Load tokenizer and template; once a process."""
        return OpenEncodeJob(self)


class OpenEncodeJob:
    """The job as it works in one process."""

    def __init__(self, job: EncodeJob) -> None:
        self.recipe = Recipe.from_dict(job.recipe)
        self.fingerprint = job.fingerprint
        self.seconds_per_record = self.recipe.units.seconds_per_record
        self._datasets = {spec.name: spec for spec in self.recipe.datasets}
        self._kernels: dict[str, Kernel] = {}
        self._sources = job.sources
        self._tokenizer = Tokenizer.from_payload(job.tokenizer)
        self._template = ChatTemplate.restore(job.template) if job.template is not None else None
        # engines load at first use, which takes seconds: not within the first record's time limit
        self._tokenizer.encode([Rendered("warm", [0], [int(Kind.content)], [-1])])
        if self._template is not None:
            self._template.warm_up()
        # loading leaves much behind; what stays, stays for good: the collector need not walk it again and again
        give_back()
        gc.freeze()

    @cached_property
    def keep(self) -> tuple[str, ...]:
        return kept_columns(self.recipe)

    def kernel(self, dataset: str) -> Kernel:
        """The kernel of a data set, made once."""
        if dataset not in self._kernels:
            spec = self._datasets[dataset]
            source = Source.unpack(self._sources[dataset]) if dataset in self._sources else None
            self._kernels[dataset] = Kernel(self.recipe, spec, self._tokenizer, self._template, source)
        return self._kernels[dataset]

    def encode(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:
        """Read, encode, write and commit the unit, unless that has been done."""
        folder = OutputFolder(self.recipe.output, self.recipe.storage)
        receipt = committed(folder, unit.id, self.fingerprint)
        if receipt is None:
            attempt = str(order["attempt"])
            with UnitWriter(folder, unit, self.keep, attempt, fingerprint=self.fingerprint) as writer:
                for batch in self.kernel(unit.dataset).process(
                    self._records(unit, order, tell), self._duplicates(folder, unit)
                ):
                    tell.batch(batch.stats)
                    with context_meter.meter("write"):
                        writer.write(batch)
                tell.alive()
            receipt = writer.receipt
        assert receipt is not None
        return small(UnitStats.from_dict(receipt.stats))

    def probe(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:
        """The same work without a trace in the output."""
        total = UnitStats()
        duplicates = self._duplicates(OutputFolder(self.recipe.output, self.recipe.storage), unit)
        for batch in self.kernel(unit.dataset).process(self._records(unit, order, tell), duplicates):
            tell.batch(batch.stats)
            total += batch.stats
        return small(total)

    def count(self, unit: Unit, order: dict[str, Any], tell: Teller) -> dict[str, Any]:  # noqa: ARG002  one signature
        """How many records the unit holds."""
        records = tell.watch(read_records(unit, self._datasets[unit.dataset], self.recipe))
        return {"records": sum(1 for _ in records)}

    def _duplicates(self, folder: OutputFolder, unit: Unit) -> frozenset[Mark]:
        """Items of the unit whose content came before; see :mod:`retok_dask.cluster.duplicates`."""
        if not drops_duplicates(self._datasets[unit.dataset]):
            return frozenset()
        return duplicates_of(folder, unit.base_id)

    def _records(self, unit: Unit, order: dict[str, Any], tell: Teller) -> Iterator[Record | Reject]:
        """The unit's records; those that earlier trials found to be deadly come as rejects."""
        aside = {item.ordinal: item for item in map(SetAside.from_list, order.get("aside", []))}
        records = tell.watch(read_records(unit, self._datasets[unit.dataset], self.recipe))
        for ordinal, record in enumerate(records, start=unit.first or 0):
            item = aside.get(ordinal)
            yield record if item is None else _set_aside(record, item)


def _set_aside(record: Record | Reject, item: SetAside) -> Record | Reject:
    if isinstance(record, Reject):
        return record
    raw = record.raw if record.raw is not None else orjson.dumps(record.value, default=str)
    return Reject(record.file, record.row, record.offset, item.reason, item.detail, raw)


def committed(folder: OutputFolder, unit: str, fingerprint: str) -> Receipt | None:
    """The unit's receipt if it and its files agree: another attempt may have finished meanwhile."""
    try:
        data = folder.read_json(folder.receipt(unit))
        receipt = Receipt.from_dict(data) if data is not None else None
    except OutputError:
        return None
    if receipt is None:
        return None
    try:
        sizes = {record.path: _size(folder, record.path) for record in receipt.outputs}
    except FileNotFoundError:
        return None
    return receipt if check_files(folder, receipt, sizes, fingerprint, "footer") is None else None


def _size(folder: OutputFolder, relative: str) -> int:
    with folder.open_input(relative) as file:
        return int(file.seek(0, 2))


def small(stats: UnitStats) -> dict[str, Any]:
    """The few numbers of a unit that the client shows; the rest is in its receipt."""
    return {
        "records": stats.records_in,
        "records_out": stats.records_out,
        "samples": stats.samples,
        "tokens": stats.tokens,
        "loss_tokens": stats.loss_tokens,
        "rejected": sum(stats.rejected.values()),
        "filtered": sum(stats.filtered.values()),
        "text_bytes": stats.text_bytes,
    }
