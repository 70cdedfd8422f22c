"""Tokenizers that write blanks as a mark: their ids measured in bytes lie where their characters say."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import assets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokens_common import check_cover, cut_at, load, whole

from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import Tokenizer
from retok_dask.tokenizers.probes import FRAGMENTS, hostile

MARK = "▁"
PIECES = st.sampled_from([*FRAGMENTS, *assets.TINY_CONTROL, MARK, " ", "  ", " the", "a " * 40])
TEXTS = st.lists(PIECES, max_size=25).map("".join)
CUTS = st.lists(st.integers(0, 60), max_size=6)

WRITE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def metaspace(scheme: str, split: bool) -> dict[str, object]:
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


FORMS = {
    "as Gemma": (WRITE, SPLIT),
    "without a split": (WRITE, None),
    "a byte less": (WRITE, None),
    "always": (None, metaspace("always", False)),
    "always, by words": (None, metaspace("always", True)),
    "first": (None, metaspace("first", False)),
    "never": (None, metaspace("never", False)),
    "never, by words": (None, metaspace("never", True)),
}
"""Normalizer and pre-tokenizer; the tiny tokenizer's own puts a mark before every text.

Gemma 2 has no byte for the tabulator, which is a token itself.
"""

COLUMNS = ("ids", "row_splits", "seg_splits", "seg_start", "seg_end", "seg_kind", "seg_message", "shared", "text_bytes")


@cache
def measured(name: str) -> Tokenizer:
    """A real tokenizer, or the tiny one in one of the forms, as it is used."""
    if name not in FORMS:
        return load(name)
    spec = assets.tiny_tokenizer("sentencepiece")
    folder = Path(spec.path).parent / name.replace(" ", "-")
    definition = json.loads(Path(spec.path).read_text())
    definition["normalizer"], definition["pre_tokenizer"] = FORMS[name]
    if name == "a byte less":
        vocabulary = definition["model"]["vocab"]
        vocabulary["nothing joins to this"] = vocabulary.pop("<0x61>")
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return Tokenizer.load(TokenizerSpec(path=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"))


@cache
def by_offsets(name: str) -> Tokenizer:
    """The same tokenizer by the reference alone, that places tokens by their characters."""
    tokenizer = measured(name)
    assert tokenizer.outline.table is not None
    assert not tokenizer.byte_level
    return Tokenizer(tokenizer.definition, engine="reference", outline=replace(tokenizer.outline, table=None))


def assert_alike(name: str, rows: list) -> None:
    got, want = measured(name).encode(rows), by_offsets(name).encode(rows)
    check_cover(got)
    assert got.failed == want.failed
    for column in COLUMNS:
        assert np.array_equal(getattr(got, column), getattr(want, column)), column


@pytest.mark.parametrize("name", [*FORMS, "sentencepiece"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(TEXTS, CUTS), min_size=1, max_size=4), escape=st.booleans())
def test_tokens_lie_where_their_characters_say(name, texts, escape):
    rows = []
    for text, cuts in texts:
        escapes = measured(name).control_ranges(text) if escape else []
        # where within an escaped text a token lies, only its bytes tell
        outside = [cut for cut in cuts if not any(start < cut < end for start, end in escapes)]
        rows.append(cut_at(text, outside))
        rows[-1].escapes = escapes
    assert_alike(name, rows)


@pytest.mark.parametrize("name", ["gemma3", "llama2"])
def test_real_ones_too(name):
    """On rows of many widths, with added tokens, marks of their own, and texts of blanks."""
    added = list(load(name).added_tokens)[-60:]
    texts = hostile(150, seed=31, extra=[*added, MARK, "   ", " the"])
    rows = [cut_at(text, range(1 + number % 9, len(text), 1 + number % 13)) for number, text in enumerate(texts)]
    assert_alike(name, [*rows, whole(""), whole(" "), whole(MARK), whole("".join(texts))])


@pytest.mark.parametrize(
    "name", [*(name for name in FORMS if "words" not in name), "sentencepiece", "gemma3", "llama2"]
)
def test_the_fast_engine_is_used(name):
    tokenizer = measured(name)
    assert tokenizer.engine == "fastokens", tokenizer.certificate.reason
    assert not tokenizer.encode([whole(text) for text in ("The fox jumps.", " a  b", "😀<|end|>é")]).fallback.any()


def test_a_text_with_a_mark_of_its_own_is_left_to_the_reference():
    """Decoded it would be a blank; its bytes show that."""
    encoded = measured("as Gemma").encode([whole("a b"), whole(f"a{MARK}b"), whole("c d")])
    assert encoded.fallback.tolist() == [False, True, False]
