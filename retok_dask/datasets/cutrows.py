"""Rows that were cut, under a policy that goes by their conversation's last messages.

``last_assistant`` and ``completion`` train by which assistant or user message
comes last. A row that was cut at its end holds earlier messages alone, and what
was cut off is not written. A fresh run sees the whole conversation and leaves
out a row of which it would train something else; from what is written that
cannot be told, so such rows refuse the policy, where they do not say
themselves what their end was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from retok_dask.datasets.digest import segment_matrix
from retok_dask.datasets.parallel import map_units
from retok_dask.datasets.rows import read_batches
from retok_dask.errors import OutputError, count_of
from retok_dask.masks import ANSWER, BODY, LossMaskPolicy
from retok_dask.schema import sample_schema, turn_of
from retok_dask.types import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Client

    from retok_dask.datasets.folder import OutputFolder
    from retok_dask.datasets.reader import TokenDataset

COLUMNS = ("sample_id", "segments", "truncated", "message_flags", "num_loss_tokens")


def refuse_cut_rows(data: TokenDataset, policy: str | Sequence[str], *, client: Client | None = None) -> None:
    """Refuse a policy where rows were cut so that what it trains in them cannot be known.

    Nothing is asked of prompts (never trained), documents (trained whole under
    every policy), rows of ids (they keep their mask), and units without cut
    rows' data sets; of a conversation's cut row see :func:`undecided_rows`.

    Args:
        data: a finished run.
        policy: the new one.
        client: whose workers look at the rows; None for this process.

    Raises:
        OutputError: there are such rows.
    """
    recipe = data.recipe
    if policy == recipe.mask or not LossMaskPolicy(policy).needs_end:
        return
    cut = {
        spec.name: (":" not in spec.layout, spec.tail == "cut")
        for spec in recipe.datasets
        if spec.mode == "chat" and spec.name in data.manifest.datasets and data.manifest.datasets[spec.name].truncated
    }
    units = [(unit.unit, unit.dataset, *cut[unit.dataset]) for unit in data.units if unit.dataset in cut]
    left = recipe.truncation == "left"
    answered = policy == "completion" and recipe.mask == "last_assistant"
    found = map_units(
        undecided_rows,
        units,
        "units with cut rows looked at",
        client=client,
        folder=data.folder,
        policy=policy,
        left=left,
        answered=answered,
    )
    if rows := sum(found):
        msg = (
            f"in {count_of(rows, 'row')} so much is cut (truncation: {recipe.truncation}) that which message {policy} would train cannot be "
            f"known from what was written; run again with mask: {policy}"
        )
        raise OutputError(msg)


def undecided_rows(
    unit: tuple[str, str, bool, bool], *, folder: OutputFolder, policy: str, left: bool, answered: bool
) -> int:
    """How many cut rows of a unit do not say what the policy trains in them.

    A row of one turn (``history: per_turn``) trains that turn alone, and ends with it.

    Args:
        unit: its id and data set, whether flags are one a message (a layout of the user's own promises nothing), and
            whether conversations end with their last answer (``tail: cut``).
        folder: the run's.
        policy: the new one.
        left: whether rows were cut at their beginning.
        answered: whether what a row trains now is its conversation's last answer, and only what is asked after it
            may be missing.
    """
    name, dataset, counted, ends_with_answer = unit
    full = sample_schema(())
    schema = pa.schema([full.field(column) for column in COLUMNS])
    undecided = 0
    for samples in read_batches(folder, folder.data(dataset, name), schema):
        for row in np.flatnonzero(samples.column("truncated").to_numpy(zero_copy_only=False)).tolist():
            if turn_of(samples.column("sample_id")[row].as_py()) >= 0:
                continue
            text = samples.column("message_flags")[row].as_py()
            flags = orjson.loads(text) if text else []
            segments = segment_matrix(samples.column("segments").slice(row, 1))[0]
            if answered and samples.column("num_loss_tokens")[row].as_py():
                undecided += not (ends_with_answer or _asks_again(segments[:, 2], segments[:, 3]))
                continue
            says = _beginning_does_not_matter if left else _says_its_end
            undecided += not says(policy, flags if counted or left else [], segments[:, 2], segments[:, 3])
    return undecided


def _beginning_does_not_matter(policy: str, flags: list[bool | None], kinds: Any, messages: Any) -> bool:  # noqa: ARG001
    """Of a row that kept its end; only whether a flagged message was the last answer may have been cut off."""
    return policy != "last_assistant" or True not in flags or _any_of(kinds, BODY)


def _says_its_end(policy: str, flags: list[bool | None], kinds: Any, messages: Any) -> bool:
    """Of a row that lost its end: flags are one a message, so they tell how many there were."""
    last = kinds[messages == len(flags) - 1] if flags else kinds[:0]
    if last.size and (policy == "completion" or _any_of(last, BODY) or not _any_of(last, ANSWER)):
        return True
    # the policy decides nothing where each message has a flag; which one is the last answer, a flag may contradict
    return bool(flags) and None not in flags and (policy == "completion" or True not in flags)


def _asks_again(kinds: Any, messages: Any) -> bool:
    """Of a row that holds the last answer: whether a question comes after it, and so no completion."""
    answers = messages[np.isin(kinds, [int(kind) for kind in BODY])]
    return bool((messages[kinds == Kind.user] > answers.max(initial=-1)).any())


def _any_of(kinds: Any, wanted: frozenset[Any]) -> bool:
    return bool(np.isin(kinds, [int(kind) for kind in wanted]).any())
