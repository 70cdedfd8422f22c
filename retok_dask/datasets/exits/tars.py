"""The exit to WebDataset: tar files with a few members a sample."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.datasets.exits.base import Rows, Shard
    from retok_dask.datasets.folder import OutputFolder


class WebDatasetExit:
    """``KEY.input_ids.npy``, ``KEY.loss_mask.npy`` and ``KEY.json``; the key is the sample's id."""

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        name = f"shard-{shard.index:06d}.tar"
        path = shard.create(name)
        count = 0
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for part in rows:
                for number in range(len(part)):
                    self._add(tar, part, number)
                count += len(part)
        return {"url": name, "nsamples": count}

    def _add(self, tar: tarfile.TarFile, rows: Rows, number: int) -> None:
        ids, mask = rows.row(number)
        key = rows.names[number]
        about: dict[str, Any] = {"sample_id": key, "num_tokens": len(ids), "num_loss_tokens": int(mask.sum())}
        if rows.documents is not None:
            about["seq_lengths"] = rows.documents[number]
        for suffix, data in (
            ("input_ids.npy", _npy(ids)),
            ("loss_mask.npy", _npy(mask)),
            ("json", orjson.dumps(about)),
        ):
            member = tarfile.TarInfo(f"{key}.{suffix}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], _facts: dict[str, Any]) -> None:
        index = {"wids_version": 1, "shardlist": shards}
        folder.write_json("index.json", index, indent=True)


def _npy(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
