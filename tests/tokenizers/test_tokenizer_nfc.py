"""The fast engine is given texts in NFC, and which texts are is told by a table: both as the reference has it."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC
from tokens_common import load, row_ids, whole

from retok_dask.tokenizers import measure
from retok_dask.tokenizers.nfc import IF_IN_ORDER, MAY_CHANGE, STAYS, Composer, nfc_classes

NORMALIZE = NFC().normalize_str
DECOMPOSED = ("cafe\u0301 au lait", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u093c\u093e\u0928\u0942\u0928", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u212b\u2126", "x \U0001f600 e\u0301")  # fmt: skip


def points_of(kind: int) -> list[int]:
    return np.flatnonzero(nfc_classes() == kind).tolist()


def test_characters_that_stay_stay_in_any_company():
    chooser = random.Random(1)
    stays = [chr(point) for point in points_of(STAYS)]
    assert len(stays) > 60_000
    chooser.shuffle(stays)
    for start in range(0, len(stays), 4096):
        text = "".join(stays[start : start + 4096])
        assert NORMALIZE(text) == text
        assert unicodedata.is_normalized("NFC", text)


def test_marks_that_join_nothing_stay_where_they_are_in_order():
    marks = sorted((unicodedata.combining(chr(point)), chr(point)) for point in points_of(IF_IN_ORDER))
    assert marks
    text = "a" + "".join(mark for _, mark in marks)
    assert NORMALIZE(text) == text
    swapped = "a" + "".join(mark for _, mark in reversed(marks))
    assert NORMALIZE(swapped) != swapped
    assert not unicodedata.is_normalized("NFC", swapped)


def test_what_this_python_does_not_know_may_change():
    unknown = [point for point in range(0x20000) if unicodedata.category(chr(point)) == "Cn"]
    assert set(unknown) <= set(points_of(MAY_CHANGE))
    assert nfc_classes()[-1] == MAY_CHANGE


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["a", "e\u0301", "\u0301", "\u4e2d", "\U0001f600", "\u1100\u1161", "\u0958", "\u0300\u0323", "\ud800"]
        )
    )
)
def test_bounds_are_those_of_the_encoded_spans(parts):
    text = "".join(parts)
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))] or [0]
    row = whole(text)
    row.starts, row.kinds, row.messages = starts, [0] * len(starts), [0] * len(starts)
    for stretch in (1 << 18, 2):  # as one of many rows, and as a long one
        patch = pytest.MonkeyPatch()
        patch.setattr(measure, "STRETCH", stretch)
        found = measure.measure([whole("x\u00e9"), row, whole("ascii")], NORMALIZE)
        patch.undo()
        if "\ud800" in text:
            assert f"at character {text.index(chr(0xD800))}" in found.failed[1]
            continue
        ends = [*starts[1:], len(text)]
        pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        composed = pieces if NORMALIZE(text) == text else list(map(NORMALIZE, pieces))
        sizes = [len(piece.encode()) for piece in composed]
        assert found.bounds.tolist() == [0, 3, 0, *np.cumsum(sizes).tolist(), 0, 5]
        assert found.normalized == ({} if NORMALIZE(text) == text else {1: "".join(composed).encode()})


@pytest.mark.parametrize("text", DECOMPOSED)
def test_rows_that_are_not_in_nfc_need_no_reference(text):
    tokenizer = load("qwen3_6")
    assert tokenizer.engine == "fastokens"
    row = whole(f"<|im_start|>{text}<|im_end|>\n" * 3)
    got = tokenizer.encode([whole("plain"), row, whole("\u4e2d\u6587")])
    assert got.fallback.sum() == 0
    assert row_ids(got, 1) == row_ids(load("qwen3_6", "reference").encode([row]), 0)


SCRAPS = [
    "plain ", "<|im_end|>", "caf\u00e9 ", "e\u0301", "\u0301", "\u4e2d\u6587", "\U0001f600", "\u1100\u1161", "\u0958",
    "\u0300\u0323", "\u212a", "'\u017f", "\U0002a6d6", "\u9fff",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from(SCRAPS), min_size=1, max_size=8), st.booleans()), max_size=5))
def test_documents_measured_after_the_engine_are_those_of_the_reference(documents):
    """A row of few spans is looked at by its ids; one that is not text fails alone."""
    rows = []
    for parts, broken in documents:
        text = "".join(parts) + "\ud800" * broken
        row = whole(text + "<|im_end|>")
        row.starts, row.kinds, row.messages = [0, len(text)], [9, 11], [-1, -1]
        rows.append(row)
    got, want = (load("qwen3_6", engine).encode(rows) for engine in ("auto", "reference"))
    assert got.failed.keys() == want.failed.keys() == {n for n, (_, broken) in enumerate(documents) if broken}
    assert np.array_equal(got.text_bytes, want.text_bytes)
    for name in ("ids", "row_splits", "seg_splits", "seg_start", "seg_end", "seg_kind", "seg_message", "shared"):
        assert np.array_equal(getattr(got, name), getattr(want, name)), name


def test_text_that_becomes_an_added_token_is_left_to_the_reference():
    """The Kelvin sign is K in NFC, which the reference makes only after it looked for added tokens."""
    composer = Composer(NORMALIZE, ["<K>", "<|im_end|>"])
    assert composer.compose("e\u0301<|im_end|>\u0338e\u0301") == "\u00e9<|im_end|>\u0338\u00e9"
    assert composer.compose("<\u212a>") is None
    assert composer.compose("<\u212a>e") is None
    added = {"content": "<K>", "normalized": True, "single_word": False}
    assert Composer.of({"normalizer": {"type": "NFC"}, "added_tokens": [added]}, NORMALIZE) is None
    assert Composer.of({"normalizer": None, "added_tokens": []}, NORMALIZE) is None
