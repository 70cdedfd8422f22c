"""The shards of an export: each written once and whole, with a receipt, and the sums of all of them checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from retok_dask.datasets.exits.base import Rows, Shard
from retok_dask.datasets.exits.registry import exit_named
from retok_dask.datasets.parallel import map_units
from retok_dask.errors import FingerprintMismatch, OutputError, count_of
from retok_dask.recipe import digest
from retok_dask.schema import sample_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Client

    from retok_dask.datasets.folder import OutputFolder
    from retok_dask.datasets.manifest import UnitEntry
    from retok_dask.datasets.reader import TokenDataset

Reader = Callable[[], Iterator[Rows]]
"""Gives the rows of one shard; picklable."""

EXPORTED = pa.schema([sample_schema().field(name) for name in ("sample_id", "input_ids", "loss_mask")])
"""What of a row is exported."""

EXPORT = "_retok_export/export.json"
KEY = "_retok_export/key.json"

_COUNTS = ("documents", "rows", "tokens", "loss_tokens", "padding", "cut")


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


@dataclass(frozen=True)
class Source:
    """What is exported.

    Attributes:
        url: where it lies.
        facts: what exits want to know of it: its ``tokenizer``, ``vocab_size`` and ``content_digest``.
        rows, tokens, loss_tokens: how much of it there is to export.
        about: what else the description of the export says of it.
    """

    url: str
    facts: dict[str, Any]
    rows: int
    tokens: int
    loss_tokens: int
    about: dict[str, Any] = field(default_factory=dict)


def facts_of(data: TokenDataset) -> dict[str, Any]:
    """What exits want to know of a run."""
    known = data.manifest.run.get("tokenizer") or {}
    return known | {"tokenizer": data.recipe.tokenizer.path, "content_digest": data.manifest.content_digest}


def samples_path(unit: UnitEntry) -> str:
    """The file of a unit's rows, below its run's folder."""
    record = unit.output("samples")
    assert record is not None
    return record.path


class Export:
    """One export of one source into one folder.

    Args:
        folder: where it is written.
        source: what is written.
        to: the format.
        pack: context length, or None.
        plan: what decides which rows go into which shard, as JSON values.

    Raises:
        FingerprintMismatch: the folder holds another export.
        OutputError: it holds something else.
    """

    def __init__(self, folder: OutputFolder, source: Source, to: str, pack: int | None, plan: Any) -> None:
        self._folder, self._source, self._to, self._pack = folder, source, to, pack
        self._key = digest([source.facts["content_digest"], to, plan, pack])
        old = folder.read_json(KEY)
        if old is not None and old["key"] != self._key:
            msg = (
                f"{folder.url} holds another export (format {old['format']!r} of {old['source']!r}); "
                "choose another folder"
            )
            raise FingerprintMismatch(msg)
        if old is None and folder.sizes(""):
            msg = f"{folder.url} is not empty and holds no export; choose an empty folder"
            raise OutputError(msg)
        folder.write_json(KEY, {"key": self._key, "format": to, "source": source.url})

    def todo(self, total: int) -> list[int]:
        """Numbers of the shards that are still to be written."""
        return [index for index, done in enumerate(self._receipts(total)) if done is None]

    def write(self, readers: Sequence[Reader], client: Client | None) -> Exported:
        """Write the shards that are not there, what belongs to all of them, and the description of the export.

        Raises:
            OutputError: the sums are not those of the source.
        """
        map_units(
            write_shard,
            [(index, readers[index]) for index in self.todo(len(readers))],
            "shards written",
            client=client,
            folder=self._folder,
            to=self._to,
            total=len(readers),
            pack=self._pack,
            facts=self._source.facts,
            key=self._key,
        )
        return self._finish([item for item in self._receipts(len(readers)) if item is not None])

    def _receipts(self, total: int) -> list[dict[str, Any] | None]:
        return self._folder.parallel(self._done, range(total))

    def _done(self, index: int) -> dict[str, Any] | None:
        """The receipt of a shard, if it is of this export and its files are there."""
        receipt = self._folder.read_json(_receipt(index))
        if receipt is None or receipt["key"] != self._key:
            return None
        agree = all(self._folder.size(file["path"]) == file["size"] for file in receipt["files"])
        return dict(receipt) if agree else None

    def _finish(self, written: list[dict[str, Any]]) -> Exported:
        source, folder = self._source, self._folder
        counts = {name: sum(item["counts"][name] for item in written) for name in _COUNTS}
        expected = {"documents": source.rows, "tokens": source.tokens, "loss_tokens": source.loss_tokens}
        for name, value in expected.items():
            if counts[name] != value:
                msg = f"{name} of the export are {counts[name]}, of {source.url} {value}; run `retok validate` on it"
                raise OutputError(msg)
        if written:
            exit_named(self._to).make().finish(folder, [item["extra"] for item in written], source.facts)
        files = [file for item in written for file in item["files"]]
        result = Exported(self._to, folder.url, len(written), len(files), context=self._pack, **counts)
        about = {"source": source.url, "facts": source.facts, "files": files} | source.about
        folder.write_json(EXPORT, result.to_dict() | about, indent=True)
        folder.remove_folder(folder.temporary)  # with what killed attempts left there
        return result


def cut_evenly(ends: npt.NDArray[np.int64], shards: int) -> list[int]:
    """Where to cut items into shards of about as many tokens each; no shard is empty.

    Args:
        ends: tokens up to the end of each item.
        shards: how many are wanted; there are no more than items.

    Returns:
        Numbers of items, from 0 to that of all.
    """
    wanted = min(shards, len(ends))
    cuts = [0]
    for shard in range(1, wanted):
        near = int(np.searchsorted(ends, int(ends[-1]) * shard / wanted)) + 1
        cuts.append(min(max(near, cuts[-1] + 1), len(ends) - (wanted - shard)))
    return [*cuts, len(ends)] if wanted else cuts


def write_shard(
    item: tuple[int, Reader],
    *,
    folder: OutputFolder,
    to: str,
    total: int,
    pack: int | None,
    facts: dict[str, Any],
    key: str,
) -> None:
    """Write one shard and then its receipt.

    Args:
        item: the shard's number, and what reads its rows.
        folder: the export's.
        to: the format.
        total: number of shards.
        pack: context length, or None.
        facts: of the source.
        key: digest of all that the shard depends on.
    """
    index, read = item
    shard = Shard(folder, index, total, facts)
    counted = dict.fromkeys(_COUNTS, 0)
    try:
        extra = exit_named(to).make().write(_counted(_at_least_one(read()), counted, pack), shard)
        shard.publish()
    finally:
        shard.abandon()
    files = [asdict(file) for file in shard.files]
    folder.write_json(_receipt(index), {"key": key, "counts": counted, "files": files, "extra": extra})


def _at_least_one(parts: Iterator[Rows]) -> Iterator[Rows]:
    """The same parts, and one without rows if there is none: such a shard still has valid files."""
    found = False
    for part in parts:
        found = True
        yield part
    if not found:
        yield Rows(np.empty(0, np.int32), np.empty(0, np.bool_), np.zeros(1, np.int64), [])


def _counted(parts: Iterator[Rows], counted: dict[str, int], pack: int | None) -> Iterator[Rows]:
    for part in parts:
        counted["documents"] += len(part) if part.sources is None else part.sources
        counted["rows"] += len(part)
        counted["tokens"] += len(part.ids)
        counted["loss_tokens"] += int(np.count_nonzero(part.mask))
        counted["cut"] += part.cut
        counted["padding"] += pack * len(part) - len(part.ids) if pack is not None else 0
        yield part


def _receipt(index: int) -> str:
    return f"_retok_export/shards/{index:05d}.json"
