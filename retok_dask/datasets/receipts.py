"""The small file that says a unit is committed, and who believes it.

A receipt alone proves nothing: a unit counts as committed only while its
receipt and the files that it names agree.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import socket
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.folder import RECEIPTS, VOCABULARY, OutputFolder
from retok_dask.errors import OutputError, count_of
from retok_dask.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Verify = Literal["size", "footer", "sha256"]
"""How far a unit's files are compared with its receipt; each includes the one before."""


@dataclass(frozen=True)
class FileRecord:
    """One output file of a unit.

    Attributes:
        role: ``samples``, ``rejects`` or ``vocabulary``.
        path: below the run's folder.
        size: bytes.
        sha256: hex, of the file's bytes.
        rows: rows in the file.
    """

    role: str
    path: str
    size: int
    sha256: str
    rows: int


@dataclass(frozen=True)
class Receipt:
    """What a committed unit read, wrote and counted.

    Attributes:
        unit: the unit's id.
        dataset: name of its data set.
        outputs: its files.
        stats: :meth:`retok_dask.kernel.UnitStats.to_dict` of the whole unit.
        summary: ``rows``, ``tokens``, ``loss_tokens`` and the smallest and
            largest ``num_tokens`` and ``num_loss_tokens`` of a row.
        content_digest: hex; see :class:`retok_dask.datasets.digest.ContentDigest`.
        source: the unit as :meth:`retok_dask.completions.Unit.to_dict` gives
            it: the files and byte ranges that were read.
        fingerprint: digest of the run's fingerprint.
        attempt: name of the attempt that wrote it.
        host: machine that wrote it.
        written: UTC time, ISO 8601.
    """

    unit: str
    dataset: str
    outputs: tuple[FileRecord, ...]
    stats: dict[str, Any]
    summary: dict[str, int]
    content_digest: str
    source: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    attempt: str = ""
    host: str = field(default_factory=socket.gethostname)
    written: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    schema_version: int = SCHEMA_VERSION

    def output(self, role: str) -> FileRecord | None:
        """The file with a role, if the unit wrote one."""
        return next((item for item in self.outputs if item.role == role), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Receipt:
        """The receipt of a parsed JSON object.

        Raises:
            OutputError: a field is missing or unknown.
        """
        try:
            outputs = tuple(FileRecord(**item) for item in data["outputs"])
            return cls(**{**data, "outputs": outputs})
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"this is no receipt of schema version {SCHEMA_VERSION}: {error}"
            raise OutputError(msg) from error


@dataclass(frozen=True)
class ReceiptScan:
    """All receipts of a folder, sorted into believed and not.

    Attributes:
        committed: receipts whose files agree, by unit id.
        refused: why a unit's receipt is not believed, by unit id.
    """

    committed: dict[str, Receipt]
    refused: dict[str, str]


def write_receipt(folder: OutputFolder, receipt: Receipt) -> None:
    """Commit a unit; its files must have been published before."""
    folder.write_json(folder.receipt(receipt.unit), receipt.to_dict())


def read_receipts(
    folder: OutputFolder, *, fingerprint: str | None = None, verify: Verify = "footer"
) -> dict[str, Receipt]:
    """Receipts of the units that are committed, by unit id; see :func:`scan_receipts`."""
    return scan_receipts(folder, fingerprint=fingerprint, verify=verify).committed


def scan_receipts(
    folder: OutputFolder,
    *,
    fingerprint: str | None = None,
    verify: Verify = "footer",
    units: Iterable[str] | None = None,
) -> ReceiptScan:
    """Read all receipts and compare them with the files that they name.

    Two listings, then small reads at once; made for 100,000 units.

    Args:
        folder: the run's folder.
        fingerprint: digest that each receipt must carry; None for any.
        verify: ``size`` compares with the listing, ``footer`` also reads each
            Parquet footer, ``sha256`` each whole file.
        units: only these; None for all that are there.
    """
    names = sorted(folder.sizes(RECEIPTS))
    if units is not None:
        wanted = {folder.receipt(unit) for unit in units}
        names = [name for name in names if name in wanted]
    receipts, refused = parse_receipts(names, folder.read_many(names))
    sizes = _output_sizes(folder)
    found = folder.parallel(lambda item: check_files(folder, item, sizes, fingerprint, verify), list(receipts.values()))
    for receipt, problem in zip(list(receipts.values()), found, strict=True):
        if problem:
            refused[receipt.unit] = problem
            del receipts[receipt.unit]
    return ReceiptScan(receipts, refused)


def discard_unit(folder: OutputFolder, dataset: str, unit: str) -> None:
    """Delete a unit's receipt and then its files, so that it is done again."""
    folder.remove(
        [
            folder.receipt(unit),
            folder.data(dataset, unit),
            folder.rejects(dataset, unit),
            folder.vocabulary(dataset, unit),
        ]
    )


def parse_receipts(names: list[str], contents: list[bytes | OSError]) -> tuple[dict[str, Receipt], dict[str, str]]:
    """Receipts by unit id, and why others cannot be used; files are not looked at."""
    receipts: dict[str, Receipt] = {}
    refused: dict[str, str] = {}
    for name, content in zip(names, contents, strict=True):
        unit = name.rpartition("/")[2].removesuffix(".json")
        if isinstance(content, OSError):
            refused[unit] = f"its receipt cannot be read: {content}"
            continue
        try:
            receipt = Receipt.from_dict(orjson.loads(content))
        except (OutputError, orjson.JSONDecodeError) as error:
            refused[unit] = f"its receipt cannot be used: {error}"
            continue
        if receipt.unit != unit:
            refused[unit] = f"its receipt is that of unit {receipt.unit!r}"
        else:
            receipts[unit] = receipt
    return receipts, refused


def _output_sizes(folder: OutputFolder) -> dict[str, int]:
    return folder.sizes("data") | folder.sizes("rejects") | folder.sizes(VOCABULARY)


def check_files(
    folder: OutputFolder, receipt: Receipt, sizes: Mapping[str, int], fingerprint: str | None, verify: Verify
) -> str | None:
    """Why a receipt and its files disagree; None if they agree."""
    if receipt.schema_version != SCHEMA_VERSION:
        return f"it was written with schema version {receipt.schema_version}, this is {SCHEMA_VERSION}"
    if fingerprint is not None and receipt.fingerprint != fingerprint:
        return f"it belongs to a run with fingerprint {receipt.fingerprint[:12] or 'none'}, not {fingerprint[:12]}"
    for record in receipt.outputs:
        size = sizes.get(record.path)
        if size is None:
            return f"{record.path} is missing"
        if size != record.size:
            return f"{record.path} has {count_of(size, 'byte')}, its receipt says {record.size:,}"
        problem = _check_content(folder, record, verify)
        if problem:
            return problem
    return None


def _check_content(folder: OutputFolder, record: FileRecord, verify: Verify) -> str | None:
    if verify == "size" or (verify == "footer" and record.role != "samples"):
        return None
    if verify == "sha256":
        found = sha256_of_output(folder, record.path)
        if found != record.sha256:
            return f"{record.path} has sha256 {found[:12]}…, its receipt says {record.sha256[:12]}…"
    try:
        with folder.open_input(record.path) as file:
            rows = pq.ParquetFile(file).metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        return f"{record.path} cannot be read: {error}"
    return (
        None if rows == record.rows else f"{record.path} has {count_of(rows, 'row')}, its receipt says {record.rows:,}"
    )


def sha256_of_output(folder: OutputFolder, relative: str) -> str:
    """Hex sha256 of a file of the run, read in pieces."""
    hasher = hashlib.sha256()
    with folder.open_input(relative) as file:
        while block := file.read(1 << 22):
            hasher.update(block)
    return hasher.hexdigest()
