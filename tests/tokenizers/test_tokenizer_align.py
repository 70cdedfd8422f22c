"""Spans carried over to tokens: every token once, and the text of a segment comes back byte for byte."""

from __future__ import annotations

import unicodedata

import assets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokens_common import check_cover, cut_at, load, row_ids, segments, whole

from retok_dask.tokenizers.probes import FRAGMENTS, hostile
from retok_dask.types import SHARED_TOKEN_RANK, Kind, Rendered

BYTE_LEVEL = ["byte_level", "byte_level_nfc"]
OTHERS = ["sentencepiece", "unigram", "wordpiece"]
PIECES = st.sampled_from([*FRAGMENTS, *assets.TINY_CONTROL])
TEXTS = st.lists(PIECES, max_size=25).map("".join)
CUTS = st.lists(st.integers(0, 60), max_size=6)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def span_texts(row: Rendered) -> list[str]:
    return [row.text[a:b] for a, b in zip(row.starts, [*row.starts[1:], len(row.text)], strict=True)]


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("name", BYTE_LEVEL)
@QUICK
@given(text=TEXTS, cuts=CUTS)
def test_byte_level_segments_are_the_spans_bytes(name, engine, text, cuts):
    """Spans are given distinct messages here, so that segments never merge."""
    tokenizer = load(name, engine)
    row = cut_at(text, cuts)
    encoded = tokenizer.encode([row])
    assert not encoded.failed
    check_cover(encoded)
    ids = row_ids(encoded, 0)
    normal = unicodedata.normalize("NFC", text) if name.endswith("nfc") and not tokenizer.control_ranges(text) else None
    if name == "byte_level" or normal == text:
        assert tokenizer.decode_bytes(ids) == text.encode()
    if encoded.shared[0] or tokenizer.decode_bytes(ids) != text.encode():
        return
    got = {message: tokenizer.decode_bytes(ids[a:b]) for a, b, _, message in segments(encoded, 0)}
    assert got == {number: part.encode() for number, part in enumerate(span_texts(row)) if part}


@pytest.mark.parametrize("name", BYTE_LEVEL)
@QUICK
@given(text=TEXTS, cuts=CUTS)
def test_shared_tokens_lie_in_their_owners_segment(name, text, cuts):
    """A segment's bytes are its span's, but for a token at either end that a neighbour has a part in."""
    tokenizer = load(name)
    row = cut_at(text, cuts)
    encoded = tokenizer.encode([row])
    ids = row_ids(encoded, 0)
    if tokenizer.decode_bytes(ids) != text.encode():  # composed by NFC; see the test of its own
        return
    bounds = np.cumsum([0, *(len(part.encode()) for part in span_texts(row))])
    ends = np.cumsum([0, *(len(tokenizer.decode_bytes([index])) for index in ids)])
    owners = np.zeros(len(ids), int)
    for start, end, _, message in segments(encoded, 0):
        owners[start:end] = message
    shared = 0
    for token, owner in enumerate(owners.tolist()):
        members = [s for s in range(len(row.starts)) if bounds[s] < ends[token + 1] and bounds[s + 1] > ends[token]]
        assert owner in members
        best = min(SHARED_TOKEN_RANK.index(Kind(row.kinds[s])) for s in members)
        assert SHARED_TOKEN_RANK.index(Kind(row.kinds[owner])) == best
        shared += len(members) > 1
    assert encoded.shared[0] == shared


@pytest.mark.parametrize("name", OTHERS)
@QUICK
@given(text=TEXTS, cuts=CUTS)
def test_other_tokenizers_segments_by_offsets(name, text, cuts):
    """Ids are the whole text's, and each token lies in a segment whose span it has characters of."""
    tokenizer = load(name)
    row = cut_at(text, cuts)
    encoded = tokenizer.encode([row])
    assert not encoded.failed
    check_cover(encoded)
    ids, offsets = tokenizer._reference.encode_offsets(text)
    assert row_ids(encoded, 0) == ids.tolist()
    bounds = [*row.starts, len(text)]
    for start, end, _, message in segments(encoded, 0):
        for left, right in offsets[start:end].tolist():
            assert left == right or (left < bounds[message + 1] and right > bounds[message])


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *OTHERS])
def test_batches_equal_single_rows(name):
    tokenizer = load(name)
    rows = [cut_at(text, [3, 9, 20]) for text in hostile(120, seed=9, extra=assets.TINY_CONTROL)] + [whole("")]
    encoded = tokenizer.encode(rows)
    check_cover(encoded)
    for number, row in enumerate(rows):
        alone = tokenizer.encode([row])
        assert row_ids(alone, 0) == row_ids(encoded, number)
        assert segments(alone, 0) == segments(encoded, number)
        assert alone.shared[0] == encoded.shared[number]


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_boundaries_anywhere_in_long_texts_of_any_width(name):
    """Characters of one to four bytes, many words of 64 bytes long, in one batch; a boundary at each place in turn."""
    tokenizer = load(name)
    texts = ["".join(part) * 40 for part in (["a", "é"], ["中文"], ["😀a"], ["é中😀b"], ["ab" * 31, "😀"], ["word "])]
    rows = [cut_at(text, range(step, len(text), step)) for text in texts for step in (1, 7, 63, 64, 65)]
    encoded = tokenizer.encode(rows)
    check_cover(encoded)
    assert not encoded.failed
    for number, row in enumerate(rows):
        parts = [part.encode() for part in span_texts(row)]
        bounds = dict(enumerate(zip(np.cumsum([0, *map(len, parts)]), np.cumsum([*map(len, parts)]), strict=False)))
        ids = row_ids(encoded, number)
        ends = np.cumsum([0, *(len(tokenizer.decode_bytes([index])) for index in ids)])
        assert ends[-1] == len(row.text.encode())
        for start, end, _, message in segments(encoded, number):  # a shared token may stick out at either end
            first, last = bounds[message]
            assert ends[start + 1] > first
            assert ends[end - 1] < last
            assert ends[start] == first or encoded.shared[number]
            assert ends[end] == last or encoded.shared[number]


@pytest.mark.parametrize("name", ["qwen3_6", "llama3_1", "gptoss", "llama2", "deepseek_v3"])
def test_answers_that_start_or_end_awkwardly(name):
    """A04: leading blanks, newlines, split emoji, trailing blanks, decomposed letters."""
    tokenizer = load(name)
    end = tokenizer.special_tokens_map["eos_token"]
    for answer in (" the", "\n\nthe", "😀ok", "the  ", "e\u0301", "\r\nx\r\n", "\x00", "a\u2028b", "👨‍👩‍👧", "中文"):
        text = f"<|im_start|>assistant\n{answer}{end}\n"
        begin = text.index("\n") + 1
        stop = text.index(end)
        row = Rendered(text, [0, begin, stop], [Kind.header, Kind.content, Kind.stop], [0, 0, 0])
        encoded = tokenizer.encode([row])
        check_cover(encoded)
        ids = row_ids(encoded, 0)
        mine = [ids[a:b] for a, b, kind, _ in segments(encoded, 0) if kind == Kind.content]
        want = unicodedata.normalize("NFC", answer) if name == "qwen3_6" else answer
        found = "".join(tokenizer.decode(part) for part in mine)
        assert found.replace("\n", "").strip() == want.replace("\n", "").strip()
        if not encoded.shared[0] and tokenizer.byte_level:
            assert found == want


def test_newline_of_header_and_answer_in_one_token_is_the_answers():
    tokenizer = load("qwen3_6")
    text = "<|im_start|>assistant\n\nhi"
    encoded = tokenizer.encode([Rendered(text, [0, 22], [Kind.header, Kind.content], [1, 1])])
    assert [(tokenizer.decode(row_ids(encoded, 0)[a:b]), Kind(k).name) for a, b, k, _ in segments(encoded, 0)] == [
        ("<|im_start|>assistant", "header"),
        ("\n\nhi", "content"),
    ]
    assert encoded.shared.tolist() == [1]


def test_mark_that_composes_across_a_boundary_is_shared():
    """The span before ends in 'e', the next begins with its accent: NFC makes one character of both."""
    for name in ("qwen3_6", "byte_level_nfc"):
        tokenizer = load(name)
        encoded = tokenizer.encode([Rendered("abe\u0301cd", [0, 3], [Kind.user, Kind.content], [0, 1]), whole("x")])
        check_cover(encoded)
        assert not encoded.failed
        assert encoded.shared[0] >= 1
        ids = row_ids(encoded, 0)
        assert tokenizer.decode_bytes(ids) == "abécd".encode()
        content = [ids[a:b] for a, b, kind, _ in segments(encoded, 0) if kind == Kind.content]
        assert tokenizer.decode_bytes(content[0]).endswith("écd".encode())


def test_empty_spans_vanish_and_equal_neighbours_merge():
    tokenizer = load("byte_level")
    kinds = [Kind.header, Kind.content, Kind.content, Kind.content, Kind.stop]
    encoded = tokenizer.encode([Rendered("ab cd ef", [0, 2, 2, 5, 8], kinds, [0, 0, 0, 0, 0])])
    assert [(k, m) for _, _, k, m in segments(encoded, 0)] == [(Kind.header, 0), (Kind.content, 0)]


def test_rows_that_are_no_text_fail_alone():
    """C12: half of a surrogate pair has no bytes; its row is named, the others are not touched."""
    for name in ("byte_level", "qwen3_6", "sentencepiece", "unigram"):
        tokenizer = load(name)
        encoded = tokenizer.encode([whole("one"), whole("x\ud83d y"), whole("👍")])
        assert list(encoded.failed) == [1]
        assert "lone_surrogate" in encoded.failed[1]
        assert row_ids(encoded, 1) == []
        assert row_ids(encoded, 2) == row_ids(tokenizer.encode([whole("👍")]), 0)
        check_cover(encoded)


def test_empty_batch():
    encoded = load("byte_level").encode([])
    assert encoded.row_splits.tolist() == [0]
    assert encoded.ids.size == 0
    check_cover(encoded)
