"""What stands around an answer, told by rendering again: its prompt alone, and another text in its place."""

from __future__ import annotations

import re

import pytest
from templates_common import TRAINED, chat, check_cover, load, public, public_texts, spans, trained

from retok_dask.templates.probes import TOOLS, call
from retok_dask.types import Conversation, RecordRejected, RejectReason

NAMES = sorted(public_texts())
STAND_IN = "Standin"

OWN_ENDS = {
    "llama-cpp-python/Apriel-1.6-15b-Thinker-fixed": r"Here are my reasoning steps:\n$",
    "llama-cpp-python/CohereForAI-c4ai-command-r-plus-tool_use":
        r"<\|START_OF_TURN_TOKEN\|><\|SYSTEM_TOKEN\|>Write 'Action:'.*",
    "llama-cpp-python/Qwen-QwQ-32B": r"<think>\n</think>$",
    "llama-cpp-python/deepseek-ai-DeepSeek-V3.2": r"<think></think>$",
    "llama-cpp-python/google-gemma-4-31B-it-interleaved": r"<\|channel>thought\n<channel\|>$",
    "llama-cpp-python/llama-cpp-deepseek-r1": r"<think>\n$",
}  # fmt: skip
"""Templates that end each prompt with text that no written answer begins with: it opens or closes the reasoning, or
tells how tools are called, which stands behind the last message wherever that is."""

END_ALONE = [
    ("llama-cpp-python/deepseek-ai-DeepSeek-V3.2", True),
    ("llama-cpp-python/deepseek-ai-DeepSeek-V3.2", False),
    ("llama-cpp-python/deepseek-ai-DeepSeek-V4", True),
    ("llama-cpp-python/GLM-4.7-Flash", True),
    ("llama-cpp-python/poolside-Laguna-XS.2", True),
]
"""Templates that write ``</think>`` without its beginning before an answer, with thinking on or off."""

NEED_TOOLS = {
    "llama-cpp-python/CohereForAI-c4ai-command-r-plus-tool_use",
    "llama-cpp-python/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "llama-cpp-python/NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
}
"""Templates that walk through the tools without asking whether there are any."""

NEED_ANSWER = {"llama-cpp-python/mistralai-Ministral-3-14B-Reasoning-2512"}
"""Templates that refuse an assistant message of reasoning alone."""


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


def ask(name, *answered):
    """A conversation that this template takes: a question, and what is given after it."""
    return chat(("user", "ask"), *answered, tools=TOOLS if name in NEED_TOOLS else None)


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
            if prompt and name in OWN_ENDS:
                assert not row.text.startswith(prompt), "its prompts are how conversations begin"
                prompt, cut = re.subn(OWN_ENDS[name], "", prompt, flags=re.DOTALL)
                assert cut
            if not prompt or not row.text.startswith(prompt):
                continue
            compared += 1
            at = 0
            for kind, owner, text in spans(row):
                assert not (owner == message and kind in TRAINED and at < len(prompt)), (text, prompt[-60:])
                at += len(text)
    assert compared, "its prompts are not how its conversations begin: it belongs into OWN_ENDS"


@pytest.mark.parametrize("name", NAMES)
def test_conversations_without_tools_are_refused_by_those_that_are_named_alone(name):
    assert (whole(public(name), TALKS["turns"]) is None) == (name in NEED_TOOLS)


@pytest.mark.parametrize("content", ["\n\nfour", " \n four", "four\n\n", "\n four  ", "]four", "one"])
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_trained_from_its_first_character_to_its_last(name, content):
    """Where the text is a stand-in's with the answer in its place, the place of the answer is known."""
    template = public(name)
    compared = 0
    for reasoning in ({}, {"reasoning_content": "Ponder."}):
        for tail in ((), (("user", "more"), ("assistant", "two"))):
            talk, other = (
                ask(name, {"role": "assistant", "content": text, **reasoning}, *tail) for text in (content, STAND_IN)
            )
            row, stand_in = whole(template, talk), whole(template, other)
            before, found, after = stand_in.text.partition(STAND_IN)
            if not found or row.text != before + content + after:
                continue
            compared += 1
            begin, end, at = len(before), len(before) + len(content), 0
            for kind, owner, text in spans(row):
                if at < end and at + len(text) > begin:
                    assert (kind, owner) == ("content", 1), (text, row.text[-200:])
                at += len(text)
    assert compared or content != content.strip(), "a template may strip an answer, but not change one"


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_that_no_answer_follows_costs_no_record(name):
    """As completions end that ran out of tokens while the model still thought."""
    template = public(name)
    unended = {"role": "assistant", "reasoning_content": "Still pondering.", "content": ""}
    assert whole(template, ask(name, {**unended, "content": "some answer"})) is not None
    if name in NEED_ANSWER:
        with pytest.raises(RecordRejected) as refused:
            template.render_whole(ask(name, unended))
        assert refused.value.reason == RejectReason.template_error, "the template's own words"
        return
    row = template.render_whole(ask(name, unended))
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


@pytest.mark.parametrize(("name", "thinking"), END_ALONE)
def test_the_end_of_a_block_whose_beginning_is_left_out_is_not_the_models(name, thinking):
    """Not before a text, not before a call, not after results; what closes reasoning that is there is."""
    spec = {"kwargs": {"thinking": thinking, "enable_thinking": thinking}}
    template = load(public_texts()[name], spec)
    for talk in ("turns", "calls"):
        row = template.render_whole(TALKS[talk])
        assert re.search(r"(?<!<think>)</think>", row.text)
        assert not [text for text in trained(row) if "think>" in text]
        said = [text.strip() for kind, _, text in spans(row) if kind == "content"]
        assert said == ["one", "two"] if talk == "turns" else ["done", "two"]
    found = {
        owner: text for kind, owner, text in spans(template.render_whole(TALKS["reasoned"])) if kind == "reasoning"
    }
    closed = {owner: "".join(text.split()) for owner, text in found.items()}
    assert closed == ({1: "hmm</think>", 3: "so</think>"} if thinking else {})


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
