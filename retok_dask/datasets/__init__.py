"""What goes out: files that appear whole, receipts, the manifest, and the way back in."""

from retok_dask.datasets.coverage import VocabularyTable, vocabulary
from retok_dask.datasets.differences import RunDiff, diff
from retok_dask.datasets.digest import ContentDigest
from retok_dask.datasets.export import export
from retok_dask.datasets.fingerprint import (
    Fingerprint,
    check_fingerprint,
    library_versions,
    read_fingerprint,
    read_recipe,
    read_run,
    start_run,
)
from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.lock import LockInfo, OutputLock
from retok_dask.datasets.manifest import Manifest, UnitEntry, build_manifest, read_manifest, write_manifest
from retok_dask.datasets.mixing import Mixture, mix
from retok_dask.datasets.mixture_file import MixedRuns, mix_runs, named_weights, open_mixture, write_mixture
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
from retok_dask.datasets.rejects import RejectSummary, rejects
from retok_dask.datasets.remask import Remasked, remask
from retok_dask.datasets.shards import Exported
from retok_dask.datasets.vocabulary import DraftVocabulary, TokenCounts, draft_vocabulary, token_counts
from retok_dask.datasets.writer import UnitWriter

__all__ = [
    "ContentDigest",
    "DraftVocabulary",
    "Exported",
    "FileRecord",
    "Fingerprint",
    "LockInfo",
    "Manifest",
    "MixedRuns",
    "Mixture",
    "OutputFolder",
    "OutputLock",
    "Receipt",
    "ReceiptScan",
    "RejectSummary",
    "Remasked",
    "RowIterator",
    "RunDiff",
    "TokenCounts",
    "TokenDataset",
    "UnitEntry",
    "UnitWriter",
    "VocabularyTable",
    "build_manifest",
    "check_fingerprint",
    "diff",
    "discard_unit",
    "draft_vocabulary",
    "export",
    "library_versions",
    "mix",
    "mix_runs",
    "named_weights",
    "open_dataset",
    "open_mixture",
    "read_fingerprint",
    "read_manifest",
    "read_receipts",
    "read_recipe",
    "read_run",
    "rejects",
    "remask",
    "scan_receipts",
    "start_run",
    "token_counts",
    "vocabulary",
    "write_manifest",
    "write_mixture",
    "write_receipt",
]
