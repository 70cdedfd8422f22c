"""What differs between two runs: what was asked, what was counted, and which rows changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from retok_dask.datasets.digest import row_digests
from retok_dask.datasets.fingerprint import library_versions, read_fingerprint
from retok_dask.datasets.reader import open_dataset
from retok_dask.datasets.rows import read_batches
from retok_dask.doing import counted
from retok_dask.errors import count_of
from retok_dask.schema import sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.datasets.reader import TokenDataset
    from retok_dask.recipe import StorageSpec

LOOKED_AT = 2000
"""Changed rows of which it is found in what they differ."""

SHOWN = 10
"""Rows of each kind that are named."""

PARTS = ("input_ids", "loss_mask", "segments", "message_flags", "truncated")


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs, from the first to the second.

    Attributes:
        first, second: their folders.
        asked: differences of recipe, input, tokenizer, template and versions.
        counted: numbers that differ, as (first, second), by data set and name.
        only_first, only_second: rows that only one of them has.
        changed: rows of both whose content differs.
        changed_parts: how many of the changed rows, of the first ``LOOKED_AT`` of them, differ in a column.
        examples: some sample ids by kind (``only_first``, ``only_second``, ``changed``).
    """

    first: str
    second: str
    asked: list[str]
    counted: dict[str, tuple[int, int]]
    only_first: int = 0
    only_second: int = 0
    changed: int = 0
    changed_parts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def same_rows(self) -> bool:
        """Whether both runs hold the same rows, in whatever order and files."""
        return not (self.only_first or self.only_second or self.changed)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"same_rows": self.same_rows}

    def to_text(self) -> str:
        """A few lines for a terminal."""
        lines = [f"{self.first} -> {self.second}"]
        lines += [f"  asked: {item}" for item in self.asked or ["the same"]]
        lines += [f"  counted: {name} {a:,} -> {b:,}" for name, (a, b) in self.counted.items()]
        if self.same_rows:
            return "\n".join([*lines, "  rows: the same"])
        lines.append(f"  rows: {self.only_first:,} gone, {self.only_second:,} new, {self.changed:,} changed")
        of = f", of {LOOKED_AT:,} that were looked at" if self.changed > LOOKED_AT else ""
        lines += [f"  changed in {name}: {count_of(count, 'row')}{of}" for name, count in self.changed_parts.items()]
        lines += [f"  {kind}: {', '.join(names)}" for kind, names in self.examples.items() if names]
        return "\n".join(lines)


def diff(first: str, second: str, *, storage: StorageSpec | None = None) -> RunDiff:
    """Compare two finished runs.

    Rows are compared by sample id. Units of the same id and content are not
    read; of the others, one digest a row is kept in memory.

    Raises:
        UnfinishedOutput, OutputError: one of the folders holds no finished run.
    """
    a, b = open_dataset(first, storage=storage), open_dataset(second, storage=storage)
    asked = _asked(a, b)
    counted = _counted(a, b)
    if a.manifest.content_digest == b.manifest.content_digest:
        return RunDiff(first, second, asked, counted)
    rows_a = _digests(a, _differing(a, b))
    rows_b = _digests(b, _differing(b, a))
    only_a, only_b = sorted(rows_a.keys() - rows_b.keys()), sorted(rows_b.keys() - rows_a.keys())
    changed = sorted(name for name in rows_a.keys() & rows_b.keys() if rows_a[name] != rows_b[name])
    return RunDiff(
        first,
        second,
        asked,
        counted,
        len(only_a),
        len(only_b),
        len(changed),
        _changed_parts(a, b, set(changed)),
        {"only_first": only_a[:SHOWN], "only_second": only_b[:SHOWN], "changed": changed[:SHOWN]},
    )


def _asked(a: TokenDataset, b: TokenDataset) -> list[str]:
    old, new = read_fingerprint(a.folder), read_fingerprint(b.folder)
    found = new.differences(old) if old is not None and new is not None else []
    versions = [data.manifest.run.get("versions", {}) for data in (a, b)]
    for name in library_versions():
        before, now = (said.get(name, "unknown") for said in versions)
        line = f"version of {name}: was {before}, is {now}"
        if before != now and line not in found:
            found.append(line)
    return found


def _counted(a: TokenDataset, b: TokenDataset) -> dict[str, tuple[int, int]]:
    found = {}
    for name in sorted({*a.manifest.datasets, *b.manifest.datasets}):
        pair = [data.manifest.datasets.get(name) for data in (a, b)]
        for number in ("records_in", "samples", "tokens", "loss_tokens", "truncated"):
            before, now = (int(getattr(stats, number)) if stats is not None else 0 for stats in pair)
            if before != now:
                found[f"{name}.{number}"] = (before, now)
    return found


def _differing(data: TokenDataset, other: TokenDataset) -> list[UnitEntry]:
    same = {(unit.unit, unit.content_digest) for unit in other.units}
    return [unit for unit in data.units if (unit.unit, unit.content_digest) not in same]


def _batches(data: TokenDataset, units: list[UnitEntry]) -> Iterable[pa.RecordBatch]:
    schema = pa.schema([sample_schema().field(name) for name in ("sample_id", *PARTS)])
    for unit in counted(units, len(units), "units compared"):
        record = unit.output("samples")
        if record is not None:
            yield from read_batches(data.folder, record.path, schema)


def _digests(data: TokenDataset, units: list[UnitEntry]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for batch in _batches(data, units):
        found |= dict(zip(batch.column("sample_id").to_pylist(), row_digests(batch), strict=True))
    return found


def _changed_parts(a: TokenDataset, b: TokenDataset, changed: set[str]) -> dict[str, int]:
    """Of the first changed rows, how many differ in each column."""
    chosen = set(sorted(changed)[:LOOKED_AT])
    old = {row["sample_id"]: row for row in _rows(a, _differing(a, b), chosen)}
    counts: Counter[str] = Counter()
    for row in _rows(b, _differing(b, a), chosen):
        counts.update(name for name in PARTS if row[name] != old[row["sample_id"]][name])
    return dict(counts)


def _rows(data: TokenDataset, units: list[UnitEntry], chosen: set[str]) -> Iterable[dict[str, Any]]:
    for batch in _batches(data, units):
        keep = pa.array([name in chosen for name in batch.column("sample_id").to_pylist()])
        yield from batch.filter(keep).to_pylist()
