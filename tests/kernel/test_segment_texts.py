"""A law of the whole pipeline: the ids of each segment decode to that segment's text, byte for byte."""

from __future__ import annotations

import unicodedata
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import kind_text, outcome
from reported import real, tokenizer

from retok_dask.completions import layout_for
from retok_dask.types import KIND_NAMES, Record

PIECES = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\x00", "\u2028", "\xa0", "\u200b", "\ufeff", "a", " word", "Ok. ", "don't", "12345",
    "é", "e\u0301", "\u0301", "中文", "こんにちは", "मनीष", "😀", "👍🏽", "👩‍👩‍👧", "🇩🇪", "𝔘", "<b>", "<|im_end|>", "<end_of_turn>", "<|eot_id|>",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=7).map("".join)
ANSWERS = st.lists(st.sampled_from([piece for piece in PIECES if "<" not in piece]), max_size=7).map("".join)
TURNS = st.lists(st.tuples(TEXTS, ANSWERS), min_size=1, max_size=3)

FAMILIES = [
    ("trl/llama3_1", "llama3_1"),  # byte-level BPE
    ("trl/gemma3", "gemma3"),  # SentencePiece with byte fallback
    ("llama-cpp-python/moonshotai-Kimi-K2", "kimi"),  # tiktoken
    ("trl/qwen3", "qwen3_6"),  # tiktoken after NFC
]


def segment_texts(made, value):
    """(kind, message, text) of each segment, from the rendering alone."""
    (conversation,) = layout_for(made.dataset)(Record("a.jsonl", 0, 0, None, value))
    (row,) = made.template.render(conversation)
    ends = [*row.starts[1:], len(row.text)]
    spans = zip(row.kinds, row.messages, row.starts, ends, strict=True)
    return [
        (KIND_NAMES[kind], message, "".join(row.text[start:end] for _, _, start, end in run))
        for (kind, message), run in groupby(spans, key=lambda span: span[:2])
    ]


@pytest.mark.parametrize(("template", "vocabulary"), FAMILIES)
def test_ids_of_a_segment_are_its_text(template, vocabulary):
    made = real(template, vocabulary)
    compared = []

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(TURNS)
    def law(turns):
        messages = [
            message
            for asked, said in turns
            for message in ({"role": "user", "content": asked}, {"role": "assistant", "content": said})
        ]
        rows, left_out, stats = outcome(made, [{"messages": messages}])
        if left_out:
            assert left_out[0]["reason"] in ("span_not_proved", "no_trained_tokens"), left_out
            return
        want = segment_texts(made, {"messages": messages})
        got = kind_text(rows[0], tokenizer(vocabulary))
        whole = "".join(text for _, _, text in want)
        composed = vocabulary == "qwen3_6" and unicodedata.normalize("NFC", whole) != whole
        if composed:
            assert unicodedata.normalize("NFC", "".join(text for _, _, text in got)) == unicodedata.normalize(
                "NFC", whole
            )
            return
        assert "".join(text for _, _, text in got).encode() == whole.encode()
        if not stats.shared_tokens:  # a token over a boundary belongs to one side whole
            assert got == want
            compared.append(len(got))

    law()
    assert len(compared) >= 15
