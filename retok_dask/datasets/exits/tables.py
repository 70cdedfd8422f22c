"""Exits that are tables: Parquet files, JSON lines, and the folder of Hugging Face's ``save_to_disk``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.recipe import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retok_dask.datasets.exits.base import Rows, Shard
    from retok_dask.datasets.folder import OutputFolder

Column = tuple[str, "Callable[[Rows], pa.Array]"]


def _lists(rows: Rows, values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(rows.splits.astype(np.int32)), pa.array(values))


def _nested(rows: Rows, values: np.ndarray[Any, Any]) -> pa.Array:
    """Each row as a matrix of one line, as tensors with a batch dimension are stored."""
    outer = pa.array(np.arange(len(rows) + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(outer, _lists(rows, values))


def _ids(rows: Rows) -> pa.Array:
    return _lists(rows, rows.ids)


def _mask(rows: Rows) -> pa.Array:
    return _lists(rows, rows.mask.astype(np.int8))


def _ones(rows: Rows) -> pa.Array:
    return _lists(rows, np.ones(len(rows.ids), np.int8))


def _lengths(rows: Rows) -> pa.Array:
    return pa.array(rows.lengths)


def _names(rows: Rows) -> pa.Array:
    return pa.array(rows.names, pa.string())


LAYOUTS: dict[str, list[Column]] = {
    "labels": [("input_ids", _ids), ("labels", lambda rows: _lists(rows, rows.labels()))],
    "assistant_masks": [("input_ids", _ids), ("assistant_masks", _mask)],
    "completion_mask": [("input_ids", _ids), ("completion_mask", _mask)],
    "axolotl": [
        ("input_ids", _ids),
        ("attention_mask", _ones),
        ("labels", lambda rows: _lists(rows, rows.labels())),
    ],
    "modelopt": [("cid", _names), ("token_ids", _ids), ("loss_mask", _mask)],
    "loss_mask": [
        ("sample_id", _names),
        ("input_ids", _ids),
        ("loss_mask", lambda rows: _lists(rows, rows.mask)),
        ("num_tokens", lambda rows: pa.array(rows.lengths.astype(np.int32))),
    ],
    "specforge": [
        ("input_ids", lambda rows: _nested(rows, rows.ids.astype(np.int64))),
        ("loss_mask", lambda rows: _nested(rows, rows.mask.astype(np.int64))),
        ("attention_mask", lambda rows: _nested(rows, np.ones(len(rows.ids), np.int64))),
    ],
    "speculators": [
        ("input_ids", lambda rows: _lists(rows, rows.ids.astype(np.int64))),
        ("loss_mask", lambda rows: _lists(rows, rows.mask.astype(np.int64))),
        ("seq_len", _lengths),
    ],
}
"""Columns of each layout, as their consumers name them."""


def table_batch(rows: Rows, layout: str) -> pa.RecordBatch:
    """Rows in a consumer's columns; packed rows also get their boundaries."""
    columns = {name: make(rows) for name, make in LAYOUTS[layout]}
    if rows.documents is not None:
        columns["seq_lengths"] = pa.array(rows.documents, pa.list_(pa.int32()))
        columns["position_ids"] = _lists(rows, rows.positions())
    return pa.RecordBatch.from_pydict(columns)


class ParquetExit:
    """One Parquet file a shard."""

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        path = shard.create(f"data/train-{shard.index:05d}-of-{shard.total:05d}.parquet")
        writer: pq.ParquetWriter | None = None
        for part in rows:
            batch = table_batch(part, self.layout)
            if writer is None:
                writer = pq.ParquetWriter(
                    path, batch.schema, compression="zstd", compression_level=1, use_dictionary=False
                )
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
        return {}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        """Parquet files need no index."""


class JsonLinesExit:
    """One file of JSON lines a shard: the ids, and the mask as 0 and 1."""

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        path = shard.create(f"prompts-{shard.index:05d}-of-{shard.total:05d}.jsonl")
        with path.open("wb") as file:
            for part in rows:
                for number in range(len(part)):
                    ids, mask = part.row(number)
                    line = {"input_ids": ids, "loss_mask": mask.view(np.int8)}
                    file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        return {}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        """Lines need no index."""


class SaveToDiskExit:
    """The folder that ``datasets.load_from_disk`` reads: Arrow streams, ``state.json``, ``dataset_info.json``.

    Args:
        layout: of :data:`LAYOUTS`.
        format_type: what rows are when they are loaded: None for lists, or
            ``torch`` where the consumer's own code loads the folder and wants tensors.
    """

    def __init__(self, layout: str, format_type: str | None = None) -> None:
        self.layout = layout
        self.format_type = format_type

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        name = f"data-{shard.index:05d}-of-{shard.total:05d}.arrow"
        path = shard.create(name)
        features: dict[str, Any] = {}
        writer: pa.RecordBatchStreamWriter | None = None
        with pa.OSFile(str(path), "wb") as sink:
            for part in rows:
                batch = table_batch(part, self.layout)
                if writer is None:
                    features = {field.name: feature(field.type) for field in batch.schema}
                    schema = batch.schema.with_metadata({"huggingface": orjson.dumps({"info": {"features": features}})})
                    writer = pa.ipc.new_stream(sink, schema)
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            if writer is not None:
                writer.close()
        return {"file": name, "features": features}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        info = {"citation": "", "description": "", "features": shards[0]["features"], "homepage": "", "license": ""}
        folder.write_json("dataset_info.json", info, indent=True)
        state: dict[str, Any] = {
            "_data_files": [{"filename": shard["file"]} for shard in shards],
            "_fingerprint": digest([facts["content_digest"], self.layout])[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": self.format_type,
            "_output_all_columns": False,
            "_split": "train",
        }
        folder.write_json("state.json", state, indent=True)


def feature(kind: pa.DataType) -> dict[str, Any]:
    """An Arrow type as Hugging Face describes it."""
    if pa.types.is_list(kind):
        return {"feature": feature(kind.value_type), "_type": "Sequence"}
    return {"dtype": "bool" if pa.types.is_boolean(kind) else str(kind), "_type": "Value"}
