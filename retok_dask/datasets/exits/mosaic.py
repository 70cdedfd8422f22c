"""The exit to MosaicML streaming: MDS shards and their ``index.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.datasets.exits.base import Rows, Shard
    from retok_dask.datasets.folder import OutputFolder

SIZE_LIMIT = 1 << 26
"""Bytes after which a new MDS file begins; offsets in it have 32 bits."""

COLUMNS = {"input_ids": "ndarray:int32", "loss_mask": "ndarray:uint8", "sample_id": "str"}
PACKED_COLUMNS = COLUMNS | {"seq_lengths": "ndarray:int32"}


class MosaicExit:
    """MDS version 2: each file holds a count, offsets, its own description, and the samples."""

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        described: list[dict[str, Any]] = []
        pending: list[bytes] = []
        columns = COLUMNS
        size = 0
        for part in rows:
            columns = COLUMNS if part.documents is None else PACKED_COLUMNS
            for number in range(len(part)):
                sample = _sample(part, number)
                if pending and size + len(sample) > SIZE_LIMIT:
                    described.append(self._file(shard, len(described), pending, columns))
                    pending, size = [], 0
                pending.append(sample)
                size += len(sample)
        if pending:
            described.append(self._file(shard, len(described), pending, columns))
        return {"shards": described}

    def _file(self, shard: Shard, number: int, samples: list[bytes], columns: dict[str, str]) -> dict[str, Any]:
        names = sorted(columns)
        config = {
            "column_encodings": [columns[name] for name in names],
            "column_names": names,
            "column_sizes": [None] * len(names),
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": SIZE_LIMIT,
            "version": 2,
        }
        text = orjson.dumps(config, option=orjson.OPT_SORT_KEYS)
        head = 4 + 4 * (len(samples) + 1) + len(text)
        offsets = head + np.concatenate([[0], np.cumsum([len(sample) for sample in samples])])
        name = f"shard.{shard.index:05d}.{number:03d}.mds"
        with shard.create(name).open("wb") as file:
            file.write(np.uint32(len(samples)).tobytes() + offsets.astype(np.uint32).tobytes() + text)
            file.writelines(samples)
        data = {"basename": name, "bytes": int(offsets[-1]), "hashes": {}}
        return config | {"raw_data": data, "samples": len(samples), "zip_data": None}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], _facts: dict[str, Any]) -> None:
        every = [described for shard in shards for described in shard["shards"]]
        folder.write_json("index.json", {"shards": every, "version": 2})


def _sample(rows: Rows, number: int) -> bytes:
    """One sample: the sizes of its columns in the order of their names, then their values."""
    ids, mask = rows.row(number)
    values = [_array(ids.astype(np.int32)), _array(mask.astype(np.uint8)), rows.names[number].encode()]
    if rows.documents is not None:
        values.append(_array(np.array(rows.documents[number], np.int32)))
    return np.array([len(value) for value in values], np.uint32).tobytes() + b"".join(values)


def _array(values: np.ndarray[Any, Any]) -> bytes:
    """A flat array whose type is known from the column: dimensions and width of the shape, shape, values."""
    width = 0 if len(values) < 1 << 8 else 1 if len(values) < 1 << 16 else 2
    shape = np.array([len(values)], ("u1", "<u2", "<u4")[width])
    return bytes([(1 << 2) | width]) + shape.tobytes() + values.tobytes()
