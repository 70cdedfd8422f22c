"""Tool output that sits inside an answer, between markers of the data's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import kind_text, outcome, qwen, trained_text
from reported import chat, real

from retok_dask.completions import layout_for
from retok_dask.errors import RecipeError
from retok_dask.kernel.tooloutput import tool_output
from retok_dask.types import Conversation, Kind, Record, Rendered

OPENING, CLOSING = "```output\n", "\n```"
SUM = f"Let me run it.\n\n{OPENING}42{CLOSING}\n\nIt is 42."
MARKED = {"tool_output_markers": [OPENING, CLOSING]}


def test_output_between_markers_is_not_trained():
    (plain,), _, _ = outcome(real("trl/qwen3"), [chat("6 * 7?", SUM)])
    (row,), left_out, stats = outcome(real("trl/qwen3", dataset=MARKED), [chat("6 * 7?", SUM)])
    assert not left_out
    assert row["input_ids"] == plain["input_ids"]
    before, after = trained_text(row, qwen())
    assert before.strip() == "Let me run it."
    assert after.strip() == "It is 42.<|im_end|>"
    (output,) = [text for kind, owner, text in kind_text(row, qwen()) if (kind, owner) == ("tool", 1)]
    assert "42" in output
    assert stats.counts["tool_output_in_answer"] == 1
    assert "tool_output_not_closed" not in stats.counts


def test_output_that_is_not_closed_reaches_to_the_end():
    said = {"role": "assistant", "content": f"a\n\n{OPENING}42", "reasoning_content": f"r\n\n{OPENING}7{CLOSING}\n\ns"}
    record = {"messages": [{"role": "user", "content": f"{OPENING}mine{CLOSING}"}, said]}
    (row,), _, stats = outcome(real("trl/qwen3", dataset=MARKED), [record])
    assert [text.strip() for text in trained_text(row, qwen())] == ["<think>\nr", "s\n</think>\n\na", "<|im_end|>"]
    assert stats.counts["tool_output_in_answer"] == 2
    assert stats.counts["tool_output_not_closed"] == 1


@pytest.mark.parametrize("policy", ["assistant", "last_assistant", "final_answer", "completion"])
def test_no_flag_and_no_policy_of_answers_trains_it(policy):
    record = chat("6 * 7?", SUM)
    record["messages"][1]["train"] = True
    (row,), _, _ = outcome(real("trl/qwen3", dataset=MARKED, mask=policy), [record])
    assert "42\n" not in "".join(trained_text(row, qwen()))
    assert len(trained_text(row, qwen())) == 2
    (row,), _, _ = outcome(real("trl/qwen3", dataset=MARKED, mask=["tool"]), [chat("6 * 7?", SUM)])
    assert "42" in "".join(trained_text(row, qwen()))


@pytest.mark.parametrize("markers", [("<tool_response>", "</tool_response>"), ("<tool_call>", "</tool_call>")])
def test_markers_that_are_control_tokens_stand_in_answers_where_the_data_set_names_them(markers):
    text = f"Let me run it.\n\n{markers[0]}\n42\n{markers[1]}\n\nIt is 42."
    made = real("trl/qwen3", dataset={"tool_output_markers": markers})
    (row,), left_out, _ = outcome(made, [chat("6 * 7?", text)])
    assert not left_out
    assert row["input_ids"].count(qwen().added_tokens[markers[0]]) == 1
    assert [part.strip() for part in trained_text(row, qwen())] == ["Let me run it.", "It is 42.<|im_end|>"]
    rows, (refused,), _ = outcome(real("trl/qwen3"), [chat("6 * 7?", text)])
    assert (rows, refused["reason"]) == ([], "control_markers_in_content")
    # from memory, for prompts, and rendered whole as audits do, the same
    (item,) = layout_for(made.dataset)(Record("f", 0, 0, None, chat("6 * 7?", text)))
    assert made.template.render_whole(item).text == qwen().decode(row["input_ids"])
    (again,) = made.encode([Conversation(chat("6 * 7?", text)["messages"])])
    assert again["input_ids"].tolist() == row["input_ids"]
    asked = chat("6 * 7?", text)
    asked["messages"].append({"role": "user", "content": "Sure?"})
    (prompt,), _, _ = outcome(real("trl/qwen3", dataset={"tool_output_markers": markers, "mode": "prompts"}), [asked])
    assert prompt["num_loss_tokens"] == 0
    # the other tokens stay refused
    mixed = chat("6 * 7?", f"{text}<|im_end|>")
    rows, (refused,), _ = outcome(made, [mixed])
    assert (rows, refused["reason"]) == ([], "control_markers_in_content")


def test_think_tags_around_output_are_reasoning_and_its_record_is_not_written():
    record = chat("6 * 7?", "Let me run it.\n\n<think>\n42\n</think>\n\nIt is 42.")
    made = real("trl/qwen3", dataset={"tool_output_markers": ["<think>", "</think>"]})
    rows, (refused,), _ = outcome(made, [record])
    assert (rows, refused["reason"]) == ([], "message_not_rendered")


def test_markers_are_some_text():
    with pytest.raises(RecipeError, match="some text"):
        real("trl/qwen3", dataset={"tool_output_markers": ["", "x"]})


PARTS = st.lists(st.sampled_from(["<<", ">>", "a", "b ", "\n"]), max_size=12).map("".join)


@given(PARTS, PARTS, st.sampled_from([("<<", ">>"), ("<<", "<<")]))
def test_spans_still_cover_the_text_once(first, second, markers):
    text = f"H{first}|{second}S"
    kinds = [Kind.header, Kind.reasoning, Kind.content, Kind.stop]
    starts = [0, 1, 1 + len(first), len(text) - 1]
    filled = [n for n, (a, b) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True)) if a < b]
    row = Rendered(text, [starts[n] for n in filled], [int(kinds[n]) for n in filled], [0] * len(filled))
    marked = tool_output(markers)(row)
    ends = [*marked.starts[1:], len(text)]
    assert marked.starts[0] == 0
    assert all(a < b for a, b in zip(marked.starts, ends, strict=True))
    for start, end, kind in zip(marked.starts, ends, marked.kinds, strict=True):
        part = text[start:end]
        assert (kind == Kind.tool) == part.startswith(markers[0])
        assert kind == Kind.tool or markers[0] not in part
