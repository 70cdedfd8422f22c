"""Two runs of the same records: what they trained, and whether ids and masks are the same."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from retok_dask.datasets import open_dataset
from retok_dask.views.summary import Summary, percent, table
from retok_dask.views.text import one_line

if TYPE_CHECKING:
    from retok_dask.datasets import TokenDataset


def compare_runs(first: str, second: str, *, rows: int = 2000) -> Summary:
    """Two finished runs: numbers by data set, and for records in both whether ids and masks are the same.

    Args:
        first, second: folders of the runs.
        rows: how many records of the first are looked up in the second.

    Raises:
        UnfinishedOutput: one of them has not finished.
    """
    one, two = open_dataset(first), open_dataset(second)
    lines: list[tuple[Any, ...]] = []
    for name in dict.fromkeys((*one.manifest.datasets, *two.manifest.datasets)):
        cells: list[Any] = [name]
        pair = [run.manifest.datasets.get(name) for run in (one, two)]
        for what in ("samples", "tokens", "loss_tokens"):
            cells += [getattr(stats, what) if stats else None for stats in pair]
        shares = [percent(stats.loss_tokens, stats.tokens) if stats else "-" for stats in pair]
        lines.append((*cells, *shares))
    heads = [f"{what} {which}" for what in ("samples", "tokens", "trained", "trained share") for which in "AB"]
    same = _same_rows(one, two, rows)
    facts = [("A", one_line(first)), ("B", one_line(second))]
    facts += [(name, f"{count:,}") for name, count in same.items()]
    tables = [table("", ["data set", *heads], lines)]
    empty = [which for which, run in (("A", one), ("B", two)) if not len(run)]
    nothing = [f"{' and '.join(empty)} {'has' if len(empty) == 1 else 'have'} no row: there is nothing to compare."]
    return Summary("Runs compared", lines=nothing if empty else [], facts=facts, tables=tables)


def _same_rows(one: TokenDataset, two: TokenDataset, rows: int) -> dict[str, int]:
    columns = ["sample_id", "input_ids", "loss_mask"]
    wanted: dict[str, tuple[bytes, bytes]] = {}
    for row in islice(one.select(columns), rows):
        wanted[row["sample_id"]] = row["input_ids"].tobytes(), row["loss_mask"].tobytes()
    counts: dict[str, int] = defaultdict(int, {"records of A looked at": len(wanted)})
    for row in two.select(columns):
        known = wanted.pop(row["sample_id"], None)
        if known is not None:
            counts["in both"] += 1
            counts["ids differ"] += known[0] != row["input_ids"].tobytes()
            counts["masks differ"] += known[1] != row["loss_mask"].tobytes()
        if not wanted:
            break
    counts["only in A"] = len(wanted)
    return dict(counts)
