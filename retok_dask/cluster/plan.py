"""``plan``: what a run would do, from a sample, before it does it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from retok_dask.cluster.connect import workers_for
from retok_dask.cluster.duplicates import drops_duplicates, sampled_duplicates
from retok_dask.cluster.memory import held_memory, needed_memory, tight_memory
from retok_dask.cluster.models import load_models
from retok_dask.cluster.progress import about, duration, short
from retok_dask.cluster.resources import oversubscription
from retok_dask.cluster.sampling import conversations, record_size, sample_records, sample_scale, written_bytes
from retok_dask.completions import detect_layout, list_inputs
from retok_dask.doing import counted, doing
from retok_dask.errors import count_of
from retok_dask.kernel import Kernel, UnitStats
from retok_dask.kernel.source import left_out_before
from retok_dask.recipe import Recipe
from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers.switches import Switch, switches
from retok_dask.types import Conversation, Record

if TYPE_CHECKING:
    from pathlib import Path

    from distributed import Client

    from retok_dask.completions import Listing
    from retok_dask.kernel.pending import Mark
    from retok_dask.recipe import DatasetSpec
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Reject

LONG_UNIT = 60.0
"""Seconds from which on one unit that the run waits for is worth a word."""

TABLE_ROWS = 20
"""Control tokens that the text of a plan names; its JSON has all."""


@dataclass(frozen=True)
class DatasetPlan:
    """What one data set will give.

    Attributes:
        name: the data set.
        files, units, bytes: as listed (bytes of text, compressed files estimated).
        sampled: records that were read for this.
        records, samples, tokens, loss_tokens, rejected, filtered: predicted for the whole.
        output_bytes: predicted size of the Parquet files.
        seconds: predicted for one core.
        unit_seconds: of these, its largest unit.
        largest_record: bytes of the largest record of the sample.
        layouts: records of the sample by layout.
        reject_reasons, filter_reasons: records of the sample left out, by reason.
        noticed: what was changed or noticed in the sample on the way, by name.
        history: predicted rows, tokens and trained tokens by history choice; empty without a template.
        source_tokens: predicted tokens of the rows as they were, for data that are ids already; 0 for others.
        token_table: what becomes of each control token of another tokenizer.
    """

    name: str
    files: int
    units: int
    bytes: int
    sampled: int
    records: int
    samples: int
    tokens: int
    loss_tokens: int
    rejected: int
    filtered: int
    output_bytes: int
    seconds: float
    largest_record: int
    unit_seconds: float = 0.0
    layouts: dict[str, int] = field(default_factory=dict)
    reject_reasons: dict[str, int] = field(default_factory=dict)
    filter_reasons: dict[str, int] = field(default_factory=dict)
    noticed: dict[str, int] = field(default_factory=dict)
    history: dict[str, dict[str, int]] = field(default_factory=dict)
    source_tokens: int = 0
    token_table: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trained_share(self) -> float:
        """Trained tokens of all tokens, 0 to 1."""
        return self.loss_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Plan:
    """A run as predicted.

    Attributes:
        datasets: one entry a data set.
        workers: worker processes that the time is predicted for.
        worker_memory: memory limit of the smallest worker, bytes; 0 if unknown.
        needed_memory: memory that a worker is predicted to need, bytes.
        seconds: predicted wall time.
        audit: what the template does to the sample; None without a template.
        settings: what a tokenizer's settings change, where they matter.
        notes: what the listing and the prediction want to say.
    """

    datasets: list[DatasetPlan]
    workers: int
    worker_memory: int
    needed_memory: int
    seconds: float
    audit: Any = None
    notes: list[str] = field(default_factory=list)
    settings: list[Switch] = field(default_factory=list)

    def _sum(self, name: str) -> int:
        return int(sum(getattr(data, name) for data in self.datasets))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        totals = ("files", "units", "bytes", "records", "samples", "tokens", "loss_tokens", "rejected", "output_bytes")
        return {
            "workers": self.workers,
            "worker_memory": self.worker_memory,
            "needed_memory": self.needed_memory,
            "seconds": round(self.seconds, 1),
            "total": {name: self._sum(name) for name in totals},
            "datasets": [
                {name: getattr(data, name) for name in data.__dataclass_fields__}
                | {"trained_share": data.trained_share}
                for data in self.datasets
            ],
            "audit": self.audit.to_dict() if self.audit is not None else None,
            "notes": self.notes,
            "settings": [switch.to_dict() for switch in self.settings],
        }

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for data in self.datasets:
            rejected = f"{data.rejected / data.records:.2%}" if data.records else ""
            rows.append(
                (
                    *(data.name, f"{data.files:,}", f"{data.units:,}", format_bytes(data.bytes), short(data.records)),
                    *(short(data.samples), short(data.tokens), f"{data.trained_share:.1%}", rejected),
                    format_bytes(data.output_bytes),
                )
            )
        return rows

    def _facts(self) -> list[str]:
        total = self._sum("tokens")
        size = format_bytes(self._sum("output_bytes"))
        lines = [
            f"{short(total)} tokens {about(self.seconds)} on {count_of(self.workers, 'worker')}, {size} of Parquet",
            f"a worker needs about {format_bytes(self.needed_memory)}"
            + (f" and has {format_bytes(self.worker_memory)}" if self.worker_memory else ""),
        ]
        for data in self.datasets:
            if len(data.layouts) > 1 or data.reject_reasons:
                layouts, reasons = (_counted(counts) or "none" for counts in (data.layouts, data.reject_reasons))
                lines.append(
                    f"{data.name}: layouts of {count_of(data.sampled, 'record')}: {layouts}; rejects: {reasons}"
                )
            for what, counts in (("filtered", data.filter_reasons), ("noticed", data.noticed)):
                if counts:
                    lines.append(f"{data.name}: {what} in {count_of(data.sampled, 'record')}: {_counted(counts)}")
            lines += [
                f"{data.name}, history {choice}: {short(cost['samples'])} rows, {short(cost['tokens'])} tokens, "
                f"{short(cost['loss_tokens'])} trained"
                for choice, cost in data.history.items()
            ]
            lines += _moved(data)
        return [*lines, *self.notes]

    def to_text(self) -> str:
        """For a terminal."""
        table = [_COLUMNS, *self._rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        parts = ["\n".join(lines), "\n".join(self._facts())]
        parts += [switch.to_text() for switch in self.settings]
        if self.audit is not None:
            parts.append(self.audit.to_text())
        return "\n\n".join(parts)

    __str__ = to_text
    __repr__ = to_text

    def _repr_html_(self) -> str:
        from retok_dask.views import plan_summary  # noqa: PLC0415  views draws; a notebook alone needs it

        return plan_summary(self.to_dict())._repr_html_()


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _moved(data: DatasetPlan) -> list[str]:
    """Lengths before and after, and the table of control tokens, for data that are ids already."""
    lines = []
    if data.source_tokens:
        growth = f"{data.tokens / data.source_tokens - 1:+.1%}"
        lines.append(f"{data.name}: {short(data.source_tokens)} old tokens become {short(data.tokens)} ({growth})")
    if data.token_table:
        other = [row for row in data.token_table if row["rule"] != "same text"]
        shown = ", ".join(f"{row['token']} -> {row['becomes']}" for row in other[:TABLE_ROWS])
        more = f" and {len(other) - TABLE_ROWS:,} more" if len(other) > TABLE_ROWS else ""
        kept = len(data.token_table) - len(other)
        lines.append(f"{data.name}: the same text for {count_of(kept, 'control token')}; {shown or 'no others'}{more}")
    return lines


_COLUMNS = ("data set", "files", "units", "text", "records", "rows", "tokens", "trained", "rejected", "output")


def plan(recipe: Recipe | str | Path, client: Client | None = None, *, scheduler: str | None = None) -> Plan:
    """Read a sample, and predict what the run will do.

    Runs the run's own kernel on the sample in this process; writes nothing and
    needs no cluster.

    Args:
        recipe: the recipe, or the path of its YAML file.
        client, scheduler: the cluster that it is planned for; None for a local one.

    Raises:
        RetokError: the recipe, an input, the tokenizer or the template cannot be used.
        ClusterError: not even Python, tokenizer and template fit into a worker's memory, with the numbers.
    """
    recipe = Recipe.of(recipe)
    held_before = held_memory()
    date = recipe.date or dt.datetime.now(dt.UTC).date()
    recipe = recipe.with_changes(date=date)
    tokenizer, template = load_models(recipe, date)
    doing("listing the input")
    listing = list_inputs(recipe)
    workers = workers_for(recipe, client, scheduler)
    datasets, talks = [], []
    seen: set[bytes] = set()
    for spec in counted(recipe.datasets, len(recipe.datasets), "data sets sampled"):
        planned, found = _plan_dataset(recipe, spec, listing, tokenizer, template, seen)
        datasets.append(planned)
        talks += found
    largest = max((data.largest_record for data in datasets), default=0)
    needed = needed_memory(recipe, largest, workers.threads, held_before)
    tight = tight_memory(recipe, needed, workers, datasets)
    busy = min(workers.at_once, max(1, sum(data.units for data in datasets)))
    even = sum(data.seconds for data in datasets) / busy
    # one unit is one worker's: however many there are, the run takes as long as its longest unit
    seconds = max(even, *(data.unit_seconds for data in datasets))
    doing("auditing the chat template on the sample")
    audit = _audit(template, talks, tokenizer)
    settings = switches(tokenizer, recipe.tokenizer, recipe.storage)
    notes = [*map(str, listing.notes), *([oversubscription(workers.count)] if workers.at_once < workers.count else [])]
    notes += tight + _guesses(recipe, datasets, even)
    return Plan(datasets, workers.count, workers.memory, needed, seconds, audit, notes, settings)


def _plan_dataset(
    recipe: Recipe,
    spec: DatasetSpec,
    listing: Listing,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    seen: set[bytes],
) -> tuple[DatasetPlan, list[Conversation]]:
    units = [unit for unit in listing.units if unit.dataset == spec.name]
    records, read_seconds = sample_records(recipe, spec, units)
    sizes = [record_size(record) for record in records]
    scale = sample_scale(units, records, sizes)
    kernel = Kernel(recipe, spec, tokenizer, template if spec.mode in {"chat", "prompts"} else None)
    list(kernel.process(records[:2]))  # engines load at first use: not part of the speed
    started = perf_counter()
    duplicates = sampled_duplicates(records, spec, seen)
    batches = list(kernel.process(records, duplicates))
    stats = sum((batch.stats for batch in batches), UnitStats())
    seconds = perf_counter() - started + read_seconds
    size = sum(unit.bytes for unit in units)
    written, write_seconds = written_bytes(recipe, [batch.samples for batch in batches])
    evidence = detect_layout([record for record in records if isinstance(record, Record)], spec)
    planned = DatasetPlan(
        name=spec.name,
        files=sum(1 for entry in listing.files if entry.dataset == spec.name),
        units=len(units),
        bytes=size,
        sampled=len(records),
        records=round(stats.records_in * scale),
        samples=round(stats.samples * scale),
        tokens=round(stats.tokens * scale),
        loss_tokens=round(stats.loss_tokens * scale),
        rejected=round(sum(stats.rejected.values()) * scale),
        filtered=round(sum(stats.filtered.values()) * scale),
        output_bytes=round(written * scale),
        seconds=(seconds + write_seconds) * scale,
        unit_seconds=(seconds + write_seconds) * scale * max((unit.bytes for unit in units), default=0) / max(1, size),
        largest_record=max(sizes, default=0),
        layouts=dict(evidence.layouts),
        reject_reasons=dict(stats.rejected),
        filter_reasons=dict(stats.filtered),
        noticed=dict(stats.counts),
        history=_history(recipe, spec, tokenizer, template, (records, duplicates), stats, scale),
        source_tokens=round(stats.counts["source_tokens"] * scale),
        token_table=kernel.token_table,
    )
    talks = template is not None and spec.mode == "chat"  # of prompts nothing is trained, which is no finding
    return planned, conversations(spec, records) if talks else []


def _guesses(recipe: Recipe, datasets: list[DatasetPlan], even: float) -> list[str]:
    """What the numbers cannot know."""
    notes = [
        f"{data.name}: gives no rows from {count_of(data.sampled, 'record')} of the sample"
        if data.sampled
        else f"{data.name}: its input holds no records"
        for data in datasets
        if not data.samples
    ]
    notes += [
        f"{data.name}: its largest unit alone takes about {duration(data.unit_seconds)}, longer than all workers "
        f"together need for an even share of the rest ({duration(even)}); more workers do not help, smaller files do"
        for data in datasets
        if data.unit_seconds > max(LONG_UNIT, even)
    ]
    notes += [
        f"{data.name}: duplicates are counted within the sample; a run finds more of them"
        for spec, data in zip(recipe.datasets, datasets, strict=True)
        if drops_duplicates(spec) and data.sampled < data.records
    ]
    for spec in recipe.datasets:
        lost = left_out_before(spec, recipe.storage) if spec.mode == "chat" else {}
        if lost:
            named = ", ".join(f"{name} {count:,}" for name, count in lost.items())
            notes.append(f"{spec.name}: the run that wrote its rows left out what they do not say any more: {named}")
    return notes


def _history(
    recipe: Recipe,
    spec: DatasetSpec,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    sample: tuple[list[Record | Reject], frozenset[Mark]],
    own: UnitStats,
    scale: float,
) -> dict[str, dict[str, int]]:
    """What each choice of ``history`` costs and trains, where the choice makes a difference; `own` is the recipe's."""
    if template is None or spec.mode != "chat":
        return {}
    costs: dict[str, dict[str, int]] = {}
    for choice in ("whole", "per_turn", "auto"):
        stats = own
        if choice != recipe.history:
            changed = recipe.with_changes(history=choice)
            # the same template, so that nothing has to be proved again
            other = ChatTemplate.restore(replace(template.reduce(), history=choice))
            kernel = Kernel(changed, spec, tokenizer, other)
            stats = sum((batch.stats for batch in kernel.process(*sample)), UnitStats())
        counted = {"samples": stats.samples, "tokens": stats.tokens, "loss_tokens": stats.loss_tokens}
        costs[choice] = {name: round(value * scale) for name, value in counted.items()}
    return costs if len({tuple(cost.values()) for cost in costs.values()}) > 1 else {}


def _audit(template: ChatTemplate | None, conversations: list[Conversation], tokenizer: Tokenizer) -> Any:
    if template is None:
        return None
    from retok_dask.templates import audit  # noqa: PLC0415

    return audit(template, conversations, tokenizer=tokenizer)
