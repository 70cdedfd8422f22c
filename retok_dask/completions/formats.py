"""Which format and compression a file has, told by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec

COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jl": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".traj": "object",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}

SPLITTABLE = {"jsonl", "parquet"}
"""Formats that can be read from the middle, if not compressed."""

BESIDE_DATA = {"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"}
"""Files that the `datasets` library writes beside its data."""


def compression_of(url: str) -> str:
    """Compression by suffix; empty for none.

    >>> compression_of("s3://b/x.jsonl.gz"), compression_of("x.jsonl")
    ('gzip', '')
    """
    name = url.rpartition("/")[2].lower()
    return next((kind for suffix, kind in COMPRESSIONS.items() if name.endswith(suffix)), "")


def format_of(url: str) -> str | None:
    """Format by suffix, a compression suffix left aside; None if the name does not tell.

    >>> format_of("x.jsonl.zst"), format_of("part-0001")
    ('jsonl', None)
    """
    name = url.rpartition("/")[2].lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in FORMATS.items() if name.endswith(suffix)), None)


def belongs_in_folder(url: str, spec: DatasetSpec) -> bool:
    """Whether a file found in a folder is data, not something that lies beside it."""
    name = url.rpartition("/")[2]
    if name.startswith((".", "_", "cache-")) or name in BESIDE_DATA:
        return False
    if spec.format != "auto":
        kind = format_of(url)
        return kind is None or kind == spec.format or (kind, spec.format) in {("json", "jsonl"), ("json", "object")}
    kind = format_of(url)
    return kind is not None and (kind != "text" or spec.mode == "text")
