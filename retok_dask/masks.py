"""Segments to loss mask: the one place where a policy decides what is trained.

A mask is a pure function of the segments, the messages' flags and (for history
``per_turn``) the one trained turn. So any policy can be applied to a written
data set, without a tokenizer, and gives the same as a fresh run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from retok_dask.errors import RecipeError, did_you_mean
from retok_dask.recipe import PRESETS
from retok_dask.types import KIND_NAMES, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    BoolArray = npt.NDArray[np.bool_]
    IntArray = npt.NDArray[np.integer]

BODY = frozenset({Kind.reasoning, Kind.content, Kind.tool_call, Kind.scaffold, Kind.stop})
"""Kinds that only the body of an assistant message has."""

SAMPLED = frozenset({Kind.reasoning, Kind.content, Kind.tool_call, Kind.stop})
"""Kinds that the model itself writes: what policy ``assistant`` trains."""

ANSWER = BODY | {Kind.header, Kind.prefill, Kind.trailer}
"""Kinds by which an assistant message is known."""

_OUTSIDE = frozenset({Kind.system, Kind.tools, Kind.user, Kind.tool, Kind.other})

_DOCUMENT = frozenset({Kind.bos, Kind.content, Kind.stop})
"""Kinds of a document; a row of BOS alone is what is left of a conversation."""

PRESET_KINDS: dict[str, frozenset[Kind]] = {
    "assistant": SAMPLED,
    "last_assistant": SAMPLED,
    "final_answer": SAMPLED - {Kind.reasoning},
    "completion": SAMPLED,
    "all_but_system": frozenset(Kind) - {Kind.bos, Kind.system, Kind.tools},
    "after_first_user": frozenset(Kind) - {Kind.bos, Kind.system, Kind.tools},
    "all": frozenset(Kind),
}

assert set(PRESET_KINDS) == set(PRESETS)


class LossMaskPolicy:
    """Which tokens are trained.

    The presets:

    - ``assistant``: what the model writes: reasoning, content, tool calls and
      the stop token of every assistant message.
    - ``last_assistant``: the same, of the last assistant message only (in a
      row of ``history: per_turn``, of its turn: each turn is the last one of its row); a row
      that it is cut off from is left out.
    - ``final_answer``: content, tool calls and stop, without reasoning.
    - ``completion``: what the model writes after the last user message; for
      prompt/completion rows, whose prompt messages carry a flag, exactly the
      completion. A row that the last user message is cut off from is left out.
    - ``all_but_system``: everything but BOS, system text and tool schemas.
    - ``after_first_user``: the same, after the first user message (of what
      is left of it, where ``truncation: left`` cuts a row).
    - ``all``: every token.

    A document, whose segments belong to no message, is trained whole under
    every policy. A message's own flag wins over the policy: False trains
    nothing of it; True trains what the model writes in an assistant message,
    and all of any other message.

    Args:
        policy: a preset's name, or the names of the kinds to train.

    Raises:
        RecipeError: an unknown preset or kind.
    """

    def __init__(self, policy: str | Sequence[str]) -> None:
        if isinstance(policy, str):
            if policy not in PRESET_KINDS:
                msg = f"{policy!r} is no mask policy.{did_you_mean(policy, PRESET_KINDS)}"
                raise RecipeError(msg)
            self.name = policy
            self.kinds = PRESET_KINDS[policy]
        else:
            unknown = [name for name in policy if name not in KIND_NAMES]
            if unknown:
                msg = f"{unknown[0]!r} is no segment kind.{did_you_mean(unknown[0], KIND_NAMES)}"
                raise RecipeError(msg)
            self.name = ",".join(policy)
            self.kinds = frozenset(Kind[name] for name in policy)
        self._table = _kind_table(self.kinds)

    def __repr__(self) -> str:
        return f"LossMaskPolicy({self.name!r})"

    @property
    def needs_end(self) -> bool:
        """Whether a row must hold its conversation's end: of one that was cut, another message would be trained."""
        return self.name in ("last_assistant", "completion")

    def conflict(
        self, flags: Sequence[bool | None], kinds: Sequence[int], messages: Sequence[int], turn: int = -1
    ) -> str:
        """Say why a conversation's flags contradict this policy; empty if they do not.

        "Only the last assistant message" and "train this earlier one" cannot
        both hold, and choosing silently is how masks go wrong (LlamaFactory
        pull request 9630). In a row of one turn, that turn is the last one.

        Args:
            flags: of the row's messages.
            kinds, messages: of its segments or spans.
            turn: the one message that the row trains, or -1.
        """
        if self.name != "last_assistant" or turn >= 0 or True not in flags:
            return ""
        last = max((at for kind, at in zip(kinds, messages, strict=True) if kind in BODY), default=-1)
        asks = next((number for number, flag in enumerate(flags) if flag and number != last), -1)
        if asks < 0:
            return ""
        return (
            f"message {asks} asks to be trained, but the policy is last_assistant; "
            "use mask: assistant, or drop the flags"
        )

    def trained_segments(
        self,
        seg_splits: IntArray,
        seg_kind: IntArray,
        seg_message: IntArray,
        *,
        flags: Sequence[Sequence[bool | None]] | None = None,
        turns: IntArray | None = None,
    ) -> BoolArray:
        """One bool a segment: is it trained.

        Args:
            seg_splits: rows + 1 offsets into the segment arrays.
            seg_kind, seg_message: one entry a segment.
            flags: for each row the flags of its messages, or an empty sequence.
            turns: for each row the one trained message, or -1 for all of them.
        """
        rows = len(seg_splits) - 1
        row_of = np.repeat(np.arange(rows), np.diff(seg_splits))
        trained = self._table[seg_kind]
        if self.name == "last_assistant":
            body = _kind_table(BODY)[seg_kind]
            trained &= seg_message == _last_message(row_of, seg_message, body, rows)[row_of]
        elif self.name == "completion":
            asked = seg_kind == Kind.user
            trained &= seg_message > _last_message(row_of, seg_message, asked, rows)[row_of]
        elif self.name == "after_first_user":
            asked = seg_kind == Kind.user
            trained &= seg_message > _first_message(row_of, seg_message, asked, rows)[row_of]
        if turns is not None and (turns >= 0).any():
            turn = turns[row_of]
            trained &= (turn < 0) | (seg_message == turn)
        if flags is not None:
            _apply_flags(trained, seg_splits, seg_kind, seg_message, flags, turns)
        trained |= _documents(row_of, seg_kind, seg_message, rows)[row_of]
        return trained

    def apply(
        self,
        seg_splits: IntArray,
        seg_start: IntArray,
        seg_end: IntArray,
        seg_kind: IntArray,
        seg_message: IntArray,
        *,
        flags: Sequence[Sequence[bool | None]] | None = None,
        turns: IntArray | None = None,
    ) -> BoolArray:
        """The flat loss mask: one bool a token, rows one after the other.

        Segments must cover every token of their row once, in order (see
        :class:`retok_dask.types.Encoded`). True means that the token itself is
        a target (unshifted). Other arguments as in :meth:`trained_segments`.
        """
        trained = self.trained_segments(seg_splits, seg_kind, seg_message, flags=flags, turns=turns)
        return np.repeat(trained, seg_end - seg_start)


def _kind_table(kinds: frozenset[Kind]) -> BoolArray:
    table = np.zeros(len(Kind), np.bool_)
    table[[int(kind) for kind in kinds]] = True
    return table


def _last_message(row_of: IntArray, seg_message: IntArray, where: BoolArray, rows: int) -> IntArray:
    """Largest message index a row has where the condition holds, -1 for none."""
    last = np.full(rows, -1, np.int64)
    np.maximum.at(last, row_of[where], seg_message[where])
    return last


def _documents(row_of: IntArray, seg_kind: IntArray, seg_message: IntArray, rows: int) -> BoolArray:
    """Which rows are documents: a conversation may be cut to what stands before its messages, such as tools."""
    documents = np.zeros(rows, np.bool_)
    documents[row_of[_kind_table(_DOCUMENT - {Kind.bos})[seg_kind]]] = True
    documents[row_of[(seg_message >= 0) | ~_kind_table(_DOCUMENT)[seg_kind]]] = False
    return documents


def _first_message(row_of: IntArray, seg_message: IntArray, where: BoolArray, rows: int) -> IntArray:
    """Smallest message index a row has where the condition holds; past all of them for none."""
    first = np.full(rows, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, row_of[where], seg_message[where])
    return first


def _apply_flags(
    trained: BoolArray,
    seg_splits: IntArray,
    seg_kind: IntArray,
    seg_message: IntArray,
    flags: Sequence[Sequence[bool | None]],
    turns: IntArray | None,
) -> None:
    """Let each message's own flag win, in place. A row of one turn keeps to that turn."""
    sampled, outside, answer = map(_kind_table, (SAMPLED, _OUTSIDE, ANSWER))
    for row, row_flags in enumerate(flags):
        if not any(flag is not None for flag in row_flags):
            continue
        part = slice(int(seg_splits[row]), int(seg_splits[row + 1]))
        for message, flag in enumerate(row_flags):
            if flag is None:
                continue
            mine = seg_message[part] == message
            if turns is not None and turns[row] >= 0 and turns[row] != message:
                continue
            wanted = sampled if answer[seg_kind[part][mine]].any() else outside
            trained[part] = np.where(mine, wanted[seg_kind[part]] & flag, trained[part])
