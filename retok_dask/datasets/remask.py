"""Another loss mask for a written run, from its segments: no tokenizer, no encoding."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.cutrows import refuse_cut_rows
from retok_dask.datasets.digest import list_values, segment_matrix
from retok_dask.datasets.fingerprint import check_fingerprint, read_fingerprint, start_run
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.manifest import Manifest, write_manifest
from retok_dask.datasets.parallel import map_units
from retok_dask.datasets.reader import open_dataset
from retok_dask.datasets.receipts import Receipt, read_receipts
from retok_dask.datasets.rows import read_batches
from retok_dask.datasets.writer import UnitWriter
from retok_dask.errors import OutputError, count_of
from retok_dask.kernel import Batch, UnitStats
from retok_dask.kernel.pending import ROW_LEFT_OUT
from retok_dask.kernel.rows import refusal
from retok_dask.masks import LossMaskPolicy
from retok_dask.schema import REJECT_SCHEMA, kept_columns, sample_schema, turn_of
from retok_dask.types import FilterReason, Kind, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed import Client

    from retok_dask.recipe import DatasetSpec, Recipe, StorageSpec

Array = np.ndarray[Any, Any]

MASK_REASONS = (
    FilterReason.no_trained_tokens,
    FilterReason.no_trained_tokens_after_truncation,
    FilterReason.trained_share,
    RejectReason.flag_conflict,
)
"""Reasons for leaving a record out that depend on the policy."""

OF_ROWS = {
    "records_out",
    "samples",
    "truncated",
    "tokens",
    "loss_tokens",
    "bos_rows",
    "stop_rows",
    "kind_tokens",
    "lengths",
    "shares",
    "position_tokens",
    "position_loss_tokens",
    "first_tokens",
    "text_bytes",
    "byte_tokens",
    "unknown_tokens",
    "fallback_rows",
}
"""Counts of a unit that are made anew from the rows that stay."""

_RECORD = re.compile(r"[^-]+--?\d+")


@dataclass(frozen=True)
class Remasked:
    """A run with another mask.

    Attributes:
        url: the new folder.
        policy: name of the new policy.
        manifest: of the new folder.
        gone: records that the old policy had left out. Their tokens were
            never written, so they cannot come back; a fresh run might keep them.
        kept: rows of ids, which keep their mask.
    """

    url: str
    policy: str
    manifest: Manifest
    gone: int
    kept: int = 0

    def to_dict(self) -> dict[str, Any]:
        total = self.manifest.total
        return {
            "url": self.url,
            "policy": self.policy,
            "samples": total.samples,
            "tokens": total.tokens,
            "loss_tokens": total.loss_tokens,
            "filtered": dict(total.filtered),
            "gone": self.gone,
            "kept": self.kept,
        }

    def to_text(self) -> str:
        """One to three lines for a terminal."""
        total = self.manifest.total
        text = f"{self.url}: {count_of(total.samples, 'row')}, {total.trained_share:.1%} of {total.tokens:,} tokens trained ({self.policy})"
        if self.kept:
            text += f"\n{count_of(self.kept, 'row')} of ids (mode: tokens) with the mask from before"
        if self.gone:
            text += (
                f"\n{count_of(self.gone, 'record')} left out by the old policy cannot come back without encoding again"
            )
        return text


@dataclass(frozen=True)
class _Unit:
    """A unit as the writer needs it, from its receipt."""

    id: str
    dataset: str
    source: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.source


def remask(
    url: str,
    policy: str | Sequence[str],
    output: str | None = None,
    *,
    storage: StorageSpec | None = None,
    client: Client | None = None,
) -> Remasked:
    """Write a run again with another loss mask policy.

    The result equals a fresh run with that policy, including the filters that
    look at trained tokens, and has its fingerprint. Rows of ids (``mode: tokens``)
    keep their mask: which of them came with one is not written. Resumes where it was stopped.

    Args:
        url: a finished run.
        policy: a preset, or a list of segment kinds.
        output: folder to write; None is ``url`` with the policy's name added.
        storage: where S3 answers.
        client: a Dask client whose workers do it; None for this process.

    Raises:
        UnfinishedOutput: the run has not finished.
        RecipeError: there is no such policy.
        OutputError: the folder to write is the run's own, or rows were cut so that what the policy trains cannot be known.
        FingerprintMismatch: the folder to write holds another run.
    """
    chosen = policy if isinstance(policy, str) else list(policy)
    name = LossMaskPolicy(chosen).name.replace(",", "-")
    data = open_dataset(url, storage=storage)
    source = data.folder
    target = OutputFolder(output or f"{source.url}-{name}", source.storage)
    if target.url == source.url:
        msg = f"{target.url} is the run itself; name another folder for the new masks"
        raise OutputError(msg)
    old = read_fingerprint(source)
    if old is None:
        msg = f"{source.url} has no run.json any more; it is needed to say what the new folder is"
        raise OutputError(msg)
    refuse_cut_rows(data, chosen, client=client)
    recipe = data.recipe.with_changes(mask=chosen, output=target.url)
    fingerprint = replace(old, recipe=old.recipe | {"mask": chosen})
    check_fingerprint(target, fingerprint)
    start_run(target, fingerprint, recipe)
    done = read_receipts(target, fingerprint=fingerprint.digest)
    todo = [unit for unit in data.manifest.units if unit not in done]
    map_units(
        remask_unit,
        todo,
        "units written",
        client=client,
        source=source,
        target=target,
        recipe=recipe,
        fingerprint=fingerprint.digest,
    )
    receipts = read_receipts(target, fingerprint=fingerprint.digest, verify="size")
    manifest = write_manifest(target, receipts, expected=data.manifest.units, failed=data.manifest.failed)
    left_out = data.manifest.total.filtered + data.manifest.total.rejected
    gone = sum(left_out[reason.value] for reason in MASK_REASONS)
    kept = sum(manifest.datasets[spec.name].samples for spec in recipe.datasets if spec.mode == "tokens")
    return Remasked(target.url, name, manifest, gone, kept)


def remask_unit(unit: str, *, source: OutputFolder, target: OutputFolder, recipe: Recipe, fingerprint: str) -> None:
    """Write one unit again with the mask of another recipe."""
    receipt = Receipt.from_dict(source.read_json(source.receipt(unit)) or {})
    spec = next(item for item in recipe.datasets if item.name == receipt.dataset)
    work = _UnitMask(LossMaskPolicy(recipe.mask), spec, UnitStats.from_dict(receipt.stats))
    parts = _Unit(unit, receipt.dataset, receipt.source)
    with UnitWriter(target, parts, kept_columns(recipe), "remask", fingerprint=fingerprint) as writer:
        writer.add_stats(work.carried())
        for rejects in _stored_rejects(source, receipt):
            writer.write_rejects(rejects)
        schema = sample_schema(kept_columns(recipe))
        for samples in read_batches(source, source.data(receipt.dataset, unit), schema):
            writer.write(work.batch(samples))
        rejects, stats = work.closing()
        writer.write_rejects(rejects)
        writer.add_stats(stats)


def _part(count: int, rest: int, whole: int) -> int:
    """The share of a count that falls to what is left: which rows it was counted on is not known here."""
    return count * rest // whole if whole else count


class _UnitMask:
    """The new masks, filters and counts of one unit."""

    def __init__(self, policy: LossMaskPolicy, spec: DatasetSpec, stats: UnitStats) -> None:
        self._policy = policy
        self._spec = spec
        self._old = stats
        self._samples = self._tokens = 0
        self._bos_segments = 0
        self._written: set[str] = set()
        self._refused: dict[str, dict[str, Any]] = {}
        self._lost: list[tuple[str, str]] = []

    def carried(self) -> UnitStats:
        """Counts of the old unit that do not depend on its rows."""
        names = [item.name for item in fields(UnitStats) if item.name not in OF_ROWS]
        return UnitStats(**{name: copy(getattr(self._old, name)) for name in names})

    def batch(self, samples: pa.RecordBatch) -> Batch:
        """Rows with their new mask, without those that the filters refuse."""
        mask = self._mask(samples)
        keep = self._keep(samples, mask)
        mask = mask[np.repeat(keep, samples.column("num_tokens").to_numpy())]
        samples = samples.filter(pa.array(keep))
        stats = UnitStats(truncated=samples.column("truncated").true_count)
        loss = self._count(samples, mask, stats)
        masks = pa.ListArray.from_arrays(
            samples.column("input_ids").offsets, pa.array(mask), type=samples.schema.field("loss_mask").type
        )
        samples = _with_column(samples, "loss_mask", masks)
        samples = _with_column(samples, "num_loss_tokens", pa.array(loss.astype(np.int32)))
        self._samples += samples.num_rows
        self._tokens += stats.tokens
        self._written.update(_records(samples))
        return Batch(samples, _rejects([]), stats)

    def left_out(self) -> list[dict[str, Any]]:
        """Records of which no row is left."""
        return [row for record, row in self._refused.items() if record not in self._written]

    def closing(self) -> tuple[pa.RecordBatch, UnitStats]:
        """The records that are left out now, and the counts that are known at the end only."""
        stats = UnitStats(records_out=len(self._written))
        stats.bos_rows = self._bos_rows()
        for name in ("text_bytes", "byte_tokens", "unknown_tokens"):
            setattr(stats, name, _part(getattr(self._old, name), self._tokens, self._old.tokens))
        stats.fallback_rows = _part(self._old.fallback_rows, self._samples, self._old.samples)
        stats.counts.update(name for record, name in self._lost if record in self._written)
        rows = self.left_out()
        for row in rows:
            counter = stats.rejected if row["outcome"] == "rejected" else stats.filtered
            counter[row["reason"]] += 1
        return _rejects(rows), stats

    def _bos_rows(self) -> int:
        """Rows that begin with BOS; its id is not known here, but which rows begin with a ``bos`` segment is."""
        if self._samples == self._old.samples:
            return self._old.bos_rows
        return self._samples if self._old.bos_rows == self._old.samples else self._bos_segments

    def _count(self, samples: pa.RecordBatch, mask: Array, stats: UnitStats) -> Array:
        ids, splits = list_values(samples.column("input_ids"))
        segments, seg_splits = segment_matrix(samples.column("segments"))
        kinds = segments[:, 2].astype(np.int8)
        first = np.array(seg_splits[:-1], np.int64)[np.diff(seg_splits) > 0]
        self._bos_segments += int(np.count_nonzero(kinds[first] == Kind.bos))
        rows = np.repeat(np.arange(samples.num_rows), np.diff(seg_splits))
        return stats.add_rows(ids, np.array(splits), mask, kinds, segments[:, 1] - segments[:, 0], rows, None)

    def _mask(self, samples: pa.RecordBatch) -> Array:
        if self._spec.mode == "tokens":
            return list_values(samples.column("loss_mask"))[0]
        return policy_mask(self._policy, samples, self._spec.mode)

    def _keep(self, samples: pa.RecordBatch, mask: Array) -> Array:
        """One bool a row: whether a fresh run would write it; the others are noted with their reason."""
        lengths = samples.column("num_tokens").to_numpy()
        trained = np.concatenate([[0], np.cumsum(mask)])
        ends = np.cumsum(lengths, dtype=np.int64)
        losses = trained[ends] - trained[ends - lengths]
        keep = np.ones(samples.num_rows, np.bool_)
        for row, record in enumerate(_records(samples)):
            refused = self._refusal(samples, row, int(losses[row]), int(lengths[row]))
            if refused is not None:
                keep[row] = False
                self._lost.append((record, ROW_LEFT_OUT + refused[1]))
                self._refused.setdefault(record, _reject_row(samples, row, *refused))
        return keep

    def _refusal(self, samples: pa.RecordBatch, row: int, loss: int, length: int) -> tuple[str, str, str] | None:
        """Outcome, reason and detail as the kernel words them."""
        rules = self._spec.filters
        flags = _flags(samples.column("message_flags")[row].as_py())
        segments = (
            segment_matrix(samples.column("segments").slice(row, 1))[0] if True in flags else np.zeros((0, 4), int)
        )
        turn = turn_of(samples.column("sample_id")[row].as_py())
        conflict = self._policy.conflict(flags, segments[:, 2].tolist(), segments[:, 3].tolist(), turn)
        if conflict:
            return "rejected", RejectReason.flag_conflict.value, conflict
        if self._spec.mode == "prompts":
            return None
        cut = samples.column("truncated")[row].as_py()
        refused = refusal(rules, length, loss, trains=True, cut=cut)
        return None if refused is None else ("filtered", refused[0].value, refused[1])


def policy_mask(policy: LossMaskPolicy, samples: pa.RecordBatch, mode: str) -> Array:
    """The flat loss mask that a policy gives for stored rows of a data set of this mode; prompts are never trained.

    Needs the columns ``input_ids``, ``segments``, ``message_flags`` and
    ``sample_id`` (which says what turn a ``per_turn`` row trains).
    """
    if mode == "prompts":
        return np.zeros(list_values(samples.column("input_ids"))[0].size, np.bool_)
    segments, splits = segment_matrix(samples.column("segments"))
    flags = [_flags(text) for text in samples.column("message_flags").to_pylist()]
    turns = np.array([turn_of(name) for name in samples.column("sample_id").to_pylist()], np.int64)
    return policy.apply(
        np.array(splits, np.int64),
        segments[:, 0],
        segments[:, 1],
        segments[:, 2],
        segments[:, 3],
        flags=flags if any(flags) else None,
        turns=turns,
    )


def _flags(text: str | None) -> list[bool | None]:
    return orjson.loads(text) if text else []


def _records(samples: pa.RecordBatch) -> list[str]:
    """For each row its record: the sample id without the marks of items, turns and pieces."""
    names = samples.column("sample_id").to_pylist()
    return [found.group() if (found := _RECORD.match(name)) else name for name in names]


def _reject_row(samples: pa.RecordBatch, row: int, outcome: str, reason: str, detail: str) -> dict[str, Any]:
    position = int(_records(samples.slice(row, 1))[0].partition("-")[2])
    source_row = samples.column("source_row")[row].as_py()
    return {
        "source_file": samples.column("source_file")[row].as_py(),
        "source_row": source_row,
        "offset": -1 if position == source_row else position,
        "outcome": outcome,
        "reason": reason,
        "detail": detail,
        "raw": None,
        "raw_cut": False,
    }


def _with_column(samples: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    columns = [values if field.name == name else samples.column(field.name) for field in samples.schema]
    return pa.RecordBatch.from_arrays(columns, schema=samples.schema)


def _rejects(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)


def _stored_rejects(folder: OutputFolder, receipt: Receipt) -> Iterator[pa.RecordBatch]:
    record = receipt.output("rejects")
    if record is not None:
        with folder.open_input(record.path) as file:
            yield from pq.ParquetFile(file).iter_batches()
