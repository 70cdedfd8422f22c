"""Mask policies over segments: each preset, flags, turns, and what may not be combined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retok_dask.errors import RecipeError
from retok_dask.masks import PRESET_KINDS, LossMaskPolicy
from retok_dask.types import KIND_NAMES, Kind

CHAT = [
    ("bos", -1),
    ("system", 0),
    ("user", 1),
    ("header", 2),
    ("prefill", 2),
    ("reasoning", 2),
    ("content", 2),
    ("tool_call", 2),
    ("stop", 2),
    ("trailer", 2),
    ("tool", 3),
    ("header", 4),
    ("scaffold", 4),
    ("content", 4),
    ("stop", 4),
    ("trailer", 4),
    ("user", 5),
    ("header", 6),
    ("reasoning", 6),
    ("content", 6),
    ("stop", 6),
]


def arrays(*rows):
    segments = [segment for row in rows for segment in row]
    splits = np.cumsum([0, *map(len, rows)])
    kinds = np.array([Kind[name] for name, _ in segments], np.int8)
    messages = np.array([message for _, message in segments], np.int32)
    return splits, kinds, messages


def trained(policy, row, **options):
    splits, kinds, messages = arrays(row)
    found = LossMaskPolicy(policy).trained_segments(splits, kinds, messages, **options)
    return [f"{name}{message}" for (name, message), hit in zip(row, found, strict=True) if hit]


def test_assistant_trains_what_the_model_writes():
    assert trained("assistant", CHAT) == [
        "reasoning2", "content2", "tool_call2", "stop2", "content4", "stop4", "reasoning6", "content6", "stop6",
    ]  # fmt: skip


def test_last_assistant():
    assert trained("last_assistant", CHAT) == ["reasoning6", "content6", "stop6"]
    assert trained("last_assistant", CHAT[:11]) == ["reasoning2", "content2", "tool_call2", "stop2"]


def test_final_answer_has_no_reasoning():
    assert trained("final_answer", CHAT) == [
        "content2",
        "tool_call2",
        "stop2",
        "content4",
        "stop4",
        "content6",
        "stop6",
    ]


def test_completion_is_what_follows_the_last_user():
    assert trained("completion", CHAT) == ["reasoning6", "content6", "stop6"]
    assert trained("completion", CHAT[:16]) == ["reasoning2", "content2", "tool_call2", "stop2", "content4", "stop4"]


def test_all_but_system_and_after_first_user():
    but = trained("all_but_system", CHAT)
    assert "user1" in but
    assert "system0" not in but
    assert "bos-1" not in but
    after = trained("after_first_user", CHAT)
    assert after == [name for name in but if name != "user1"]


def test_all_and_explicit_kinds():
    assert len(trained("all", CHAT)) == len(CHAT)
    assert trained(["tool", "stop"], CHAT) == ["stop2", "tool3", "stop4", "stop6"]


@pytest.mark.parametrize("policy", [*PRESET_KINDS, ["stop"]])
def test_documents_are_trained_whole(policy):
    row = [("bos", -1), ("content", -1), ("stop", -1)]
    assert trained(policy, row) == ["bos-1", "content-1", "stop-1"]


def test_flags_travel_with_their_message():
    flags = [[None, None, False, None, True, None, None]]
    assert trained("assistant", CHAT, flags=flags) == ["content4", "stop4", "reasoning6", "content6", "stop6"]
    assert "user5" in trained("assistant", CHAT, flags=[[None] * 5 + [True, None]])
    assert trained("assistant", CHAT, flags=[[False] * 7]) == []


def test_one_turn_of_a_per_turn_row():
    turns = np.array([4])
    assert trained("assistant", CHAT, turns=turns) == ["content4", "stop4"]
    assert trained("assistant", CHAT, turns=turns, flags=[[None, None, True, None, None, None, None]]) == [
        "content4",
        "stop4",
    ]


def test_contradicting_flags_are_named():
    policy = LossMaskPolicy("last_assistant")
    spans = [Kind.user, Kind.content, Kind.user, Kind.content, Kind.user], [0, 1, 2, 3, 4]
    assert policy.conflict([None, True, None, None], *spans)
    assert policy.conflict([True, None, None, None], *spans)
    assert not policy.conflict([None, False, None, None], *spans)
    assert not policy.conflict(
        [None, None, None, True, None], *spans
    )  # the last answer, though a user has the last word
    assert not policy.conflict([None, True, None, True], *spans, turn=3)
    assert not LossMaskPolicy("assistant").conflict([None, True, None], *spans)


def test_unknown_names_say_the_nearest():
    with pytest.raises(RecipeError, match="'assistant'"):
        LossMaskPolicy("asistant")
    with pytest.raises(RecipeError, match="'content'"):
        LossMaskPolicy(["contents"])


SEGMENT = st.tuples(st.sampled_from(KIND_NAMES), st.integers(-1, 5))


@given(st.lists(st.lists(SEGMENT, max_size=12), max_size=6), st.sampled_from(sorted(PRESET_KINDS)))
def test_a_row_alone_and_in_a_batch_agree(rows, policy):
    """Masks must not depend on which rows share a batch."""
    chosen = LossMaskPolicy(policy)
    together = chosen.trained_segments(*arrays(*rows)).tolist()
    alone = [hit for row in rows for hit in chosen.trained_segments(*arrays(row)).tolist()]
    assert together == alone


@given(st.lists(st.tuples(SEGMENT, st.integers(1, 4)), max_size=12), st.sampled_from(sorted(PRESET_KINDS)))
def test_mask_covers_every_token(row, policy):
    splits, kinds, messages = arrays([segment for segment, _ in row])
    ends = np.cumsum([length for _, length in row], dtype=np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32) if row else ends
    mask = LossMaskPolicy(policy).apply(splits, starts, ends, kinds, messages)
    assert len(mask) == (ends[-1] if row else 0)
    hits = LossMaskPolicy(policy).trained_segments(splits, kinds, messages)
    for start, end, hit in zip(starts, ends, hits, strict=True):
        assert (mask[start:end] == hit).all()
