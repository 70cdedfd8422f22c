"""Batches and whole runs made of nothing but numbers, for tests of what is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from retok_dask.datasets import Fingerprint, OutputFolder, UnitWriter, read_receipts, start_run, write_manifest
from retok_dask.kernel.stats import UnitStats
from retok_dask.recipe import Recipe
from retok_dask.schema import REJECT_SCHEMA, SEGMENT_TYPE, kept_columns, kind_dictionary, sample_id, sample_schema
from retok_dask.types import Kind

TRAINED = (Kind.reasoning, Kind.content, Kind.tool_call, Kind.stop)
VOCABULARY = 1000


@dataclass
class FakeUnit:
    id: str
    dataset: str = "data"
    parts: tuple[Any, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "dataset": self.dataset, "parts": list(self.parts)}


@dataclass
class FakeBatch:
    samples: pa.RecordBatch
    rejects: pa.RecordBatch
    stats: UnitStats
    token_counts: None = None


@dataclass
class FakeFile:
    url: str
    size: int
    dataset: str = "data"
    etag: str | None = None
    mtime: float | None = 1.0


@dataclass
class FakeListing:
    files: list[FakeFile] = field(default_factory=list)


@dataclass
class FakeDigest:
    digest: str


def make_batch(
    rows: int,
    *,
    seed: int = 0,
    first: int = 0,
    file: str = "in.jsonl",
    dataset: str = "data",
    keep: tuple[str, ...] = (),
    rejects: int = 0,
    length: tuple[int, int] = (8, 60),
) -> FakeBatch:
    """Rows of chats: bos, then user / header / content / stop / trailer runs of random lengths."""
    rng = np.random.default_rng(seed)
    samples = [_row(rng, int(rng.integers(*length))) for _ in range(rows)]
    kinds = np.array([kind for row in samples for *_, kind, _ in row["segments"]], np.int8)
    mask = [row["mask"] for row in samples]
    splits = np.cumsum([0, *(len(row["ids"]) for row in samples)]).astype(np.int32)
    seg_splits = np.cumsum([0, *(len(row["segments"]) for row in samples)]).astype(np.int32)
    flat = [segment for row in samples for segment in row["segments"]]
    ids = np.concatenate([row["ids"] for row in samples]).astype(np.int32) if rows else np.empty(0, np.int32)
    flat_mask = np.concatenate(mask).astype(bool) if rows else np.empty(0, bool)
    columns = {
        "sample_id": pa.array([sample_id(dataset, file, first + i) for i in range(rows)], pa.string()),
        "input_ids": ids,
        "loss_mask": flat_mask,
        "num_tokens": pa.array([len(row["ids"]) for row in samples], pa.int32()),
        "num_loss_tokens": pa.array([int(m.sum()) for m in mask], pa.int32()),
        "truncated": pa.array([False] * rows, pa.bool_()),
        "source_file": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([file])),
        "source_row": pa.array(range(first, first + rows), pa.int64()),
        "message_flags": pa.nulls(rows, pa.string()),
    }
    segments = pa.StructArray.from_arrays(
        [
            pa.array([s for s, *_ in flat], pa.int32()),
            pa.array([e for _, e, *_ in flat], pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array(kinds, pa.int8()), kind_dictionary()),
            pa.array([m for *_, m in flat], pa.int32()),
        ],
        fields=list(SEGMENT_TYPE),
    )
    schema = sample_schema(keep)
    arrays = []
    for item in schema:
        if item.name in ("input_ids", "loss_mask"):
            arrays.append(pa.ListArray.from_arrays(pa.array(splits), pa.array(columns[item.name]), type=item.type))
        elif item.name == "segments":
            arrays.append(pa.ListArray.from_arrays(pa.array(seg_splits), segments, type=item.type))
        elif item.name in keep:
            arrays.append(pa.array([f"{item.name} {first + i}" for i in range(rows)], pa.string()))
        else:
            arrays.append(columns[item.name])
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    stats = UnitStats(records_in=rows + rejects, records_out=rows, text_bytes=4 * len(ids))
    stats.add_rows(
        ids,
        splits.astype(np.int64),
        flat_mask,
        kinds,
        np.array([e - s for s, e, *_ in flat], np.int32),
        np.repeat(np.arange(rows), np.diff(seg_splits)),
        0,
    )
    stats.rejected.update({"bad_json": rejects} if rejects else {})
    return FakeBatch(batch, _rejects(file, first + rows, rejects), stats)


def _row(rng: np.random.Generator, length: int) -> dict[str, Any]:
    segments = [(0, 1, Kind.bos, -1)]
    position, message = 1, 0
    pattern = (
        (Kind.header, Kind.user, Kind.trailer),
        (Kind.header, Kind.reasoning, Kind.content, Kind.stop, Kind.trailer),
    )
    while position < length:
        for kind in pattern[message % 2]:
            if position >= length:
                break
            end = min(length, position + (int(rng.integers(1, 9)) if kind in (Kind.user, Kind.content) else 1))
            segments.append((position, end, kind, message))
            position = end
        message += 1
    ids = rng.integers(1, VOCABULARY, length)
    ids[0] = 0
    mask = np.zeros(length, bool)
    for start, end, kind, _ in segments:
        mask[start:end] = kind in TRAINED
    return {"ids": ids, "segments": segments, "mask": mask}


def _rejects(file: str, first: int, count: int) -> pa.RecordBatch:
    rows = [
        {
            "source_file": file,
            "source_row": first + i,
            "offset": 100 * (first + i),
            "outcome": "rejected",
            "reason": "bad_json",
            "detail": "unexpected end",
            "raw": b"{",
            "raw_cut": False,
        }
        for i in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)


def make_recipe(url: str, names: tuple[str, ...] = ("data",), **changes: Any) -> Recipe:
    datasets = [{"name": name, "input": f"{name}/*.jsonl"} for name in names]
    return Recipe.from_dict({"tokenizer": "tok", "output": url, "datasets": datasets} | changes)


def make_fingerprint(recipe: Recipe, files: int = 1) -> Fingerprint:
    listing = FakeListing(
        [FakeFile(f"{s.name}/{i}.jsonl", 1000 + i, s.name) for s in recipe.datasets for i in range(files)]
    )
    return Fingerprint.of(recipe, listing, FakeDigest("t" * 64), FakeDigest("c" * 64))


def write_unit(
    folder: OutputFolder, unit: FakeUnit, batches: list[FakeBatch], keep: tuple[str, ...] = (), fingerprint: str = ""
) -> Any:
    with UnitWriter(folder, unit, keep, "1", fingerprint=fingerprint) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.receipt


def make_run(
    url: str | Path,
    *,
    names: tuple[str, ...] = ("data",),
    units: int = 3,
    rows: int = 20,
    rejects: int = 0,
    manifest: bool = True,
    folder: OutputFolder | None = None,
    **changes: Any,
) -> OutputFolder:
    """A finished run of synthetic rows."""
    folder = folder or OutputFolder(str(url))
    recipe = make_recipe(str(url), names, **changes)
    fingerprint = make_fingerprint(recipe, units)
    start_run(folder, fingerprint, recipe)
    keep = kept_columns(recipe)
    for d, name in enumerate(names):
        for u in range(units):
            unit = FakeUnit(f"{name}-{u:05d}", name)
            half = rows // 2
            args: dict[str, Any] = {"file": f"{name}/{u}.jsonl", "dataset": name, "keep": keep}
            batches = [
                make_batch(half, seed=1000 * d + 10 * u, rejects=rejects, **args),
                make_batch(rows - half, seed=1000 * d + 10 * u + 1, first=half, **args),
            ]
            write_unit(folder, unit, batches, keep, fingerprint.digest)
    if manifest:
        write_manifest(folder, read_receipts(folder))
    return folder
