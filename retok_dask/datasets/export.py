"""Writing a finished run in a trainer's own format: streaming, resumable, every file whole, all rows accounted for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from retok_dask.datasets.exits.base import Rows, Shard
from retok_dask.datasets.exits.registry import exit_named
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.packing import pack as pack_rows
from retok_dask.datasets.parallel import map_units
from retok_dask.datasets.reader import open_dataset
from retok_dask.datasets.rows import read_batches
from retok_dask.errors import FingerprintMismatch, OutputError, count_of
from retok_dask.recipe import digest
from retok_dask.schema import sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed import Client

    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.datasets.reader import TokenDataset
    from retok_dask.recipe import StorageSpec

SHARD_TOKENS = 1 << 27
"""Tokens a shard, where the number of shards is left open: half a gigabyte of ids."""

EXPORT = "_retok_export/export.json"

COLUMNS = ("sample_id", "input_ids", "loss_mask")


@dataclass(frozen=True)
class Exported:
    """What an export wrote, and that nothing is missing.

    Attributes:
        format, url: what and where.
        shards, files: written, ``index`` files of the format not counted.
        documents: rows of the run that were exported.
        rows: rows written; fewer than documents if they are packed.
        tokens, loss_tokens: of all rows.
        context: tokens a packed row may hold; None if rows are not packed.
        padding: tokens that packed rows are short of the context, in all.
        cut: documents longer than the context, cut into pieces of it.
    """

    format: str
    url: str
    shards: int
    files: int
    documents: int
    rows: int
    tokens: int
    loss_tokens: int
    context: int | None = None
    padding: int = 0
    cut: int = 0

    @property
    def trained_share(self) -> float:
        """Share of the tokens that are trained."""
        return self.loss_tokens / self.tokens if self.tokens else 0.0

    @property
    def padding_share(self) -> float:
        """Share of packed rows that is padding."""
        return self.padding / (self.padding + self.tokens) if self.tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"trained_share": self.trained_share, "padding_share": self.padding_share}

    def to_text(self) -> str:
        """What was written, in two lines."""
        packed = ""
        if self.context is not None:
            packed = (
                f"; packed to {self.context:,}, {self.padding_share:.1%} padding, {count_of(self.cut, 'document')} cut"
            )
        return (
            f"wrote {self.format} to {self.url}: {count_of(self.shards, 'shard')}, {count_of(self.files, 'file')}\n"
            f"  {count_of(self.documents, 'document')} in {count_of(self.rows, 'row')}, {count_of(self.tokens, 'token')}, "
            f"{self.trained_share:.1%} trained{packed}"
        )


def export(
    url: str,
    to: str,
    output: str,
    *,
    datasets: Sequence[str] | None = None,
    shards: int | None = None,
    pack: int | None = None,
    storage: StorageSpec | None = None,
    client: Client | None = None,
) -> Exported:
    """Write a finished run in another format.

    A shard that is there from an earlier start of the same export is kept.

    Args:
        url: the run.
        to: a format of :data:`retok_dask.datasets.exits.EXITS`.
        output: folder to write.
        datasets: only these data sets.
        shards: how many; None makes shards of about :data:`SHARD_TOKENS`.
        pack: pack documents into rows of this many tokens, within each unit.
        storage: where S3 answers.
        client: a Dask client whose workers write; None for this process.

    Raises:
        UnfinishedOutput: the run has not finished.
        OutputError: there is no such format, it cannot hold packed rows, or a number is impossible.
        FingerprintMismatch: the folder holds another export.
    """
    spec = exit_named(to)
    for name, value in (("pack", pack), ("shards", shards)):
        if value is not None and value < 1:
            msg = f"{name} is {value}; it is 1 or more, or left out"
            raise OutputError(msg)
    if pack is not None and not spec.packs:
        msg = f"format {to!r} has no place for document boundaries, so rows cannot be packed for it; leave pack out"
        raise OutputError(msg)
    data = open_dataset(url, storage=storage)
    if datasets is not None:
        data = data.filter(list(datasets))
    plan = plan_shards(data.units, shards)
    folder = OutputFolder(output, data.folder.storage, temporary="_retok_export/tmp")
    key = _start(folder, data, to, plan, pack)
    facts = _facts(data)
    todo = [index for index in range(len(plan)) if _shard_done(folder, index, key) is None]
    map_units(
        write_shard,
        [(index, [_unit_path(unit) for unit in plan[index]]) for index in todo],
        "shards written",
        client=client,
        source=data.folder,
        folder=folder,
        to=to,
        total=len(plan),
        pack=pack,
        facts=facts,
        key=key,
    )
    written = [_shard_done(folder, index, key) for index in range(len(plan))]
    return _finish(folder, data, to, [item for item in written if item is not None], pack, facts)


def plan_shards(units: Sequence[UnitEntry], shards: int | None) -> list[list[UnitEntry]]:
    """Units in order, cut into shards of about as many tokens each; no shard is empty."""
    if not units:
        return []
    ends = np.cumsum([unit.summary["tokens"] for unit in units], dtype=np.int64)
    total = int(ends[-1])
    wanted = shards if shards is not None else max(1, -(-total // SHARD_TOKENS))
    wanted = min(wanted, len(units))
    cuts = [0]
    for shard in range(1, wanted):
        near = int(np.searchsorted(ends, total * shard / wanted)) + 1
        cuts.append(min(max(near, cuts[-1] + 1), len(units) - (wanted - shard)))
    cuts.append(len(units))
    return [list(units[start:end]) for start, end in pairwise(cuts)]


def write_shard(
    item: tuple[int, list[str]],
    *,
    source: OutputFolder,
    folder: OutputFolder,
    to: str,
    total: int,
    pack: int | None,
    facts: dict[str, Any],
    key: str,
) -> None:
    """Write one shard and then its receipt.

    Args:
        item: the shard's number, and the files of the run that go into it.
        source, folder: the run's folder and the export's.
        to: the format.
        total: number of shards.
        pack: context length, or None.
        facts: of the run.
        key: digest of all that the shard depends on.
    """
    index, paths = item
    shard = Shard(folder, index, total, facts)
    counted: dict[str, int] = dict.fromkeys(("documents", "rows", "tokens", "loss_tokens", "padding", "cut"), 0)
    try:
        extra = exit_named(to).make().write(_counted(_rows(source, paths, pack), counted, pack), shard)
        shard.publish()
    finally:
        shard.abandon()
    files = [asdict(file) for file in shard.files]
    folder.write_json(_receipt(index), {"key": key, "counts": counted, "files": files, "extra": extra})


def _rows(source: OutputFolder, paths: list[str], pack: int | None) -> Iterator[Rows]:
    """Rows of some units; a packed unit at once, since a document may go into any of its rows."""
    schema = pa.schema([sample_schema().field(name) for name in COLUMNS])
    found = False
    for path in paths:
        parts = (Rows.of(batch) for batch in read_batches(source, path, schema))
        for part in parts if pack is None else [_packed(list(parts), pack)]:
            found = True
            yield part
    if not found:
        # a shard without rows still has valid files
        yield Rows(np.empty(0, np.int32), np.empty(0, np.bool_), np.zeros(1, np.int64), [])


def _packed(parts: list[Rows], context: int) -> Rows:
    whole = Rows(
        np.concatenate([part.ids for part in parts]) if parts else np.empty(0, np.int32),
        np.concatenate([part.mask for part in parts]) if parts else np.empty(0, np.bool_),
        np.concatenate([[0], np.cumsum([n for part in parts for n in part.lengths.tolist()])]).astype(np.int64),
        [name for part in parts for name in part.names],
    )
    packed = pack_rows(whole, context)
    packed.sources = len(whole)
    packed.cut = int(np.count_nonzero(whole.lengths > context))
    return packed


def _counted(parts: Iterator[Rows], counted: dict[str, int], pack: int | None) -> Iterator[Rows]:
    for part in parts:
        counted["documents"] += len(part) if part.sources is None else part.sources
        counted["rows"] += len(part)
        counted["tokens"] += len(part.ids)
        counted["loss_tokens"] += int(np.count_nonzero(part.mask))
        counted["cut"] += part.cut
        counted["padding"] += pack * len(part) - len(part.ids) if pack is not None else 0
        yield part


def _facts(data: TokenDataset) -> dict[str, Any]:
    known = data.manifest.run.get("tokenizer") or {}
    return known | {"tokenizer": data.recipe.tokenizer.path, "content_digest": data.manifest.content_digest}


def _start(folder: OutputFolder, data: TokenDataset, to: str, plan: list[list[UnitEntry]], pack: int | None) -> str:
    """The key of this export; refuses a folder that holds another one."""
    key = digest([data.manifest.content_digest, to, [[unit.unit for unit in shard] for shard in plan], pack])
    old = folder.read_json("_retok_export/key.json")
    if old is not None and old["key"] != key:
        msg = (
            f"{folder.url} holds another export (format {old['format']!r} of {old['source']!r}); choose another folder"
        )
        raise FingerprintMismatch(msg)
    if old is None and folder.sizes(""):
        msg = f"{folder.url} is not empty and holds no export; choose an empty folder"
        raise OutputError(msg)
    folder.write_json("_retok_export/key.json", {"key": key, "format": to, "source": data.folder.url})
    return key


def _receipt(index: int) -> str:
    return f"_retok_export/shards/{index:05d}.json"


def _shard_done(folder: OutputFolder, index: int, key: str) -> dict[str, Any] | None:
    """The receipt of a shard, if it is of this export and its files are there."""
    receipt = folder.read_json(_receipt(index))
    if receipt is None or receipt["key"] != key:
        return None
    sizes = folder.parallel(folder.size, [file["path"] for file in receipt["files"]])
    agree = all(size == file["size"] for size, file in zip(sizes, receipt["files"], strict=True))
    return dict(receipt) if agree else None


def _finish(
    folder: OutputFolder,
    data: TokenDataset,
    to: str,
    written: list[dict[str, Any]],
    pack: int | None,
    facts: dict[str, Any],
) -> Exported:
    """Check the sums, write the format's index, and then the description of the export."""
    counts = {name: sum(item["counts"][name] for item in written) for name in written[0]["counts"]} if written else {}
    rows = data.summary()["rows"]
    expected = {"documents": rows, "tokens": data.num_tokens, "loss_tokens": data.num_loss_tokens}
    for name, value in expected.items():
        if counts.get(name, 0) != value:
            msg = f"{name} of the export are {counts.get(name, 0)}, of the run {value}; run `retok validate {data.folder.url}`"
            raise OutputError(msg)
    if written:
        exit_named(to).make().finish(folder, [item["extra"] for item in written], facts)
    files = sum(len(item["files"]) for item in written)
    result = Exported(to, folder.url, len(written), files, context=pack, **(counts or dict.fromkeys(_COUNTS, 0)))
    about = {"source": data.folder.url, "facts": facts, "files": [file for item in written for file in item["files"]]}
    folder.write_json(EXPORT, result.to_dict() | about, indent=True)
    return result


_COUNTS = ("documents", "rows", "tokens", "loss_tokens", "padding", "cut")


def _unit_path(unit: UnitEntry) -> str:
    record = unit.output("samples")
    assert record is not None
    return record.path
