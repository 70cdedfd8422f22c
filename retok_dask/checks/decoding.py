"""Do a row's tokens spell text, and each of its segments whole characters of it? Needs no source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from retok_dask.datasets.digest import list_values, segment_matrix
from retok_dask.datasets.rows import read_batches
from retok_dask.errors import TokenizerError
from retok_dask.schema import sample_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from retok_dask.checks.rows import UnitFindings
    from retok_dask.datasets import OutputFolder, Receipt
    from retok_dask.tokenizers import Tokenizer

COLUMNS = ("sample_id", "input_ids", "segments", "truncated")

CONTINUING = bytes(range(0x80, 0xC0))
"""Bytes that go on with a character of UTF-8 and never begin one."""


def decode_unit(
    findings: UnitFindings,
    folder: OutputFolder,
    receipt: Receipt,
    tokenizer: Tokenizer,
    wanted: Callable[[str], bool],
) -> None:
    """Decode rows of a unit, segment by segment.

    Rows that were cut at a token are left out: they may end in half a
    character. An id that the tokenizer does not have is what the check of the
    vocabulary reports.

    Args:
        findings: where problems go, as ``decoding``, and how many rows were decoded.
        folder: the run's folder.
        receipt: the unit.
        tokenizer: the run's.
        wanted: which rows, by sample id.
    """
    schema = pa.schema([sample_schema().field(name) for name in COLUMNS])
    for batch in read_batches(folder, folder.data(receipt.dataset, receipt.unit), schema):
        ids, splits = list_values(batch.column("input_ids"))
        matrix, cuts = segment_matrix(batch.column("segments"))
        names, truncated = (batch.column(name).to_pylist() for name in ("sample_id", "truncated"))
        for row, name in enumerate(names):
            if truncated[row] or not wanted(name):
                continue
            tokens = ids[splits[row] : splits[row + 1]]
            starts = matrix[cuts[row] : cuts[row + 1], 0]
            try:
                problem = misspelling(tokenizer, tokens, starts)
            except TokenizerError:
                continue
            findings.counts["decoded"] += 1
            if problem is not None:
                findings.add("decoding", f"row {name}: {problem}")


def misspelling(tokenizer: Tokenizer, ids: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> str | None:
    """Why tokens spell no text, or a segment begins within a character; None if all is well.

    Args:
        tokenizer: exact in bytes where it is byte-level.
        ids: of a row.
        starts: first token of each of its segments.

    Raises:
        TokenizerError: an id that the tokenizer does not have.
    """
    try:
        tokenizer.decode_bytes(ids).decode()
    except UnicodeDecodeError as error:
        return f"its tokens spell no text ({error.reason} at byte {error.start})"
    for start in starts.tolist():
        if 0 < start < len(ids) and _within_character(tokenizer, ids, start):
            return f"the segment at token {start} begins within a character"
    return None


def _within_character(tokenizer: Tokenizer, ids: np.ndarray[Any, Any], start: int) -> bool:
    """Whether a character is cut before a token, and not because a token spells parts of two.

    Such a token belongs to one of both segments, and takes along what it has
    of the other one's character.
    """
    after = tokenizer.decode_bytes(ids[start : start + 1])
    if after[:1].strip(CONTINUING) or not after:
        return False
    before = tokenizer.decode_bytes(ids[start - 1 : start]).rstrip(CONTINUING)
    return len(before) <= 1 and not after.lstrip(CONTINUING)
