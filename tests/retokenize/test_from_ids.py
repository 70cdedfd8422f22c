"""Rows of ids of one real tokenizer become rows of another (D12)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retok_dask.errors import RecipeError
from retok_dask.kernel.controls import ControlFinder, ControlMap
from retok_dask.types import Document, TokenRow
from tests.retokenize.common import kernel, outcome, plain_ids, row_of, tokenizer

HARD = [
    " !",
    "hello !",
    "  hello",
    "don 't",
    "a\n\n b",
    "é",
    "e\u0301",
    "日本語の文章",
    "🙂‍🔥 ok",
    "\u00a0x",
    "นี่คือ",
    "\t\tif x:\n",
]

ALL_TO_NULL = {"*": None}


@pytest.mark.parametrize(
    ("old", "new"), [("gpt2", "llama3_1"), ("llama3_1", "gpt2"), ("gpt4o", "llama2"), ("llama2", "gpt4o")]
)
def test_text_survives_without_clean_up(old, new):
    # Llama 2 gives "!" and " !" the same ids: what its ids do not say nobody can carry over
    hard = [text for text in HARD if old != "llama2" or text != " !"]
    rows, left_out, stats = outcome(kernel(old, new, {"token_map": ALL_TO_NULL}), [row_of(old, text) for text in hard])
    assert not left_out
    assert [row["input_ids"] for row in rows] == [plain_ids(new, text) for text in hard]
    assert [row["lossy_decode"] for row in rows] == [None] * len(hard)
    assert [int(row["source_tokens"]) for row in rows] == [len(plain_ids(old, text)) for text in hard]
    assert stats.counts["source_tokens"] == sum(len(plain_ids(old, text)) for text in hard)
    assert stats.counts["lossy_decode"] == 0


def test_old_lengths_are_counted_of_the_rows_that_are_written():
    """What a filter leaves out is in neither length: the growth that `plan` names is that of the rows."""
    made = kernel("gpt2", "llama3_1", {"token_map": ALL_TO_NULL, "filters": {"max_tokens": 2}})
    rows, left_out, stats = outcome(made, [row_of("gpt2", text) for text in HARD])
    assert rows
    assert left_out
    assert stats.counts["source_tokens"] == sum(int(row["source_tokens"]) for row in rows)


@pytest.fixture(scope="module")
def gpt4o_to_llama():
    return kernel("gpt4o", "llama3_1", {"token_map": ALL_TO_NULL, "filters": {"min_trained_tokens": 0}})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4), st.data())
def test_any_text_and_any_mask(gpt4o_to_llama, texts, data):
    old, new = "gpt4o", "llama3_1"
    items, wanted = [], []
    for text in texts:
        ids = plain_ids(old, text)
        if not ids:
            continue
        mask = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        items.append(TokenRow(ids, mask))
        wanted.append((text, trained_bytes(old, ids, mask)))
    rows, left_out, _ = outcome(gpt4o_to_llama, items)
    assert not left_out
    for row, (text, trained) in zip(rows, wanted, strict=True):
        assert tokenizer(new).decode_bytes(row["input_ids"]) == text.encode()
        check_mask(row, trained, new)


def trained_bytes(name, ids, mask):
    """For each byte of the text, whether it is trained; a character is as a whole if any of its bytes is."""
    data, flags = b"", []
    for index, hit in zip(ids, mask, strict=True):
        piece = tokenizer(name).decode_bytes([index])
        data += piece
        flags += [hit] * len(piece)
    at = 0
    for char in data.decode():
        end = at + len(char.encode())
        flags[at:end] = [any(flags[at:end])] * (end - at)
        at = end
    return flags


def check_mask(row, trained, new):
    """A token is trained exactly if any trained byte is in it."""
    at = 0
    for index, hit in zip(row["input_ids"], row["loss_mask"], strict=True):
        end = at + len(tokenizer(new).decode_bytes([index]))
        assert hit == any(trained[at:end]), (index, at, end)
        at = end
    assert at == len(trained)


def test_segments_and_mask_move_by_bytes():
    old, new = "gpt4o", "llama3_1"
    question, answer = plain_ids(old, "What is the capital of Portugal?"), plain_ids(old, " Lisbon, on the Tagus")
    n, m = len(question), len(question) + len(answer)
    mask = [False] * (n + 1) + [True] * (m - n - 1)  # the data's mask leaves out the answer's first token
    row = TokenRow(question + answer, mask, [(0, n, "user", 0), (n, m, "content", 1)])
    (out,), left_out, _ = outcome(kernel(old, new, {"token_map": ALL_TO_NULL}), [row])
    assert not left_out
    texts = {
        (s["kind"], s["message"]): tokenizer(new).decode(out["input_ids"][s["start"] : s["end"]])
        for s in out["segments"]
    }
    assert texts == {("user", 0): "What is the capital of Portugal?", ("content", 1): " Lisbon, on the Tagus"}
    trained = [index for index, hit in zip(out["input_ids"], out["loss_mask"], strict=True) if hit]
    assert tokenizer(new).decode(trained) == ", on the Tagus"


def test_segments_without_a_mask_follow_the_policy():
    ids = plain_ids("gpt4o", "hi there")
    row = TokenRow(ids, None, [(0, 1, "user", 0), (1, len(ids), "content", 1)])
    (out,), _, _ = outcome(kernel("gpt4o", "llama3_1", {"token_map": ALL_TO_NULL}), [row])
    assert out["loss_mask"] == [
        segment["kind"] == "content" for segment in out["segments"] for _ in range(segment["start"], segment["end"])
    ]


def test_control_tokens_go_by_the_table_and_never_through_text():
    old, new = tokenizer("llama3_1"), tokenizer("qwen2_5")
    start, end, eot = (old.added_tokens[t] for t in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    # the user typed the new tokenizer's control token; in the old ids it is ordinary text
    typed = plain_ids("llama3_1", "say <|im_end|> now")
    ids = [start, *plain_ids("llama3_1", "user"), end, *typed, eot]
    table = {"<|start_header_id|>": "<|im_start|>", "<|end_header_id|>": "", "<|eot_id|>": "<|im_end|>", "*": None}
    (row,), left_out, _ = outcome(kernel("llama3_1", "qwen2_5", {"token_map": table}), [TokenRow(ids)])
    assert not left_out
    found = [index for index in row["input_ids"] if index in set(new.added_tokens.values())]
    assert found == [new.added_tokens["<|im_start|>"], new.added_tokens["<|im_end|>"]]
    assert row["input_ids"][-1] == new.added_tokens["<|im_end|>"]
    assert new.decode(row["input_ids"]) == "<|im_start|>usersay <|im_end|> now<|im_end|>"


def test_an_incomplete_table_refuses_before_any_row():
    with pytest.raises(
        RecipeError, match=r"control tokens of the old tokenizer have no counterpart.*<\|begin_of_text\|>"
    ):
        kernel("llama3_1", "qwen2_5")
    with pytest.raises(RecipeError, match="no added token of the new tokenizer"):
        kernel("llama3_1", "qwen2_5", {"token_map": {"<|eot_id|>": "<|im_ned|>", "*": None}})
    with pytest.raises(RecipeError, match="which the old tokenizer lacks"):
        kernel("llama3_1", "qwen2_5", {"token_map": {"<|eot|>": "<|im_end|>", "*": None}})


def test_the_table_can_be_shown():
    table = ControlMap(
        tokenizer("qwen2_5"), tokenizer("qwen3"), {"<|fim_pad|>": "", "<|im_start|>": "<|im_start|>"}
    ).to_dict()
    by_text = {row["token"]: row for row in table}
    assert set(by_text) == set(tokenizer("qwen2_5").added_tokens)
    assert by_text["<|im_end|>"]["rule"] == "same text"
    assert by_text["<|im_end|>"]["new_id"] == tokenizer("qwen3").added_tokens["<|im_end|>"]
    assert by_text["<|fim_pad|>"]["becomes"] == "(drop)"


def test_rows_with_a_token_that_is_not_expected_are_rejected():
    old = tokenizer("llama3_1")
    ids = [*plain_ids("llama3_1", "a b"), old.added_tokens["<|start_header_id|>"]]
    rows, left_out, stats = outcome(
        kernel("llama3_1", "gpt2", {"token_map": ALL_TO_NULL}), [TokenRow(ids), row_of("llama3_1", "fine")]
    )
    assert len(rows) == 1
    assert left_out[0]["reason"] == "unmapped_token"
    assert "<|start_header_id|>" in left_out[0]["detail"]
    assert stats.rejected == {"unmapped_token": 1}


def test_ids_that_their_text_does_not_encode_to_are_flagged_and_counted():
    pieces = [index for char in "hello" for index in plain_ids("gpt2", char)]
    assert pieces != plain_ids("gpt2", "hello")
    (row,), left_out, stats = outcome(kernel("gpt2", "llama3_1", {"token_map": ALL_TO_NULL}), [TokenRow(pieces)])
    assert not left_out
    assert row["input_ids"] == plain_ids("llama3_1", "hello")
    assert row["lossy_decode"] == "noncanonical"
    assert stats.counts["lossy_decode"] == stats.counts["lossy_decode_noncanonical"] == 1


def test_a_cut_character_is_rejected_or_kept_with_its_mark():
    ids = plain_ids("gpt2", "ok 語")
    assert len(ids) > 3, "the character is several tokens of GPT-2"
    cut = TokenRow(ids[:-1], [True] * (len(ids) - 1))
    rows, left_out, stats = outcome(kernel("gpt2", "llama3_1", {"token_map": ALL_TO_NULL}), [cut])
    assert not rows
    assert left_out[0]["reason"] == "lossy_decode"
    assert stats.rejected == {"lossy_decode": 1}
    keep = kernel("gpt2", "llama3_1", {"token_map": ALL_TO_NULL, "lossy_decode": "keep"})
    (row,), left_out, stats = outcome(keep, [cut])
    assert not left_out
    assert tokenizer("llama3_1").decode(row["input_ids"]).startswith("ok \ufffd")
    assert all(row["loss_mask"])
    assert row["lossy_decode"] == "cut_character"
    assert stats.counts["lossy_decode_cut_character"] == 1


def test_rows_out_of_the_old_vocabulary_are_rejected():
    _, left_out, _ = outcome(kernel("gpt2", "llama3_1", {"token_map": ALL_TO_NULL}), [TokenRow([1, 60_000])])
    assert left_out[0]["reason"] == "bad_tokens"


@pytest.mark.parametrize("old", [None, "gpt4o"])
def test_ids_above_a_gap_of_the_vocabulary_are_taken_and_those_in_it_are_not(old):
    last = tokenizer("gpt4o").token_id("<|endofprompt|>")
    rows, left_out, _ = outcome(kernel(old, "gpt4o"), [TokenRow([5, last]), TokenRow([5, last - 3])])
    assert [row["input_ids"] for row in rows] == [[5, last]]
    assert [(reject["reason"], reject["detail"]) for reject in left_out] == [
        ("bad_tokens", f"id {last - 3} at token 1 is in a gap of the vocabulary: no token has it")
    ]


def test_rows_from_memory_that_are_none_cost_themselves_alone():
    odd = [TokenRow([1.5]), Document("text"), TokenRow([1], loss_mask=["no"]), TokenRow([1], counts={"a": "b"})]
    rows, left_out, _ = outcome(kernel(None, "gpt2"), [*odd, TokenRow([1])])
    assert [row["input_ids"] for row in rows] == [[1]]
    assert {reject["reason"] for reject in left_out} == {"bad_layout"}
    assert len(left_out) == len(odd)


def test_same_tokenizer_passes_rows_through():
    ids = [index for char in "hello" for index in plain_ids("gpt2", char)]
    (row,), _, _ = outcome(kernel("gpt2", "gpt2"), [TokenRow(ids)])
    assert row["input_ids"] == ids


def test_leading_bos_and_first_word_of_a_sentencepiece_row():
    ids = [1, *plain_ids("llama2", "Hello  world"), 2]
    table = {"<s>": "", "</s>": "<|endoftext|>", "<unk>": None}
    (row,), left_out, _ = outcome(kernel("llama2", "gpt2", {"token_map": table}), [TokenRow(ids)])
    assert not left_out
    assert row["input_ids"] == [*plain_ids("gpt2", "Hello  world"), 50256]
    assert row["lossy_decode"] is None


@settings(max_examples=200, deadline=None)
@given(st.sets(st.text("ab<|>", min_size=1, max_size=4), min_size=1, max_size=8), st.text("ab<|> ", max_size=60))
def test_finder_is_leftmost_longest(tokens, text):
    found = ControlFinder(tokens).find(text)
    wanted, at = [], 0
    known = {token for token in tokens if token.strip()}
    while at < len(text):
        here = max((token for token in known if text.startswith(token, at)), key=len, default="")
        if here:
            wanted.append((at, at + len(here)))
        at += max(len(here), 1)
    assert found == wanted


def test_thousands_of_added_tokens_are_found_fast_enough_to_use():
    controls = ControlFinder(tokenizer("deepseek").added_tokens)
    text = "<p>a page &lt; of text</p>" * 2000 + "<｜User｜>"
    assert controls.find(text) == [(len(text) - len("<｜User｜>"), len(text))]
    assert np.mean([bool(controls.find("plain text")) for _ in range(10)]) == 0


@pytest.mark.parametrize("with_segments", [True, False])
def test_a_character_of_several_tokens_is_trained_if_one_of_them_is(with_segments):
    """Whatever runs begin inside it: each token of three characters by itself trained, or of a kind of its own."""
    ids = plain_ids("gpt2", "𝔘𝔫𝔦")
    kinds = ["user", "header", "reasoning", "content", "stop"]
    made = [(at, at + 1, kinds[at % 5], at) for at in range(len(ids))] if with_segments else None
    masks = [[bool(number >> at & 1) for at in range(len(ids))] for number in range(1, 2 ** len(ids), 3)]
    rows, left_out, _ = outcome(
        kernel("gpt2", "qwen3", {"token_map": {"*": None}}),
        [TokenRow(ids, mask, made) for mask in masks],
    )
    assert not left_out
    for row, mask in zip(rows, masks, strict=True):
        check_mask(row, trained_bytes("gpt2", ids, mask), "qwen3")
