"""Checks of the rows of one unit; runs here or on a worker."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.digest import ContentDigest, list_values, segment_matrix
from retok_dask.datasets.receipts import sha256_of_output
from retok_dask.datasets.remask import policy_mask
from retok_dask.errors import count_of
from retok_dask.masks import LossMaskPolicy
from retok_dask.schema import REJECT_SCHEMA, kept_columns, sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.datasets import OutputFolder
    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.datasets.receipts import FileRecord
    from retok_dask.recipe import Recipe

PER_UNIT = 3
"""Problems of one kind that are described for one unit."""


@dataclass
class UnitFindings:
    """What is wrong with a unit's files and rows.

    Attributes:
        problems: sentences by the name of the check.
        counts: what was looked at.
        names: 8 bytes of a hash of each sample id, in order.
    """

    unit: str
    problems: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    names: bytes = b""

    def add(self, check: str, problem: str) -> None:
        """Note a problem; after the first few of a kind they are only counted."""
        self.counts[f"{check}_problems"] += 1
        found = self.problems.setdefault(check, [])
        if len(found) < PER_UNIT:
            found.append(f"unit {self.unit!r}: {problem}")


def scan_unit(entry: UnitEntry, *, folder: OutputFolder, recipe: Recipe, vocab_size: int | None) -> UnitFindings:
    """Look at every file and row of a unit.

    Args:
        entry: the unit as the manifest lists it.
        folder: the run's folder.
        recipe: the run's recipe.
        vocab_size: ids must be below it; None if it is not known.
    """
    findings = UnitFindings(entry.unit)
    samples = entry.output("samples")
    if samples is None:
        findings.add("files", "the manifest names no file of samples")
        return findings
    for record in entry.outputs:
        _check_file(findings, folder, record)
    rows = _RowChecks(findings, recipe, entry, vocab_size)
    try:
        for batch in _batches(folder, samples, recipe):
            rows.check(batch)
    except (pa.ArrowException, OSError) as error:
        findings.add("readable", f"{samples.path} cannot be read: {error}")
        return findings
    rows.finish()
    _check_rejects(findings, folder, entry)
    return findings


def _check_file(findings: UnitFindings, folder: OutputFolder, record: FileRecord) -> None:
    """Checksum, schema and rows of one file."""
    findings.counts["files"] += 1
    try:
        found = sha256_of_output(folder, record.path)
        findings.counts["bytes"] += record.size
        if found != record.sha256:
            findings.add("checksums", f"{record.path} has sha256 {found[:12]}, the manifest says {record.sha256[:12]}")
        with folder.open_input(record.path) as source:
            rows = pq.ParquetFile(source).metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        findings.add("readable", f"{record.path} cannot be read: {error}")
        return
    if rows != record.rows:
        findings.add("rows", f"{record.path} has {count_of(rows, 'row')}, the manifest says {record.rows:,}")


def _batches(folder: OutputFolder, record: FileRecord, recipe: Recipe) -> Iterator[pa.RecordBatch]:
    schema = sample_schema(kept_columns(recipe))
    with folder.open_input(record.path) as source:
        file = pq.ParquetFile(source)
        if not file.schema_arrow.equals(schema, check_metadata=True):
            msg = f"its schema is not that of the run: {_difference(file.schema_arrow, schema)}"
            raise pa.ArrowInvalid(msg)
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group).combine_chunks().to_batches()


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    for item in wanted:
        if item.name not in found.names:
            return f"column {item.name!r} is missing"
        if not found.field(item.name).equals(item):
            return f"column {item.name!r} is {found.field(item.name)}, not {item}"
    extra = [name for name in found.names if name not in wanted.names]
    return f"column {extra[0]!r} is not in it" if extra else "its metadata or order differs"


class _RowChecks:
    """Checks of the rows of one unit, a row group at a time."""

    def __init__(self, findings: UnitFindings, recipe: Recipe, entry: UnitEntry, vocab_size: int | None) -> None:
        self.findings = findings
        self.entry = entry
        self.vocab_size = vocab_size
        self.spec = next((item for item in recipe.datasets if item.name == entry.dataset), None)
        self.policy = LossMaskPolicy(recipe.mask)
        self.digest = ContentDigest()
        self.tokens = 0
        self.loss_tokens = 0
        self.names: list[bytes] = []

    def check(self, batch: pa.RecordBatch) -> None:
        names = batch.column("sample_id").to_pylist()
        ids, splits = list_values(batch.column("input_ids"))
        mask, mask_splits = list_values(batch.column("loss_mask"))
        cuts = np.array(splits, np.int64)
        self.findings.counts["rows"] += batch.num_rows
        self.findings.counts["tokens"] += len(ids)
        self.names += [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
        self.tokens += len(ids)
        self.loss_tokens += int(np.count_nonzero(mask))
        self.digest.update(batch)
        self._ids(names, ids, cuts)
        if not self._lengths(names, batch, cuts, np.array(mask_splits, np.int64), mask):
            return
        if self._segments(names, batch, cuts):
            self._masks(names, batch, cuts, mask)

    def finish(self) -> None:
        """Compare sums with what the manifest says."""
        summary = self.entry.summary
        if self.digest.hex != self.entry.content_digest:
            self.findings.add("content", "its rows are not those that were written (content digest)")
        for what, found, said in (
            ("tokens", self.tokens, summary["tokens"]),
            ("trained tokens", self.loss_tokens, summary["loss_tokens"]),
        ):
            if found != said:
                self.findings.add("accounting", f"it holds {found} {what}, the manifest says {said}")
        self.findings.names = b"".join(self.names)

    def _ids(self, names: list[str], ids: np.ndarray[Any, Any], cuts: np.ndarray[Any, Any]) -> None:
        limit = self.vocab_size if self.vocab_size is not None else np.iinfo(np.int32).max
        bad = np.flatnonzero((ids < 0) | (ids >= limit))
        for place in bad[:PER_UNIT].tolist():
            row = int(np.searchsorted(cuts, place, side="right")) - 1
            self.findings.add("vocabulary", f"row {names[row]} has id {ids[place]}, the vocabulary ends at {limit - 1}")

    def _lengths(
        self,
        names: list[str],
        batch: pa.RecordBatch,
        cuts: np.ndarray[Any, Any],
        mask_cuts: np.ndarray[Any, Any],
        mask: np.ndarray[Any, Any],
    ) -> bool:
        """Whether ids and mask are equally long and the counts say so."""
        lengths = np.diff(cuts)
        trained = np.concatenate([[0], np.cumsum(mask)])
        unequal = lengths != np.diff(mask_cuts)
        wrong = unequal | (lengths != batch.column("num_tokens").to_numpy())
        wrong |= trained[mask_cuts[1:]] - trained[mask_cuts[:-1]] != batch.column("num_loss_tokens").to_numpy()
        self._report("lengths", names, wrong, "ids, mask and the counts of them differ")
        zero = batch.column("num_loss_tokens").to_numpy() == 0
        self.findings.counts["zero_loss_rows"] += int(np.count_nonzero(zero))
        if self.spec is not None and self.spec.mode != "prompts" and self.spec.filters.min_trained_tokens > 0:
            self._report("trained_tokens", names, zero, "no token of it is trained")
        return not unequal.any()

    def _segments(self, names: list[str], batch: pa.RecordBatch, cuts: np.ndarray[Any, Any]) -> bool:
        """Whether segments cover every token once, in order, none empty, all of known kinds."""
        matrix, seg_splits = segment_matrix(batch.column("segments"))
        at = np.array(seg_splits, np.int64)
        start, end, kind = matrix[:, 0], matrix[:, 1], matrix[:, 2]
        row_of = np.repeat(np.arange(batch.num_rows), np.diff(at))
        lengths = np.diff(cuts)
        first = np.zeros(len(matrix), np.bool_)
        first[at[:-1][np.diff(at) > 0]] = True
        before = np.where(first, 0, np.roll(end, 1))
        broken = (start != before) | (end <= start) | (kind < 0)
        wrong = np.zeros(batch.num_rows, np.bool_)
        wrong[row_of[broken]] = True
        last = np.zeros(batch.num_rows, np.int64)
        last[np.diff(at) > 0] = end[at[1:][np.diff(at) > 0] - 1]
        wrong |= last != lengths
        self._report("segments", names, wrong, "its segments do not cover its tokens once, in order")
        return not wrong.any()

    def _masks(
        self, names: list[str], batch: pa.RecordBatch, cuts: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]
    ) -> None:
        """The stored mask is the one that the policy gives (rows of ids bring their own)."""
        if self.spec is None or self.spec.mode == "tokens":
            return
        differs = np.concatenate([[0], np.cumsum(policy_mask(self.policy, batch, self.spec.mode) != mask)])
        wrong = differs[cuts[1:]] != differs[cuts[:-1]]
        self._report("masks", names, wrong, f"its loss mask is not that of policy {self.policy.name!r}")

    def _report(self, check: str, names: list[str], wrong: np.ndarray[Any, Any], what: str) -> None:
        for row in np.flatnonzero(wrong).tolist():
            self.findings.add(check, f"row {names[row]}: {what}")


def _check_rejects(findings: UnitFindings, folder: OutputFolder, entry: UnitEntry) -> None:
    """The file of rejects has one row a record that was left out, by outcome."""
    record = entry.output("rejects")
    wanted = {"rejected": entry.counts["rejected"], "filtered": entry.counts["filtered"]}
    found = Counter({"rejected": 0, "filtered": 0})
    if record is not None:
        try:
            with folder.open_input(record.path) as source:
                table = pq.read_table(source)
        except (pa.ArrowException, OSError):
            return
        if not table.schema.equals(REJECT_SCHEMA):
            findings.add("readable", f"{record.path}: {_difference(table.schema, REJECT_SCHEMA)}")
            return
        found.update(table.column("outcome").to_pylist())
    for outcome, number in wanted.items():
        if found[outcome] != number:
            findings.add(
                "accounting", f"{outcome} in its rejects: {count_of(found[outcome], 'record')}, counted: {number:,}"
            )
