"""What training code gets from a written run: batches with labels, and how well rows pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.datasets.exits.base import IGNORED
from retok_dask.datasets.packing import best_fit
from retok_dask.views.summary import Summary, percent, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retok_dask.datasets import TokenDataset

_ROWS = 200_000


def packing(data: TokenDataset, contexts: Sequence[int] = (2048, 4096, 8192, 32768)) -> Summary:
    """How rows fit into contexts: padded one by one, and packed.

    Reads lengths only; of more than 200,000 rows a sample that is the same every time.

    Args:
        data: an opened run.
        contexts: context lengths to try, in tokens.
    """
    parts = [batch.column("num_tokens").to_numpy() for batch in data.select(["num_tokens"]).batches()]
    lengths = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if len(lengths) > _ROWS:
        lengths = np.random.default_rng(0).choice(lengths, _ROWS, replace=False)
    lines = []
    for context in contexts:
        whole = lengths[lengths <= context].tolist()
        bins = best_fit(whole, context)
        tokens = sum(whole)
        lines.append(
            (
                context,
                len(lengths) - len(whole),
                len(whole),
                percent(len(whole) * context - tokens, len(whole) * context),
                len(bins),
                percent(len(bins) * context - tokens, len(bins) * context),
            )
        )
    columns = ["context", "rows too long", "rows", "padding, one a context", "packed contexts", "padding, packed"]
    return Summary("Packing", facts=[("rows", f"{len(lengths):,}")], tables=[table("", columns, lines)])


def training_batch(rows: Sequence[Mapping[str, Any]], *, pad_id: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Rows as one padded batch: a collate function for a ``DataLoader``, in numpy.

    Args:
        rows: as a :class:`~retok_dask.datasets.TokenDataset` gives them.
        pad_id: the id that fills short rows; it is masked out of attention and labels.

    Returns:
        ``input_ids``, ``attention_mask`` and ``labels``, each int64 of shape
        (rows, longest row); labels are -100 where nothing is trained, and
        unshifted.
    """
    longest = max((len(row["input_ids"]) for row in rows), default=0)
    shape = (len(rows), longest)
    batch = {
        "input_ids": np.full(shape, pad_id, np.int64),
        "attention_mask": np.zeros(shape, np.int64),
        "labels": np.full(shape, IGNORED, np.int64),
    }
    for number, row in enumerate(rows):
        ids, mask = np.asarray(row["input_ids"]), np.asarray(row["loss_mask"])
        batch["input_ids"][number, : len(ids)] = ids
        batch["attention_mask"][number, : len(ids)] = 1
        batch["labels"][number, : len(ids)] = np.where(mask, ids, IGNORED)
    return batch


def formats() -> Summary:
    """Every format that a run can be exported to, and who reads it."""
    from retok_dask.datasets.exits.registry import EXITS  # noqa: PLC0415  a table, read when it is shown

    rows = [(spec.name, spec.consumer, spec.packs) for spec in EXITS.values()]
    return Summary("Exports", tables=[table("", ["format", "read by", "packed rows"], rows)])
