"""Chat templates that went wrong in public, as whole cases: records in, ids, mask and counts out."""

from __future__ import annotations

import datetime as dt

import pytest
from pipelines import kind_text, outcome, qwen, trained_text
from reported import TOOLS, TWO_THINKING, calling, chat, real, reference_ids, tokenizer

from retok_dask.templates import audit, history_costs
from retok_dask.types import Conversation

QWEN3, QWEN36, GPTOSS = "trl/qwen3", "trl/qwen3_6", "trl/gptoss"
GEMMA2, GEMMA3 = "llama-cpp-python/google-gemma-2-2b-it", "trl/gemma3"

USER = {"role": "user", "content": "u"}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "call00000", "name": "weather"}
DONE = {"role": "assistant", "content": "done"}


def rows_of(made, conversations):
    """The rows of records that are all good, one each."""
    rows, left_out, stats = outcome(made, conversations)
    assert not left_out
    assert len(rows) == len(conversations)
    return rows, stats


def one_and_the_same(rows):
    for column in ("input_ids", "loss_mask", "segments"):
        assert all(row[column] == rows[0][column] for row in rows), column


def test_b01_reasoning_that_a_template_drops_is_counted_or_kept_turn_by_turn():
    """ms-swift issue 4939: most of the reasoning was not in the training tokens, and nothing said so."""
    (row,), stats = rows_of(real(QWEN3), [{"messages": TWO_THINKING}])
    assert "r1" not in qwen().decode(row["input_ids"])
    assert (stats.counts["reasoning_chars"], stats.counts["reasoning_dropped_chars"]) == (4, 2)
    made = real(QWEN3, history="per_turn")
    turns, left_out, stats = outcome(made, [{"messages": TWO_THINKING}])
    assert not left_out
    assert [trained_text(row, qwen()) for row in turns] == [
        ["<think>\nr1\n</think>\n\na1<|im_end|>"],
        ["<think>\nr2\n</think>\n\na2<|im_end|>"],
    ]
    assert turns[0]["input_ids"] == reference_ids(QWEN3, "qwen3_6", TWO_THINKING[:2])
    assert turns[1]["input_ids"] == row["input_ids"]
    costs = history_costs(made.template, [Conversation(TWO_THINKING)])
    assert (costs["whole"].reasoning_lost, costs["per_turn"].reasoning_lost) == (2, 0)


@pytest.mark.parametrize("template", [QWEN3, QWEN36, "llama-cpp-python/Qwen3-Coder"])
def test_b02_arguments_as_text_or_as_an_object(template):
    """Qwen3-Coder issue 444: templates that walk through arguments broke on JSON text."""
    forms = ['{"y": 2, "x": 2.0, "s": "1"}', {"y": 2, "x": 2.0, "s": "1"}]
    records = []
    for form in forms:
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": form}}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        records.append({"messages": [USER, asked, RESULT, DONE], "tools": TOOLS})
    rows, stats = rows_of(real(template), records)
    one_and_the_same(rows)
    assert stats.counts["arguments_parsed"] == 1
    assert rows[1]["input_ids"] == reference_ids(template, "qwen3_6", records[1]["messages"], tools=TOOLS)
    call_text = trained_text(rows[0], qwen())[0]
    assert 0 < call_text.index("y") < call_text.index("2.0")


def test_b05_a_system_message_for_a_model_without_one():
    """llama-cpp-python issue 1580: half a corpus has system messages, and the template raises."""
    asked = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    records = [{"messages": asked}, chat("U", "A")]
    rows, left_out, stats = outcome(real(GEMMA2, "gemma3"), records)
    assert [row["source_row"] for row in rows] == [1]
    assert stats.rejected == {"system_not_supported": 1}
    assert left_out[0]["source_row"] == 0
    folded, stats = rows_of(real(GEMMA2, "gemma3", system="fold"), records)
    assert stats.counts["system_folded"] == 1
    same, _ = rows_of(real(GEMMA2, "gemma3"), [chat("S\n\nU", "A")])
    assert folded[0]["input_ids"] == same[0]["input_ids"]
    assert folded[0]["loss_mask"] == same[0]["loss_mask"]
    dropped, stats = rows_of(real(GEMMA2, "gemma3", system="drop"), records)
    assert stats.counts["system_dropped"] == 1
    assert dropped[0]["input_ids"] == dropped[1]["input_ids"] == rows[0]["input_ids"]


def test_b06_roles_that_do_not_alternate_cost_their_record_alone():
    """smol-course issue 260: user, assistant, user, user stopped a whole job at the first row."""
    twice = {"messages": [*chat("a", "b", "c")["messages"], {"role": "user", "content": "d"}]}
    tools = {"messages": [USER, calling("weather"), RESULT, DONE]}
    made = real(GEMMA3, "gemma3")
    rows, left_out, stats = outcome(made, [chat("q", "a"), twice, tools, chat("q", "a")])
    assert [row["source_row"] for row in rows] == [0, 3]
    assert stats.rejected == {"template_error": 2}
    assert [item["source_row"] for item in left_out] == [1, 2]
    assert "alternate" in left_out[0]["detail"]
    assert "user assistant user user" in left_out[0]["detail"]
    found = audit(made.template, [Conversation(record["messages"]) for record in (chat("q", "a"), twice)])
    assert found.roles == {"user assistant": 1, "user assistant user user": 1}


@pytest.mark.parametrize(
    ("template", "vocabulary"),
    [(QWEN3, "qwen3_6"), (QWEN36, "qwen3_6"), (GPTOSS, "gptoss"), ("trl/llama3_1", "llama3_1")],
)
def test_b07_null_content_beside_calls(template, vocabulary):
    """mlx-openai-server pull 205: null content dropped the message, printed None, or raised."""
    bare = {key: value for key, value in calling("weather").items() if key != "content"}
    forms = [{**bare, "content": None}, bare, {**bare, "content": ""}]
    rows, _ = rows_of(
        real(template, vocabulary), [{"messages": [USER, form, RESULT, DONE], "tools": TOOLS} for form in forms]
    )
    one_and_the_same(rows)
    assert "None" not in tokenizer(vocabulary).decode(rows[0]["input_ids"])
    call, last = trained_text(rows[0], tokenizer(vocabulary))
    assert "weather" in call
    assert "Rome" in call
    assert "done" in last


def test_b08_content_as_a_list_of_parts():
    """marin pull 9067: the list itself was printed into the text."""
    text = {"type": "text"}
    forms = ["ab c", [{**text, "text": "ab c"}], [{**text, "text": "ab "}, {**text, "text": "c"}]]
    made = real(QWEN3)
    rows, stats = rows_of(made, [chat(form, "d") for form in forms])
    one_and_the_same(rows)
    assert rows[0]["input_ids"] == reference_ids(QWEN3, "qwen3_6", chat("ab c", "d")["messages"])
    assert stats.counts["content_parts_joined"] == 2
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    rows, left_out, _ = outcome(made, [chat(image, "d"), chat([], "d"), chat(42, "d")])
    assert [item["reason"] for item in left_out] == ["non_text_part", "bad_content"]
    assert kind_text(rows[0], qwen())[0] == ("user", 0, "<|im_start|>user\n<|im_end|>\n")


@pytest.mark.parametrize(
    ("template", "vocabulary", "written"),
    [
        (GPTOSS, "gptoss", "2026-01-02"),
        ("llama-cpp-python/meta-llama-Llama-3.2-3B-Instruct", "llama3_1", "02 Jan 2026"),
    ],
)
def test_b10_the_day_is_the_runs_not_the_clocks(template, vocabulary, written):
    """sglang issue 3296: a job resumed after midnight had two dates in one data set."""
    made = real(template, vocabulary)
    (row,), _ = rows_of(made, [chat("q", "a")])
    assert dt.datetime.now(dt.UTC).date() != dt.date(2026, 1, 2)
    assert written in tokenizer(vocabulary).decode(row["input_ids"])
    (again,), _ = rows_of(real(template, vocabulary), [chat("q", "a")])
    assert again["input_ids"] == row["input_ids"]
    (later,), _ = rows_of(real(template, vocabulary, date="2026-01-03"), [chat("q", "a")])
    assert later["input_ids"] != row["input_ids"]
    assert next(fact for fact in audit(made.template).rows if fact.fact == "date").value == "prints the run's date"


def test_b11_bos_is_there_as_often_as_the_template_prints_it():
    """OpenRLHF issue 393: text that begins with BOS was encoded with special tokens once more."""
    llama = tokenizer("llama3_1")
    assert llama.adds_bos
    (row,), stats = rows_of(real("trl/llama3_1", "llama3_1"), [chat("test", "a")])
    assert row["input_ids"][0] == llama.bos_id
    assert row["input_ids"].count(llama.bos_id) == stats.bos_rows == 1
    assert row["input_ids"] == reference_ids("trl/llama3_1", "llama3_1", chat("test", "a")["messages"])
    made = real("llama-cpp-python/google-gemma-2-2b-it", "gemma3")
    (row,), _ = rows_of(made, [chat("test", "a")])
    assert row["input_ids"].count(tokenizer("gemma3").bos_id) == 1
    (row,), _ = rows_of(real("trl/llama3_1", "llama3_1", dataset={"mode": "text"}), [{"text": "test"}])
    assert row["input_ids"].count(llama.bos_id) == 1  # plain text follows the tokenizer's own rule
    (row,), _ = rows_of(real(QWEN3), [chat("test", "a")])
    assert kind_text(row, qwen())[0][0] == "user"  # the template prints no BOS, so there is none


def test_b13_a_template_that_demands_a_user():
    """slime pull 1742: rendered message by message, such a template raises for good conversations too."""
    template = "llama-cpp-python/Qwen3.5-4B"
    greeting = {"messages": [{"role": "assistant", "content": "Hello, how can I help?"}]}
    whole = chat("u", "a", "v", "b")
    rows, left_out, _ = outcome(real(template), [greeting, whole])
    assert left_out[0]["reason"] == "template_error"
    assert "user" in left_out[0]["detail"]
    assert rows[0]["input_ids"] == reference_ids(template, "qwen3_6", whole["messages"])
    assert [text.removesuffix("<|im_end|>") for text in trained_text(rows[0], qwen())] == ["a", "b"]


def test_b14_control_markers_stored_in_an_answer():
    """llm-mlx pull 24: raw outputs were saved with their markers, which then stood twice in the text."""
    raw = "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>hi"
    rows, left_out, _ = outcome(real(GPTOSS, "gptoss"), [chat("u", raw), chat("u", "hi")])
    assert [row["source_row"] for row in rows] == [1]
    assert left_out[0]["reason"] == "control_markers_in_content"
    (row,), stats = rows_of(real(GPTOSS, "gptoss", normalize={"control_markers": "parse"}), [chat("u", raw)])
    structured = {"messages": [USER, {"role": "assistant", "content": "hi", "reasoning_content": "t"}]}
    (same,), _ = rows_of(real(GPTOSS, "gptoss"), [structured])
    one_and_the_same([row, same])
    assert stats.counts["control_markers_parsed"] == 1
    assert trained_text(row, tokenizer("gptoss")) == [raw + "<|return|>"]


@pytest.mark.parametrize(("template", "vocabulary"), [(QWEN3, "qwen3_6"), (QWEN36, "qwen3_6"), (GPTOSS, "gptoss")])
def test_b16_reasoning_under_each_of_its_names(template, vocabulary):
    """slime pull 330: a path that reads `content` alone lost the reasoning without notice."""
    said = [
        {"reasoning_content": "because", "content": "yes"},
        {"reasoning": "because", "content": "yes"},
        {"thinking": "because", "content": "yes"},
        {"content": "<think>\nbecause\n</think>\n\nyes"},
        {"content": "because\n</think>\n\nyes"},
    ]
    records = [{"messages": [USER, {"role": "assistant", **form}]} for form in said]
    rows, stats = rows_of(real(template, vocabulary), records)
    one_and_the_same(rows)
    (text,) = trained_text(rows[0], tokenizer(vocabulary))
    assert "because" in text
    assert "yes" in text
    assert stats.counts["reasoning_renamed"] == 2
    assert stats.counts["inline_reasoning_moved"] + stats.counts["lone_closing_think"] >= 2


@pytest.mark.parametrize("arguments", ['{"place": "X"}', {"place": "X"}])
def test_b02_the_one_call_of_older_logs_is_a_call(arguments):
    """It was left out without a word, and its message trained as an answer of nothing but a stop."""
    asked, found, end = {"role": "user", "content": "q"}, "sunny", {"role": "assistant", "content": "done"}
    called = {"name": "weather", "arguments": arguments}
    old = [asked, {"role": "assistant", "content": None, "function_call": called}, {"role": "function", "name": "weather", "content": found}, end]  # fmt: skip
    new = [asked, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}, {"role": "tool", "name": "weather", "content": found}, end]  # fmt: skip
    (row,), _, stats = outcome(real("trl/qwen3"), [{"messages": old}])
    (same,), _, _ = outcome(real("trl/qwen3"), [{"messages": new}])
    assert row["input_ids"] == same["input_ids"]
    assert row["loss_mask"] == same["loss_mask"]
    assert stats.counts["function_call_as_tool_call"] == 1
    (plain,), _, _ = outcome(real("trl/qwen3"), [{"messages": [asked, {**end, "function_call": None}]}])
    assert trained_text(plain, qwen()) == ["done<|im_end|>"]
    _, (refused,), _ = outcome(real("trl/qwen3"), [{"messages": [asked, {**end, "function_call": "auto"}]}])
    assert refused["reason"] == "bad_tool_call"
