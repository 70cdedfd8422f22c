"""Exits that are one long run of tokens with a list of where each row ends."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retok_dask.datasets.exits.base import Rows, Shard
    from retok_dask.datasets.folder import OutputFolder


def _document_lengths(rows: Rows) -> np.ndarray[Any, Any]:
    if rows.documents is None:
        return rows.lengths
    return np.array([length for row in rows.documents for length in row], np.int64)


MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_CODES = {"uint8": 1, "int32": 4}


class MegatronExit:
    """Megatron's indexed data set: ``tokens-N.bin/.idx``, and the masks beside them in the same format.

    One sequence a row; one document a row, or one a document of a packed row.
    """

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        names: dict[str, np.dtype[Any]] = {"tokens": np.dtype(np.int32), "loss_mask": np.dtype(np.uint8)}
        paths = {name: shard.create(f"{name}-{shard.index:05d}.bin") for name in names}
        lengths: list[np.ndarray[Any, Any]] = []
        with paths["tokens"].open("wb") as tokens, paths["loss_mask"].open("wb") as masks:
            for part in rows:
                tokens.write(part.ids.astype(np.int32).tobytes())
                masks.write(part.mask.astype(np.uint8).tobytes())
                lengths.append(_document_lengths(part))
        every = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        for name, dtype in names.items():
            self._index(shard.create(f"{name}-{shard.index:05d}.idx"), every, dtype)
        return {"prefix": f"tokens-{shard.index:05d}", "mask_prefix": f"loss_mask-{shard.index:05d}"}

    def _index(self, path: Path, lengths: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        pointers = np.concatenate([[0], np.cumsum(lengths)])[:-1] * dtype.itemsize
        documents = np.arange(len(lengths) + 1, dtype=np.int64)
        with path.open("wb") as file:
            file.write(MEGATRON_MAGIC + struct.pack("<QB", 1, MEGATRON_CODES[dtype.name]))
            file.write(struct.pack("<QQ", len(lengths), len(documents)))
            file.write(lengths.astype(np.int32).tobytes())
            file.write(pointers.astype(np.int64).tobytes())
            file.write(documents.tobytes())

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        """The ``.idx`` files are index enough."""


class DatatroveExit:
    """datatrove's tokenized files: ``.ds``, ``.ds.index`` (document ends), ``.ds.loss``, ``.ds.metadata``."""

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        name = f"{shard.index:05d}_tokens.ds"
        vocab_size = shard.facts.get("vocab_size")
        dtype = np.dtype("<u2") if vocab_size is not None and vocab_size <= 1 << 16 else np.dtype("<u4")
        tokens_path, loss_path = shard.create(name), shard.create(f"{name}.loss")
        index_path, metadata_path = shard.create(f"{name}.index"), shard.create(f"{name}.metadata")
        end = 0
        with tokens_path.open("wb") as tokens, loss_path.open("wb") as loss, index_path.open("wb") as index:
            for part in rows:
                tokens.write(part.ids.astype(dtype).tobytes())
                loss.write(part.mask.tobytes())
                index.write((end + np.cumsum(_document_lengths(part))).astype("<u8").tobytes())
                end += len(part.ids)
        tokenizer = shard.facts.get("tokenizer") or "unknown"
        metadata_path.write_text(f"{tokenizer}|{dtype.itemsize}\n{end}\n{end / 1e9:.3f} GT")
        return {"file": name, "token_size": dtype.itemsize}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        """Each file has its own index."""


class NumpyExit:
    """``input_ids-N.npy``, ``loss_mask-N.npy`` and ``documents-N.npy`` (offsets, one more than documents)."""

    def write(self, rows: Iterator[Rows], shard: Shard) -> dict[str, Any]:
        suffix = f"{shard.index:05d}.npy"
        ids_path, mask_path = shard.create(f"input_ids-{suffix}"), shard.create(f"loss_mask-{suffix}")
        lengths: list[np.ndarray[Any, Any]] = []
        tokens = 0
        with ids_path.open("wb") as ids, mask_path.open("wb") as mask:
            _npy_header(ids, np.dtype("<i4"), 0)
            _npy_header(mask, np.dtype("|b1"), 0)
            for part in rows:
                ids.write(part.ids.astype("<i4").tobytes())
                mask.write(part.mask.tobytes())
                lengths.append(_document_lengths(part))
                tokens += len(part.ids)
            for file, dtype in ((ids, "<i4"), (mask, "|b1")):
                file.seek(0)
                _npy_header(file, np.dtype(dtype), tokens)
        every = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        with shard.create(f"documents-{suffix}").open("wb") as file:
            np.save(file, np.concatenate([[0], np.cumsum(every)]).astype(np.int64))
        return {"suffix": suffix, "tokens": tokens}

    def finish(self, folder: OutputFolder, shards: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        folder.write_json("index.json", {"shards": shards, "facts": facts}, indent=True)


def _npy_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """The header of a flat ``.npy`` file; numpy pads it so that the count may be put in later."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, described)
