"""Does what is stored decode to text, and does its source, encoded again, give it?"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.checks.decoding import decode_unit
from retok_dask.checks.rows import UnitFindings
from retok_dask.completions import Unit, read_records
from retok_dask.completions.storage import storage_options
from retok_dask.datasets import OutputFolder, Receipt, read_recipe, read_run
from retok_dask.datasets.digest import row_digests
from retok_dask.datasets.rows import read_batches
from retok_dask.errors import InputError, OutputError, RecipeError, RetokError, StorageError
from retok_dask.kernel import Kernel
from retok_dask.schema import kept_columns, sample_id, sample_schema
from retok_dask.templates import ChatTemplate
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import FilterReason, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.recipe import Recipe, StorageSpec
    from retok_dask.types import Record, Reject

SAMPLED_ROWS = 64
"""Rows of a unit that are encoded again when not all are."""

NOT_AGAIN = {RejectReason.killed_worker.value, RejectReason.too_slow.value, FilterReason.duplicate.value}
"""Records that one unit by itself does not leave out: they ended their process, or were seen elsewhere before."""

_RECORD = re.compile(r"[^-]+--?\d+")


@dataclass(frozen=True)
class Encoder:
    """A run's tokenizer and template, loaded again from where the recipe says."""

    recipe: Recipe
    tokenizer: Tokenizer
    template: ChatTemplate | None

    def differences(self, run: dict[str, Any]) -> list[str]:
        """What is another tokenizer or template than the run's."""
        content = run["content"]
        found = []
        if self.tokenizer.digest != content["tokenizer"]:
            found.append(f"the tokenizer at {self.recipe.tokenizer.path!r} is not the run's (digest differs)")
        if self.template is not None and self.template.digest != content["template"]:
            found.append("the chat template is not the run's (digest differs)")
        return found


@lru_cache(maxsize=1)
def load_encoder(url: str, storage: StorageSpec | None, *, reference: bool, call: str) -> Encoder:  # noqa: ARG001
    """The encoder of the run in a folder, once a process and validation.

    Args:
        url: the run's folder.
        storage: where S3 answers.
        reference: use the reference engines only, for a check by other means.
        call: names the validation: between two of them, run and tokenizer may have become others.

    Raises:
        RetokError: tokenizer or template cannot be loaded.
    """
    folder = OutputFolder(url, storage)
    recipe = read_recipe(folder)
    if reference:
        recipe = recipe.with_changes(engine="reference")
    run = read_run(folder) or {}
    day = run.get("date")
    tokenizer = Tokenizer.load(recipe.tokenizer, storage=recipe.storage, engine=recipe.engine, patient=True)
    template = None
    if any(spec.mode in {"chat", "prompts"} for spec in recipe.datasets):
        path = recipe.template.path or ""
        template = ChatTemplate.load(
            recipe.template,
            tokenizer=tokenizer,
            recipe=recipe,
            date=dt.date.fromisoformat(day) if day else dt.date.today(),  # noqa: DTZ011  as a run without a date does
            options=storage_options(path, recipe.storage) if "://" in path else None,
        )
    return Encoder(recipe, tokenizer, template)


def encode_unit_again(
    unit: str, *, url: str, storage: StorageSpec | None, full: bool, call: str, seed: int = 0
) -> UnitFindings:
    """Compare stored rows of a unit with what its source gives now.

    Args:
        unit: the unit's id.
        url: the run's folder.
        storage: where S3 answers.
        full: every row, by the run's engine; else some, by the reference engine.
        call: as for :func:`load_encoder`.
        seed: which rows.
    """
    folder = OutputFolder(url, storage)
    findings = UnitFindings(unit)
    try:
        encoder = load_encoder(url, storage, reference=not full, call=call)
        receipt = Receipt.from_dict(folder.read_json(folder.receipt(unit)) or {})
        stored = _stored_digests(folder, receipt, encoder.recipe)
        wanted = None if full else _some_records(list(stored), seed)
        if _of_text(encoder.recipe, receipt.dataset):
            chosen = stored if wanted is None else {name for name in stored if _record(name) in wanted}
            decode_unit(findings, folder, receipt, encoder.tokenizer, chosen.__contains__)
    except StorageError:
        raise
    except (OutputError, pa.ArrowException, OSError):
        return findings  # a receipt or file that cannot be read is what the checks of files report
    try:
        _compare(findings, folder, receipt, encoder, stored, wanted)
    except (InputError, RecipeError) as error:  # the files are gone, or a function of the user's own is not here
        findings.problems["source_gone"] = [str(error)]
    except RetokError as error:
        findings.add("re_encoding", f"it cannot be encoded again: {error}")
    return findings


def _stored_digests(folder: OutputFolder, receipt: Receipt, recipe: Recipe) -> dict[str, bytes]:
    """Digest of each stored row of a unit, by sample id."""
    stored: dict[str, bytes] = {}
    for batch in read_batches(folder, folder.data(receipt.dataset, receipt.unit), sample_schema(kept_columns(recipe))):
        stored |= dict(zip(batch.column("sample_id").to_pylist(), row_digests(batch), strict=True))
    return stored


def _compare(
    findings: UnitFindings,
    folder: OutputFolder,
    receipt: Receipt,
    encoder: Encoder,
    stored: dict[str, bytes],
    wanted: set[str] | None,
) -> None:
    """Encode the wanted records (None for all) of a unit's source, and compare row by row."""
    recipe = encoder.recipe
    spec = next(item for item in recipe.datasets if item.name == receipt.dataset)
    if wanted is not None:
        stored = {name: digest for name, digest in stored.items() if _record(name) in wanted}
    records = read_records(Unit.from_dict(receipt.source), spec, recipe)
    avoid = _left_out(folder, receipt)
    kernel = Kernel(recipe, spec, encoder.tokenizer, encoder.template)
    fresh: dict[str, bytes] = {}
    for result in kernel.process(_chosen(records, receipt.dataset, wanted, avoid)):
        fresh |= dict(zip(result.samples.column("sample_id").to_pylist(), row_digests(result.samples), strict=True))
    findings.counts["rows"] += len(stored)
    for name in sorted(stored.keys() | fresh.keys()):
        if name not in fresh:
            findings.add("re_encoding", f"row {name} does not come from its source any more")
        elif name not in stored:
            findings.add("re_encoding", f"row {name} comes from the source but is not stored")
        elif stored[name] != fresh[name]:
            findings.add("re_encoding", f"row {name} is not what its source gives")


def _of_text(recipe: Recipe, dataset: str) -> bool:
    """Whether rows of a data set are whole texts: not ids from elsewhere, not documents cut at a token."""
    mode = next(spec.mode for spec in recipe.datasets if spec.name == dataset)
    return mode != "tokens" and not (mode == "text" and recipe.documents.chunk_tokens)


def _chosen(
    records: Iterator[Record | Reject], dataset: str, wanted: set[str] | None, avoid: set[str]
) -> Iterator[Record | Reject]:
    """The wanted records, stopping when all were seen; never those to avoid."""
    left = len(wanted) if wanted is not None else -1
    for record in records:
        if left == 0:
            return
        name = sample_id(dataset, record.file, record.offset if record.offset >= 0 else record.row)
        if name in avoid or (wanted is not None and name not in wanted):
            continue
        left -= 1
        yield record


def _some_records(names: list[str], seed: int) -> set[str]:
    records = sorted({_record(name) for name in names})
    chosen = np.random.default_rng(seed).permutation(len(records))[:SAMPLED_ROWS]
    return {records[index] for index in chosen.tolist()}


def _record(name: str) -> str:
    """A row's record: its sample id without the marks of items, turns and pieces."""
    found = _RECORD.match(name)
    return found.group() if found else name


def _left_out(folder: OutputFolder, receipt: Receipt) -> set[str]:
    record = receipt.output("rejects")
    if record is None:
        return set()
    with folder.open_input(record.path) as source:
        rows = pq.read_table(source, columns=["source_file", "offset", "source_row", "reason"]).to_pylist()
    return {
        sample_id(receipt.dataset, row["source_file"], row["offset"] if row["offset"] >= 0 else row["source_row"])
        for row in rows
        if row["reason"] in NOT_AGAIN
    }
