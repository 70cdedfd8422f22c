"""What stands around an answer, told by rendering again: its prompt alone, and another text in its place."""

from __future__ import annotations

import pytest
from templates_common import TRAINED, chat, check_cover, public, public_texts, spans, trained

from retok_dask.templates.probes import TOOLS, call
from retok_dask.types import Conversation, RecordRejected, RejectReason

NAMES = sorted(public_texts())
STAND_IN = "Standin"


def called(tag, **more):
    return {"role": "assistant", "content": "", "tool_calls": [call(tag)], **more}


def result(of):
    return {
        "role": "tool",
        "content": "found it",
        "tool_call_id": called(of)["tool_calls"][0]["id"],
        "name": "probe_weather",
    }


TALKS = {
    "turns": chat(("user", "ask"), ("assistant", "one"), ("user", "again"), ("assistant", "two")),
    "system": chat(("system", "rules"), ("user", "ask"), ("assistant", "one")),
    "two users": chat(("user", "ask"), ("user", "more"), ("assistant", "one")),
    "call": chat(("user", "ask"), called("b"), result("b"), ("assistant", "done"), tools=TOOLS),
    "calls": chat(
        ("user", "ask"), called("b"), result("b"), called("c"), result("c"), ("assistant", "done"),
        ("user", "again"), ("assistant", "two"), tools=TOOLS,
    ),
    "reasoned": chat(
        ("user", "ask"), called("b", reasoning_content="hmm"), result("b"),
        {"role": "assistant", "reasoning_content": "so", "content": "done"}, tools=TOOLS,
    ),
}  # fmt: skip


def whole(template, conversation):
    """The row and its text; None where the template refuses the conversation."""
    try:
        row = template.render_whole(conversation)
    except RecordRejected:
        return None
    check_cover(row)
    return row


def prompt_before(template, conversation, message):
    """What the template renders when this message is to be written; empty where it refuses to."""
    before = Conversation(conversation.messages[:message], conversation.tools)
    try:
        return template.reference_text(before, generation_prompt=True)
    except RecordRejected:
        return ""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_the_prompt_of_an_answer_holds_is_trained_with_the_answer(name):
    template = public(name)
    compared = 0
    for conversation in TALKS.values():
        row = whole(template, conversation)
        for message, said in enumerate(conversation.messages if row else ()):
            prompt = prompt_before(template, conversation, message) if message and said["role"] == "assistant" else ""
            if not prompt or not row.text.startswith(prompt):
                continue
            compared += 1
            at = 0
            for kind, owner, text in spans(row):
                assert not (owner == message and kind in TRAINED and at < len(prompt)), (text, prompt[-60:])
                at += len(text)
    if not compared:
        pytest.skip("this template's prompts are not how its conversations begin")


@pytest.mark.parametrize("content", ["\n\nfour", " \n four", "four\n\n", "\n four  ", "]four", "one"])
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_trained_from_its_first_character_to_its_last(name, content):
    """Where the text is a stand-in's with the answer in its place, the place of the answer is known."""
    template = public(name)
    for reasoning in ({}, {"reasoning_content": "Ponder."}):
        for tail in ((), (("user", "more"), ("assistant", "two"))):
            talk, other = (
                chat(("user", "ask"), {"role": "assistant", "content": text, **reasoning}, *tail)
                for text in (content, STAND_IN)
            )
            row, stand_in = whole(template, talk), whole(template, other)
            if stand_in is None or row is None:
                assert row is stand_in
                continue
            before, found, after = stand_in.text.partition(STAND_IN)
            if not found or row.text != before + content + after:
                continue
            begin, end, at = len(before), len(before) + len(content), 0
            for kind, owner, text in spans(row):
                if at < end and at + len(text) > begin:
                    assert (kind, owner) == ("content", 1), (text, row.text[-200:])
                at += len(text)


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_that_no_answer_follows_costs_no_record(name):
    """As completions end that ran out of tokens while the model still thought."""
    template = public(name)
    unended = {"role": "assistant", "reasoning_content": "Still pondering.", "content": ""}
    row = whole(template, chat(("user", "ask"), {**unended, "content": "some answer"}))
    if row is None:
        return
    try:
        row = template.render_whole(chat(("user", "ask"), unended))
    except RecordRejected as refused:
        if refused.reason != RejectReason.template_error:  # the template's own words
            raise
        return
    assert ("Still pondering." in "".join(trained(row))) == ("Still pondering." in row.text)


def test_a_turn_ends_with_the_marker_that_only_the_next_message_prints():
    """Beside calls that end with a token of their own."""
    row = public("llama-cpp-python/Apertus-8B-Instruct").render_whole(TALKS["calls"])
    assert [text.partition("]<")[2] or text for text in trained(row)] == [
        "|tools_suffix|>", "|tools_suffix|>", "done<|assistant_end|>", "two",
    ]  # fmt: skip


def test_what_closes_the_results_of_tools_is_not_the_models():
    row = public("trl/deepseek_r1_distill").render_whole(TALKS["calls"])
    answers = [(kind, text) for kind, owner, text in spans(row) if owner == 5]
    assert answers[:2] == [("header", "<｜tool▁outputs▁end｜>"), ("content", "done")]


def test_reasoning_that_is_how_the_answer_begins_where_the_template_drops_it():
    name = "llama-cpp-python/Apriel-1.6-15b-Thinker-fixed"
    talk = chat(
        ("user", "ask"),
        {"role": "assistant", "reasoning_content": "So four", "content": "So four it is"},
        ("user", "more"),
        ("assistant", "two"),
    )
    row = public(name).render_whole(talk)
    assert ("content", 1, "So four it is") in [(kind, owner, text.strip()) for kind, owner, text in spans(row)]
    assert row.counts["reasoning_dropped"] == 1
