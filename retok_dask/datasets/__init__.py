"""What goes out: files that appear whole, receipts, the manifest, and the way back in."""

from retok_dask.datasets.digest import ContentDigest
from retok_dask.datasets.export import Exported, export
from retok_dask.datasets.fingerprint import (
    Fingerprint,
    check_fingerprint,
    library_versions,
    read_fingerprint,
    read_run,
    start_run,
)
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.lock import LockInfo, OutputLock
from retok_dask.datasets.manifest import Manifest, UnitEntry, build_manifest, read_manifest, write_manifest
from retok_dask.datasets.reader import RowIterator, TokenDataset, open_dataset
from retok_dask.datasets.receipts import (
    FileRecord,
    Receipt,
    ReceiptScan,
    discard_unit,
    read_receipts,
    scan_receipts,
    write_receipt,
)
from retok_dask.datasets.remask import Remasked, remask
from retok_dask.datasets.writer import UnitWriter

__all__ = [
    "ContentDigest",
    "Exported",
    "FileRecord",
    "Fingerprint",
    "LockInfo",
    "Manifest",
    "OutputFolder",
    "OutputLock",
    "Receipt",
    "ReceiptScan",
    "Remasked",
    "RowIterator",
    "TokenDataset",
    "UnitEntry",
    "UnitWriter",
    "build_manifest",
    "check_fingerprint",
    "discard_unit",
    "export",
    "library_versions",
    "open_dataset",
    "read_fingerprint",
    "read_manifest",
    "read_receipts",
    "read_run",
    "remask",
    "scan_receipts",
    "start_run",
    "write_manifest",
    "write_receipt",
]
