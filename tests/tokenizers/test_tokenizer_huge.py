"""Long texts are cut only where that changes no id, and are refused where they can be neither cut nor encoded whole."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokens_common import check_cover, cut_at, load, multilingual, row_ids, whole

from retok_dask.tokenizers import huge
from retok_dask.tokenizers.cuts import CutRule, _parse
from retok_dask.tokenizers.measure import measure
from retok_dask.tokenizers.probes import FRAGMENTS, hostile
from retok_dask.types import Kind, Rendered

FAMILIES = [
    "qwen3_6",
    "deepseek_v3",
    "kimi",
    "llama3_1",
    "gptoss",
    "mistral_nemo",
    "gpt2",
    "byte_level",
    "byte_level_nfc",
]


def rule_of(name: str) -> CutRule:
    return load(name)._encoder._rule


def every_part(text: str, rule: CutRule) -> list[str]:
    """The text cut at every place where the rule allows it."""
    places = [at for at in range(1, len(text)) if rule.allows(text[at - 1 : at + 1])]
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def check_parts(name: str, texts: list[str]) -> int:
    reference, rule = load(name)._reference, rule_of(name)
    cut = [every_part(text, rule) for text in texts]
    want = reference.encode(texts)[0]
    got = reference.encode([part for parts in cut for part in parts])[0]
    assert np.array_equal(got, want)
    return sum(len(parts) - 1 for parts in cut)


@pytest.mark.parametrize("name", FAMILIES)
def test_cutting_at_every_allowed_place_changes_no_id(name):
    tokenizer = load(name)
    extra = [token for token in tokenizer.added_tokens if len(token) < 30][:40]
    texts = hostile(1500, seed=21, extra=extra)
    assert check_parts(name, texts) > 500
    assert check_parts(name, multilingual()[::6]) > 1000


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.sampled_from([*FRAGMENTS, "word", " ", "\n", "<|end|>"]), max_size=40).map("".join))
@pytest.mark.parametrize("name", ["byte_level", "byte_level_nfc"])
def test_cuts_on_any_text(name, text):
    check_parts(name, [text])


@pytest.mark.parametrize("name", ["qwen3_6", "byte_level"])
def test_long_rows_equal_the_whole(name, monkeypatch):
    """The same row with parts of 200 characters and uncut: the same ids and segments."""
    tokenizer = load(name)
    text = "".join(multilingual()[::7])[:60_000] + "".join(hostile(200, seed=4))
    rows = [cut_at(text, [100, 5000, 30_000]), whole("short"), whole("<|im_end|> " * 300, [(0, 10)])]
    want = tokenizer.encode(rows)
    monkeypatch.setattr(huge, "PART", 200)
    monkeypatch.setattr(huge, "LOOK_BACK", 50)
    monkeypatch.setattr(huge, "GROUP", 3000)
    got = tokenizer.encode(rows)
    check_cover(got)
    for name_ in ("ids", "row_splits", "seg_splits", "seg_start", "seg_end", "seg_kind", "shared"):
        assert np.array_equal(getattr(got, name_), getattr(want, name_)), name_


def test_text_that_cannot_be_cut():
    """D01: one word without an end, base64, one character repeated: whole within the limit, refused above it."""
    tokenizer = load("qwen3_6")
    rule = rule_of("qwen3_6")
    chooser = random.Random(2)
    base64 = "".join(chooser.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", k=400_000))
    for text in (base64, "a" * 400_000, " " * 400_000, "7" * 400_000):
        assert list(huge.parts(text, rule)) == [text]
        ids = row_ids(tokenizer.encode([whole(text)]), 0)
        assert tokenizer.decode_bytes(ids) == text.encode()
    long = "a" * (huge.WHOLE + 1)
    encoded = tokenizer.encode([whole("fine"), whole(long), whole(long[:-2] + " b")])
    assert list(encoded.failed) == [1]
    assert "too_large" in encoded.failed[1]


def test_many_megabytes_stay_in_bounds():
    """20 MB of text in one row: every part within its size, ids come back to the very bytes."""
    tokenizer = load("qwen3_6")
    line = "The quick brown fox, über den Fluß; 東京都。\n"
    text = line * (20_000_000 // len(line.encode()))
    sizes = [len(part) for part in huge.parts(text, rule_of("qwen3_6"))]
    assert max(sizes) <= huge.PART + huge.LOOK_BACK
    encoded = tokenizer.encode([Rendered(text, [0, 45], [Kind.header, Kind.content], [0, 1])])
    check_cover(encoded)
    assert tokenizer.decode_bytes(row_ids(encoded, 0)) == text.encode()


def test_expressions_that_are_not_understood_allow_no_cut():
    for pattern in (r"(?<=a)b", r"\bword\b", r"a(?:b|c)d", r"^x", r"x$", r"\X", r"(a)\1", r"a++", r"(?=x)y"):
        assert _parse(pattern) is None, pattern
    assert not CutRule({"pre_tokenizer": {"type": "Metaspace"}}).possible
    assert not CutRule({}).possible


def test_a_huge_text_is_measured_a_stretch_at_a_time():
    """Its characters are never all made numbers, or written anew, at once."""
    text = "one é word " * 500_000
    row = cut_at(text, [1000, 3_000_000])
    tracemalloc.start()
    found = measure([row], lambda part: part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(text)
    assert found.bounds.tolist() == [len(text[:start].encode()) for start in (0, 1000, 3_000_000, len(text))]
