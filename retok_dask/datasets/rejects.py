"""Records that were left out: what there is of them, and their lines for repair."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.completions import open_fs
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.receipts import read_receipts
from retok_dask.errors import OutputError
from retok_dask.schema import REJECT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    written: int = 0
    cut: int = 0

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
            return "every record was written"
        rows = [(*key, f"{number:,}") for key, number in sorted(self.counts.items())]
        head = ("data set", "outcome", "reason", "records")
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        for reason, found in sorted(self.examples.items()):
            lines += [
                f"{reason}: {one['file']} row {one['row']} byte {one['offset']}: {one['detail']}" for one in found
            ]
        if self.written or self.cut:
            lines.append(f"{self.written:,} lines written for repair, {self.cut:,} left out because they are not whole")
        return "\n".join(line.rstrip() for line in lines)


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
        OutputError: the folder holds no run.
    """
    folder = OutputFolder(url, storage)
    if not folder.exists("_retok/run.json"):
        msg = f"{url!r} holds no run of retok; check the path"
        raise OutputError(msg)
    summary = RejectSummary()
    rows = _rows(folder, None if datasets is None else set(datasets), None if reasons is None else set(reasons))
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


def _rows(
    folder: OutputFolder, datasets: set[str] | None, reasons: set[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for receipt in read_receipts(folder, verify="size").values():
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
