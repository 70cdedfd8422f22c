"""Ids equal the reference's, for every family and on text that tells engines apart."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from unittest.mock import Mock

import assets
import pytest
from tokens_common import auto_tokenizer, load, multilingual, row_ids, whole

from retok_dask.tokenizers import Tokenizer, tokenizer
from retok_dask.tokenizers.probes import FRAGMENTS, hostile

FOLDERS = ["qwen3", "llama3_1", "gptoss", "deepseek_v3", "mistral_nemo", "gpt2", "gpt4o", "llama2", "gemma3"]
FAST = ["qwen3_6", "kimi", "qwen3", "llama3_1", "gptoss", "deepseek_v3", "mistral_nemo", "gpt2", "gemma3", "llama2"]


def ids_of(name: str, texts: list[str], engine: str = "auto") -> list[list[int]]:
    encoded = load(name, engine).encode([whole(text) for text in texts])
    assert not encoded.failed
    return [row_ids(encoded, row) for row in range(len(texts))]


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_equal_auto_tokenizer(name):
    reference = auto_tokenizer(name)
    texts = [*multilingual()[:30], *hostile(300, seed=7, extra=list(load(name).added_tokens)[:50])]
    want = reference(texts, add_special_tokens=False)["input_ids"]
    assert ids_of(name, texts) == want


@pytest.mark.parametrize("name", FAST)
def test_fast_engine_is_used_and_equals_reference(name):
    tokenizer = load(name)
    assert tokenizer.engine == "fastokens", tokenizer.certificate.reason
    texts = [*multilingual()[::2], *hostile(1000, seed=11, extra=list(tokenizer.added_tokens)[:100])]
    assert ids_of(name, texts) == [load(name)._reference.encode([text])[0].tolist() for text in texts]


def test_patience_leaves_a_little_to_the_reference(monkeypatch):
    """Whoever encodes a few texts does not wait for the fast engine; the ids before and after are the reference's."""
    monkeypatch.setattr(tokenizer, "LITTLE", 1000)
    monkeypatch.setattr(tokenizer, "FastEngine", Mock(wraps=tokenizer.FastEngine))
    patient = Tokenizer.load(assets.tokenizer_spec("qwen3"), patient=True)
    texts = hostile(100, seed=5)
    want = ids_of("qwen3", texts, engine="reference")
    for number, text in enumerate(texts):
        assert row_ids(patient.encode([whole(text)]), 0) == want[number]
        soon = sum(map(len, texts[: number + 1])) <= 1000
        assert not (soon and tokenizer.FastEngine.called)
    assert tokenizer.FastEngine.call_count == 1


@pytest.mark.parametrize("name", assets.TINY[3:])
def test_other_kinds_use_the_reference(name):
    assert load(name).engine == "tokenizers"
    assert load(name).certificate is None


def tiktoken_of(name: str):
    import tiktoken

    from retok_dask.tokenizers.tiktoken_form import parse_ranks

    spec = assets.tokenizer_spec(name)
    ranks = parse_ranks(Path(spec.path).read_bytes(), spec.path)
    return tiktoken.Encoding(name, pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens=spec.special_tokens)


@pytest.mark.parametrize("name", ["kimi", "qwen3_6"])
def test_rank_file_gives_tiktokens_ids(name):
    """Kimi's and Qwen's form, on many languages, every vocabulary entry, and entries run together."""
    reference = tiktoken_of(name)
    tokenizer = load(name)
    entries = [text for text in tokenizer.table.texts() if text not in tokenizer.added_tokens]
    chooser = random.Random(5)
    mixed = ["".join(chooser.sample(entries, 40)) for _ in range(2000)]
    texts = [*multilingual(), *hostile(1500, seed=3), *mixed]
    if name == "qwen3_6":  # normalization belongs to the tokenizer, not to tiktoken
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    assert ids_of(name, texts) == reference.encode_ordinary_batch(texts, num_threads=1)


def test_rank_file_reaches_entries_that_no_pair_joins():
    """tiktoken looks a whole pre-token up first; such an entry needs no way there by joining pairs."""
    reference = tiktoken_of("qwen3_6")
    words = [" giurid", " penerbangan", "毛泽东", " фактор", " möglicherweise", "anjutnya"]
    texts = [form.format(word) for word in words for form in ("{0}", "a{0}", "{0}s", "{0} {0}")]
    assert ids_of("qwen3_6", texts) == [reference.encode_ordinary(text) for text in texts]


def test_kimi_control_strings_are_one_id_each():
    """D07: a generic loader gives several pieces for <think> and knows no reserved ids."""
    tokenizer = load("kimi")
    assert tokenizer.vocab_size == 163_840
    for text, index in assets.KIMI_CONTROL_TOKENS.items():
        assert ids_of("kimi", [f"a{text}b"])[0][1] == index
        assert tokenizer.added_tokens[text] == index
    assert (tokenizer.bos_id, tokenizer.eos_id) == (163_584, 163_586)


def test_marks_beside_control_tokens_stay_outside_them():
    """NFC works between added tokens: '>' and a following stroke would compose to another character."""
    for name in ("qwen3", "qwen3_6"):
        tokenizer = load(name)
        end = tokenizer.added_tokens["<|im_end|>"]
        got = ids_of(name, ["x<|im_end|>\u0338y e\u0301"])[0]
        assert end in got
    assert got == ids_of("qwen3_6", ["x<|im_end|>\u0338y é"])[0]


@pytest.mark.parametrize("name", ["gptoss", "kimi", "llama3_1"])
def test_apostrophe_before_long_s(name):
    """Engines fold case differently here; these rows go to the reference and are counted."""
    texts = [f"{left}'\u017f{right}" for left in ("", "it", "A", "é ", "1") for right in ("", "x", "'s", " ")]
    encoded = load(name).encode([whole(text) for text in texts])
    assert encoded.fallback.sum() == len(texts)
    assert ids_of(name, texts) == ids_of(name, texts, "reference")


def test_added_tokens_flagged_special_or_not_are_matched():
    tokenizer = load("qwen3")
    assert {"<think>", "</think>", "<tool_call>", "<|im_end|>"} <= tokenizer.added_tokens.keys()
    text = "a<think>b</tool_call>c<|im_end|>"
    assert [text[a:b] for a, b in tokenizer.control_ranges(text)] == ["<think>", "</tool_call>", "<|im_end|>"]


def test_fragments_are_many_kinds():
    assert len(set(FRAGMENTS)) == len(FRAGMENTS)
