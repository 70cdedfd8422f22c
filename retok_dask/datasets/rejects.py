"""Records that were left out: what there is of them, and their lines for repair."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.completions import open_fs
from retok_dask.datasets.fingerprint import read_recipe
from retok_dask.datasets.folder import LISTING, MANIFEST, RUN, OutputFolder
from retok_dask.datasets.receipts import read_receipts
from retok_dask.errors import OutputError, count_of, did_you_mean
from retok_dask.schema import REJECT_SCHEMA
from retok_dask.types import FilterReason, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from retok_dask.datasets.receipts import Receipt
    from retok_dask.recipe import StorageSpec

EXAMPLES = 3
"""Records of each reason that are named."""

SHOWN_BYTES = 160


@dataclass
class RejectSummary:
    """What was left out of a run, by reason.

    Attributes:
        counts: records by ``(data set, outcome, reason)``.
        examples: some records of each reason: file, row, offset, detail and the
            head of their bytes.
        written: lines written for repair.
        cut: records of those reasons whose stored bytes are not whole, and
            which the source files alone can give.
        units, committed: units of the run, and those of them that were looked at: the others are not done yet.
        chosen: what was asked for, in words; empty for everything.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    written: int = 0
    cut: int = 0
    units: int = 0
    committed: int = 0
    chosen: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        rows = [
            {"dataset": dataset, "outcome": outcome, "reason": reason, "records": number}
            for (dataset, outcome, reason), number in sorted(self.counts.items())
        ]
        return asdict(self) | {"counts": rows}

    def to_text(self) -> str:
        """A table and examples for a terminal."""
        if not self.counts:
            return self._nothing()
        rows = [(*key, f"{number:,}") for key, number in sorted(self.counts.items())]
        head = ("data set", "outcome", "reason", "records")
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        for reason, found in sorted(self.examples.items()):
            lines += [
                f"{reason}: {one['file']} row {one['row']} byte {one['offset']}: {one['detail']}" for one in found
            ]
        if self.written or self.cut:
            lines.append(f"{count_of(self.written, 'line')} written for repair, {self.cut:,} left out, not being whole")
        if self.committed < self.units:
            lines.append(self._so_far())
        return "\n".join(line.rstrip() for line in lines)

    def _nothing(self) -> str:
        if self.committed < self.units:
            return f"no record was left out so far{self.chosen}; {self._so_far()}"
        return f"no record was left out{self.chosen}" if self.chosen else "every record was written"

    def _so_far(self) -> str:
        return f"done so far: {self.committed:,} of {count_of(self.units, 'unit')}"


def rejects(
    url: str,
    *,
    to: str | None = None,
    reasons: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    storage: StorageSpec | None = None,
) -> RejectSummary:
    """Summarise the records that a run left out, and write their lines for repair.

    Works while the run goes on, and on runs that stopped. Mended lines put
    beside the inputs, under the same pattern, are what ``retok run --extend``
    takes next: those alone.

    Args:
        url: the run's folder.
        to: a JSONL file for the raw records, each as it lay in its file; only
            rejected ones, since filtered ones need no repair.
        reasons: only these.
        datasets: only these.
        storage: where S3 answers.

    Raises:
        OutputError: the folder holds no run, or there is no such data set or reason.
    """
    folder = OutputFolder(url, storage)
    if not folder.exists(RUN):
        msg = f"{url!r} holds no run of retok; check the path"
        raise OutputError(msg)
    asked = _asked("data set", datasets, _dataset_names(folder)), _asked("reason", reasons, _REASONS)
    receipts = read_receipts(folder, verify="size")
    summary = RejectSummary(units=_count_units(folder, len(receipts)), committed=len(receipts))
    named = [f"{what} {', '.join(sorted(names))}" for what, names in zip(("of", "for"), asked, strict=True) if names]
    summary.chosen = "".join(f" {part}" for part in named)
    rows = _rows(folder, receipts.values(), *asked)
    if to is None:
        for dataset, row in rows:
            _count(summary, dataset, row)
        return summary
    fs, path = open_fs(to, folder.storage)
    with fs.open(path, "wb") as sink:
        for dataset, row in rows:
            _count(summary, dataset, row)
            if row["outcome"] != "rejected":
                continue
            if row["raw"] is None or row["raw_cut"]:
                summary.cut += 1
                continue
            sink.write(row["raw"].replace(b"\n", b" ") + b"\n")
            summary.written += 1
    return summary


_REASONS = [*map(str, RejectReason), *map(str, FilterReason)]


def _asked(what: str, names: Iterable[str] | None, legal: Sequence[str]) -> set[str] | None:
    """The names that were asked for; None for all."""
    if names is None:
        return None
    for name in (asked := set(names)):
        if name not in legal:
            msg = f"there is no {what} {name!r}.{did_you_mean(name, legal)}"
            raise OutputError(msg)
    return asked


def _dataset_names(folder: OutputFolder) -> list[str]:
    return [spec.name for spec in read_recipe(folder).datasets]


def _count_units(folder: OutputFolder, committed: int) -> int:
    """Units of the run; a finished one has as many as are committed."""
    listing = None if folder.exists(MANIFEST) else folder.read_json(LISTING)
    return committed if listing is None else len(listing["units"])


def _rows(
    folder: OutputFolder, receipts: Iterable[Receipt], datasets: set[str] | None, reasons: set[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for receipt in receipts:
        record = receipt.output("rejects")
        if record is None or (datasets is not None and receipt.dataset not in datasets):
            continue
        with folder.open_input(record.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(batch_size=256):
                for row in pa.Table.from_batches([batch]).cast(REJECT_SCHEMA).to_pylist():
                    if reasons is None or row["reason"] in reasons:
                        yield receipt.dataset, row


def _count(summary: RejectSummary, dataset: str, row: dict[str, Any]) -> None:
    summary.counts[dataset, row["outcome"], row["reason"]] += 1
    found = summary.examples.setdefault(row["reason"], [])
    if len(found) < EXAMPLES:
        found.append(
            {
                "file": row["source_file"],
                "row": row["source_row"],
                "offset": row["offset"],
                "detail": row["detail"],
                "head": (row["raw"] or b"")[:SHOWN_BYTES].decode("utf-8", "replace"),
            }
        )
