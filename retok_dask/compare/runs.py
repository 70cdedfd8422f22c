"""Two written runs, row by row."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.compare.measure import Meter
from retok_dask.datasets import open_dataset
from retok_dask.errors import InputError
from retok_dask.kernel.controls import control_tokens
from retok_dask.tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from retok_dask.compare.result import Comparison
    from retok_dask.datasets import TokenDataset


def compare_written(first: str, second: str, *, rows: int | None = 20_000, context: int = 4096) -> Comparison:
    """Compare the rows that two runs have in common, by sample id.

    The text of a row is what its ids of A stand for; both runs' ids are as
    they were written, template text included.

    Args:
        first, second: folders of finished runs.
        rows: rows of each data set of A that are looked up in B; None for all.
        context: tokens of a training row, to count the cost at.

    Raises:
        UnfinishedOutput, OutputError: one of them is no finished run.
        InputError: they have no row in common, or no row at all.
    """
    one, two = open_dataset(first), open_dataset(second)
    pair = _tokenizer(one), _tokenizer(two)
    meter = Meter((first, second), pair, context)
    markers = [*control_tokens(pair[0]).values()]
    missing, extra, common = 0, 0, 0
    for name in dict.fromkeys((*one.dataset_names, *two.dataset_names)):
        wanted = _ids(one, name, rows)
        for sample, ids in _rows(two, name):
            own = wanted.pop(sample, None)
            if own is None:
                extra += 1
                continue
            common += 1
            said = pair[0].decode(own[~np.isin(own, markers)])
            meter.add(name, pair[0].decode(own), (own, ids), said)
            if rows is not None and not wanted:
                break
        missing += len(wanted)
    if not common:
        raise InputError(_nothing_in_common((first, one), (second, two)))
    return meter.result((missing, extra))


def _nothing_in_common(*runs: tuple[str, TokenDataset]) -> str:
    empty = [name for name, data in runs if not len(data)]
    if empty:
        who = f"neither {empty[0]!r} nor {empty[1]!r} has a row" if len(empty) > 1 else f"{empty[0]!r} has no row"
        return f"{who} to compare: every record was left out or there was none; retok status says which"
    return (
        " and ".join(repr(name) for name, _ in runs) + " have no row in common: rows are matched by sample id, "
        "which is made of data set, file and place; compare runs of the same input"
    )


def _tokenizer(data: TokenDataset) -> Tokenizer:
    return Tokenizer.load(data.recipe.tokenizer, storage=data.recipe.storage, engine="reference")


def _rows(data: TokenDataset, name: str) -> Iterator[tuple[str, npt.NDArray[np.int32]]]:
    if name not in data.dataset_names:
        return
    for row in data.filter(name).select(["sample_id", "input_ids"]):
        yield row["sample_id"], row["input_ids"]


def _ids(data: TokenDataset, name: str, rows: int | None) -> dict[str, npt.NDArray[np.int32]]:
    return {sample: ids.copy() for sample, ids in islice(_rows(data, name), rows)}
