"""The kernel through its one door: records in, rows and rejects out, with the real tokenizer."""

from __future__ import annotations

import random

import loaded
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import kind_text, outcome, pipeline, qwen, records, trained_text

from retok_dask.completions.parsing import parse_record
from retok_dask.demo import chat_template, dialogues
from retok_dask.errors import RecipeError, TokenizerError
from retok_dask.kernel import UnitStats
from retok_dask.types import Conversation, Reject, RejectReason


def chat(*pairs, **more):
    messages = []
    for user, assistant in pairs:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return {"messages": messages, **more}


LONG = chat(("word " * 200, "fine " * 50))


def demo_records(count: int, seed: int = 5):
    rng = random.Random(seed)
    makers = [dialogues.chat, dialogues.reasoning, dialogues.tools]
    return [makers[n % 3](rng) for n in range(count)]


def test_ids_mask_and_segments_of_a_chat():
    rows, left_out, stats = outcome(pipeline(), [chat(("Say hi", "Hi."))])
    (row,) = rows
    assert not left_out
    assert qwen().decode(row["input_ids"]) == (
        "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHi.<|im_end|>\n"
    )
    assert trained_text(row, qwen()) == ["Hi.<|im_end|>"]
    assert [segment["kind"] for segment in row["segments"]][:2] == ["user", "header"]
    assert "".join(text for _, _, text in kind_text(row, qwen())) == qwen().decode(row["input_ids"])
    assert row["num_tokens"] == len(row["input_ids"]) == stats.tokens
    assert row["num_loss_tokens"] == sum(row["loss_mask"]) == stats.loss_tokens


def test_history_rewriting_template_trains_each_answer_once():
    """A07, A16: spans by prefix arithmetic spill into the next turn, or lose the first answer."""
    record = {
        "messages": [
            {"role": "user", "content": "q1"},
            {"role": "assistant", "reasoning_content": "r1", "content": "a1"},
            {"role": "user", "content": "q2"},
            {"role": "assistant", "reasoning_content": "r2", "content": "a2"},
        ]
    }
    (row,), _, stats = outcome(pipeline(), [record])
    assert trained_text(row, qwen()) == ["a1<|im_end|>", "r2\n</think>\n\na2<|im_end|>"]
    assert stats.counts["reasoning_dropped"] == 1
    assert stats.counts["reasoning_dropped_chars"] == 2


def test_per_turn_history_trains_each_reasoning():
    record = demo_records(2)[1]
    rows, _, stats = outcome(pipeline(history="per_turn"), [record])
    answers = [m for m in record["messages"] if m["role"] == "assistant"]
    assert len(rows) == len(answers)
    assert stats.records_out == 1
    for row, answer in zip(rows, answers, strict=True):
        (text,) = trained_text(row, qwen())
        assert answer["content"] in text
        assert answer["reasoning_content"] in text
    assert len({row["sample_id"] for row in rows}) == len(rows)


def test_flags_travel_with_their_message():
    """A17."""
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "first", "train": 0},
        {"role": "tool", "content": "t1"},
        {"role": "tool", "content": "t2"},
        {"role": "assistant", "content": "second", "train": 1},
        {"role": "tool", "content": "t3"},
    ]
    (row,), _, _ = outcome(pipeline(), [{"messages": messages}])
    assert trained_text(row, qwen()) == ["second<|im_end|>"]
    assert row["message_flags"] == "[null,false,null,null,true,null]"
    rows, left_out, _ = outcome(pipeline(mask="last_assistant"), [{"messages": [*messages[:5], {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}])  # fmt: skip
    assert not rows
    assert left_out[0]["reason"] == "flag_conflict"


@pytest.mark.parametrize(
    ("truncation", "trained"),
    [("right", ["fine " * 20]), ("left", None)],
)
def test_truncation_keeps_what_survives(truncation, trained):
    """A03."""
    (whole,), _, _ = outcome(pipeline(), [LONG])
    start = whole["loss_mask"].index(True)
    limit = start + 20 if truncation == "right" else 20
    (row,), _, stats = outcome(pipeline(max_length=limit, truncation=truncation), [LONG])
    assert row["truncated"]
    assert stats.truncated == 1
    cut = slice(0, limit) if truncation == "right" else slice(len(whole["input_ids"]) - limit, None)
    assert row["input_ids"] == whole["input_ids"][cut]
    assert row["loss_mask"] == whole["loss_mask"][cut]
    assert row["segments"][0]["start"] == 0
    assert row["segments"][-1]["end"] == limit
    assert stats.stop_rows == (0 if truncation == "right" else 1)
    if trained:
        assert [text.strip() for text in trained_text(row, qwen())] == [trained[0].strip()]


def test_truncation_at_a_message_and_dropping():
    record = chat(("q1", "a1"), ("q2 " * 100, "a2"))
    (row,), _, _ = outcome(pipeline(max_length=60, truncation="message"), [record])
    assert qwen().decode(row["input_ids"]).endswith("a1<|im_end|>\n")
    rows, left_out, stats = outcome(pipeline(max_length=60), [record, chat(("q", "a"))])
    assert len(rows) == 1
    assert stats.filtered == {"too_long": 1}
    assert left_out[0]["outcome"] == "filtered"


def test_no_trained_token_after_truncation_is_counted():
    """A12; and a row of exactly the limit is not called truncated."""
    rows, left_out, stats = outcome(pipeline(max_length=64, truncation="right"), [LONG])
    assert not rows
    assert stats.filtered == {"no_trained_tokens_after_truncation": 1}
    assert left_out[0]["source_row"] == 0
    (whole,), _, _ = outcome(pipeline(), [LONG])
    (row,), _, stats = outcome(pipeline(max_length=whole["num_tokens"], truncation="right"), [LONG])
    assert not row["truncated"]


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_counts_are_those_of_the_rows_that_are_written(engine):
    """What is left out by the filters, failed or cut off is not in the tokens, and so not in the bytes they are of."""
    tokenizer = loaded.tokenizer("qwen3_6", engine)

    def counts(values, **changes):
        made = pipeline(**changes)
        made.__dict__["tokenizer"] = tokenizer
        return outcome(made, values)[2]

    short, wide = chat(("q", "a")), chat(("ü" * 40, "日本語"))
    for written, left_out in (([short, wide], [LONG, LONG]), ([wide], [chat(("q", "a \ud800"))]), ([], [LONG])):
        alone = counts(written)
        among = counts([*left_out, *written], dataset={"filters": {"max_tokens": 100}})
        assert among.samples == len(written)
        for name in ("text_bytes", "fallback_rows", "tokens", "byte_tokens", "unknown_tokens", "samples"):
            assert getattr(among, name) == getattr(alone, name), name
    whole, cut = counts([LONG, short]), counts([LONG, short], max_length=230, truncation="right")
    assert cut.text_bytes / cut.tokens == pytest.approx(whole.text_bytes / whole.tokens, rel=0.01)


def test_documents_have_one_separator_and_plain_text():
    """D09."""
    text = "GPT uses <|endoftext|> as separator."
    made = pipeline(dataset={"mode": "text"}, documents={"separator": "<|endoftext|>"})
    (row,), _, stats = outcome(made, [{"text": text}])
    end = qwen().added_tokens["<|endoftext|>"]
    assert row["input_ids"].count(end) == 1
    assert row["input_ids"][-1] == end
    assert qwen().decode(row["input_ids"]) == text + "<|endoftext|>"
    assert stats.counts["control_tokens_in_documents"] == 1
    assert all(row["loss_mask"])
    assert {segment["message"] for segment in row["segments"]} == {-1}


def test_documents_are_chunked_with_overlap():
    text = " ".join(f"w{n}" for n in range(100))
    made = pipeline(dataset={"mode": "text"}, documents={"chunk_tokens": 50, "overlap_tokens": 10})
    rows, _, stats = outcome(made, [{"text": text}])
    (whole,), _, _ = outcome(pipeline(dataset={"mode": "text"}), [{"text": text}])
    rebuilt = rows[0]["input_ids"] + [token for row in rows[1:] for token in row["input_ids"][10:]]
    assert rebuilt == whole["input_ids"]
    assert stats.records_out == 1
    assert not any(row["truncated"] for row in rows)


def test_rows_of_ids_pass_through():
    ids = [*qwen().encode([]).ids.tolist(), 1, 2, 3, 4]
    mask = [False, True, True, False]
    made = pipeline(dataset={"mode": "tokens"})
    rows, left_out, stats = outcome(
        made,
        [
            {"input_ids": ids, "loss_mask": mask},
            {"input_ids": [1, 10**7]},
            {"input_ids": [1], "loss_mask": [True, False]},
        ],
    )
    assert rows[0]["input_ids"] == ids
    assert rows[0]["loss_mask"] == mask
    assert [item["reason"] for item in left_out] == ["bad_tokens", "bad_tokens"]
    assert stats.records_in == 3


def test_prompts_end_with_the_generation_prompt():
    rows, _, _ = outcome(pipeline(dataset={"mode": "prompts"}), [chat(("q1", "a1"), ("q2", "a2"))])
    text = qwen().decode(rows[0]["input_ids"])
    assert text.endswith("q2<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert not any(rows[0]["loss_mask"])
    assert "q2" in rows[0]["prompt_messages"]


@pytest.mark.parametrize("tail", [[], ["x"], ["x", "y"]])
def test_the_messages_of_a_prompt_are_those_of_its_ids(tail):
    """Whoever answers them anew must see what the ids show, results of tools too."""
    asked = [{"role": "user", "content": "what"}]
    for text in tail:
        called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
        asked += [called, {"role": "tool", "content": text}]
    messages = [*asked, {"role": "assistant", "content": "so"}]
    (row,), _, _ = outcome(pipeline(dataset={"mode": "prompts"}), [{"messages": messages}])
    kept = orjson.loads(row["prompt_messages"])
    assert kept == asked
    (again,), _, _ = outcome(pipeline(dataset={"mode": "prompts"}), [{"messages": kept}])
    assert again["input_ids"] == row["input_ids"]


def test_filters_count_by_reason():
    made = pipeline(dataset={"filters": {"max_tokens": 40, "max_trained_share": 0.4}})
    _, left_out, stats = outcome(made, [LONG, chat(("q", "a " * 20)), chat(("q " * 10, "a"))])
    assert stats.filtered == {"too_long": 1, "trained_share": 1}
    assert stats.records_out == 1
    assert all(item["detail"] for item in left_out)


def test_kept_columns_are_text():
    made = pipeline(dataset={"keep": ["lang", "meta", "number"]})
    (row,), _, _ = outcome(made, [chat(("q", "a"), lang="de", meta={"a": [1]}, number=12345678901234567890123)])
    assert row["lang"] == "de"
    assert row["meta"] == '{"a":[1]}'
    assert row["number"] == "12345678901234567890123"


def test_kept_bytes_are_their_text_or_base64():
    made = pipeline(dataset={"keep": ["text", "bytes", "both"]})
    values = {"text": "für".encode(), "bytes": b"\xff\x00", "both": {"a": b"\xff\x00", "b": b"b"}}
    (row,), _, _ = outcome(made, [chat(("q", "a"), **values)])
    assert (row["text"], row["bytes"], row["both"]) == ("für", "/wA=", '{"a":"/wA=","b":"b"}')


def test_a_fault_nobody_foresaw_costs_one_record(monkeypatch):
    made = pipeline()
    render = type(made.template).render

    def breaks(self, conversation, *more):
        if conversation.messages[0]["content"] == "boom":
            return 1 / 0
        return render(self, conversation, *more)

    monkeypatch.setattr(type(made.template), "render", breaks)
    rows, left_out, _ = outcome(made, [chat(("q", "a")), chat(("boom", "a"))])
    assert len(rows) == 1
    assert left_out[0]["reason"] == "unexpected_error"
    assert "ZeroDivisionError at test_process.py" in left_out[0]["detail"]


def test_what_was_mended_while_reading_is_counted_once():
    raw = b'{"messages": [{"role": "user", "content": "a\tb"}, {"role": "assistant", "content": "c"}]}'
    read = parse_record("a.jsonl", 0, 0, raw, ("control_characters",))
    (batch,) = pipeline().process([read])
    assert batch.stats.counts["control_characters_mended"] == batch.stats.samples == 1


def test_conversations_without_a_file():
    made = pipeline()
    (row,) = made.encode([Conversation([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])])
    (same,), _, _ = outcome(made, [chat(("q", "a"))])
    assert row["input_ids"].tolist() == same["input_ids"]


def test_chat_without_template_is_refused():
    from retok_dask.kernel import Kernel

    made = pipeline()
    with pytest.raises(RecipeError, match="no chat template"):
        Kernel(made.recipe, made.dataset, made.tokenizer, None)


DEMO = demo_records(45)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40_000), st.permutations(range(len(DEMO))), st.sampled_from(["whole", "per_turn", "auto"]))
def test_rows_do_not_depend_on_batches_or_order(batch_bytes, order, history):
    """The law that lets units be cut, halved and resumed: a row depends on its record alone."""
    made = pipeline(units={"batch_bytes": batch_bytes}, history=history)
    plain = pipeline(history=history)
    made.__dict__["template"] = plain.__dict__["template"] = made.template
    all_records = records(DEMO)
    mixed = [row for batch in made.process([all_records[n] for n in order]) for row in batch.samples.to_pylist()]
    straight = [row for batch in plain.process(all_records) for row in batch.samples.to_pylist()]
    assert sorted(mixed, key=lambda row: row["sample_id"]) == sorted(straight, key=lambda row: row["sample_id"])


@pytest.mark.parametrize(("batch_bytes", "sizes"), [(1, [1, 2, 1] + [1, 2] * 19), (1 << 20, [61])])
def test_a_batch_ends_with_the_record_that_fills_it_and_counts_its_own(batch_bytes, sizes):
    made = pipeline(units={"batch_bytes": batch_bytes})
    found = records([chat(("q", "a")), {"messages": [{"role": "user", "content": "q"}]}, chat(("r", "b"))] * 20)
    found[2].counts = {"mended": 1}
    cut = Reject("a.jsonl", -1, 2500, RejectReason.bad_json, "cut", b"{")
    batches = list(made.process([*found[:3], cut, *found[3:]]))
    assert [batch.stats.records_in for batch in batches] == sizes
    assert all(batch.stats.balanced for batch in batches)
    assert [n for n, batch in enumerate(batches) if batch.stats.counts["mended"]] == [int(batch_bytes == 1)]
    rows = [row["source_row"] for batch in batches for row in batch.samples.to_pylist()]
    assert rows == [row for row in range(60) if row % 3 != 1]
    reasons = sum((batch.stats for batch in batches), UnitStats()).rejected
    assert reasons == {"no_assistant": 20, "bad_json": 1}


def test_a_tokenizer_that_does_not_know_the_templates_markers_is_refused():
    """D07: control strings spelled out as ordinary text are a tokenizer of another model."""
    made = pipeline(chat_template().replace("<|im_end|>", "<|end_of_turn|>"))
    with pytest.raises(TokenizerError, match=r"<\|end_of_turn\|>.*plain_markers"):
        _ = made.template
    meant = {"text": chat_template().replace("<|im_end|>", "<|end_of_turn|>"), "plain_markers": True}
    (row,), _, _ = outcome(pipeline(template_spec=meant), [chat(("q", "a"))])
    assert trained_text(row, qwen())[0].startswith("a<|end_of_turn|>")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=40), max_size=8))
def test_trained_tokens_are_counted_by_row_and_by_tenth_of_it(masks):
    """Rows shorter than ten tokens have empty tenths, and a row may be empty."""
    sizes = np.array([len(mask) for mask in masks], np.int64)
    splits = np.concatenate([[0], np.cumsum(sizes)])
    flat = np.array([trained for mask in masks for trained in mask], np.bool_)
    stats, none = UnitStats(), np.zeros(0, np.int64)
    loss = stats.add_rows(np.zeros(flat.size, np.int32), splits, flat, none.astype(np.int8), none, none, None)
    assert loss.tolist() == [sum(mask) for mask in masks]
    for tenth in range(10):
        parts = [mask[len(mask) * tenth // 10 : len(mask) * (tenth + 1) // 10] for mask in masks]
        assert stats.position_tokens[str(tenth)] == sum(map(len, parts))
        assert stats.position_loss_tokens[str(tenth)] == sum(map(sum, parts))
