"""Laws that hold for any conversation: the reference's text, covered once, each field in its own span."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from templates_common import check_cover, public, spans, unchecked

from retok_dask.templates import ChatTemplate
from retok_dask.types import Conversation, RecordRejected

PIECES = [
    "", " ", "\n", "\n\n", "\t", "\r\n", "a", "word ", "yes", "None", "true", "{{ x }}", "{% if %}", "<|im_end|>", "<think>", "</think>",
    "</tool_call>", "<b>", "&amp;", '"', "\\", "'", "é", "e\u0301", "中文", "😀", "👩‍👩‍👧", "\u2028", "\u0085", "\xa0", "\u200b", "\ufeff", "\x00",
    "\x01", "\x02", "\x03\x04", "\x1c", "\x1f", "\ue1f0", "\ue1f1", "\U000f0000", "\U000fcaf0", "0", "1.50", "1e5", "-", "ı", "ß", "İ",
]  # fmt: skip

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=6).map("".join)
plain = st.lists(st.sampled_from([p for p in PIECES if "<" not in p]), max_size=6).map("".join)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), texts
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(texts, inner, max_size=2)),
    max_leaves=5,
)
keys = st.text("abcxyz_", min_size=1, max_size=5)


@st.composite
def conversations(draw):
    messages = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        said = {"role": "assistant", "content": draw(plain)}
        if draw(st.booleans()):
            said["reasoning_content"] = draw(plain)
        if draw(st.booleans()):
            arguments = draw(st.dictionaries(keys, values, max_size=3))
            said["tool_calls"] = [
                {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
            ]
            messages += [said, {"role": "tool", "content": draw(texts), "tool_call_id": "call00001", "name": "look_up"}]
            said = {"role": "assistant", "content": draw(plain)}
        messages.append(said)
    tools = [
        {
            "type": "function",
            "function": {
                "name": "look_up",
                "description": draw(texts),
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    return Conversation(messages, tools if draw(st.booleans()) else None)


FAMILIES = [
    "trl/qwen3", "trl/qwen3_6", "trl/gptoss", "trl/llama3_1", "llama-cpp-python/GLM-4.6", "llama-cpp-python/moonshotai-Kimi-K2",
    "llama-cpp-python/deepseek-ai-DeepSeek-V3.1", "trl/gemma4_v5", "axolotl/mistral_v3_tekken", "llama-cpp-python/MiniMax-M2",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(conversation=conversations())
def test_any_conversation(name, conversation):
    template = unchecked(public(name, control_tokens="allow"))
    try:
        row = template.render(conversation)[0]
    except RecordRejected as refused:
        assert refused.detail  # noqa: PT017  a reject is allowed, with its words
        return
    check_cover(row)
    assert row.text == template.reference_text(conversation)
    assert "".join(text for _, _, text in spans(row)) == row.text
    order = [owner for kind, owner, _ in spans(row) if kind in ("content", "reasoning", "tool_call")]
    assert order == sorted(order)
    for number, message in enumerate(conversation.messages):
        if message["role"] == "assistant":
            said = "".join(
                text
                for kind, owner, text in spans(row)
                if owner == number and kind in ("content", "tool_call", "reasoning")
            )
            for field in ("content",):
                if message[field].strip() and "content_dropped" not in row.counts:
                    assert message[field].strip() in said


@pytest.mark.parametrize("name", FAMILIES[:5])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_what_was_rendered_before_changes_nothing(name, conversation):
    """A template that remembers thousands of rows reads the next one as a new process does."""
    warm = public(name, control_tokens="allow")
    fresh = ChatTemplate.restore(warm.reduce())
    answers = []
    for template in (warm, fresh):
        try:
            row = template.render(conversation)[0]
        except RecordRejected as refused:
            answers.append((refused.reason, refused.detail))
        else:
            answers.append((row.text, spans(row), row.counts))
    assert answers[0] == answers[1]


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**20), 10**20).map(float),
    st.tuples(st.integers(-(10**6), 10**6), st.integers(0, 12)).map(lambda pair: pair[0] / 10 ** pair[1]),
    st.floats(1e14, 1e17),
)


@pytest.mark.parametrize("name", ["trl/qwen3", "llama-cpp-python/GLM-4.6", "trl/gptoss"])
@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2)), min_size=1, max_size=4))
def test_numbers_are_printed_as_the_reference_prints_them(name, numbers):
    call = {"name": "look_up", "arguments": {f"n{place}": number for place, number in enumerate(numbers)}}
    conversation = Conversation(
        [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        ]
    )
    template = unchecked(public(name))
    assert template.render(conversation)[0].text == template.reference_text(conversation)


LONG = plain.map(lambda text: text * 40)
INTEGERS = st.integers(-(2**62), 2**62)


@given(st.dictionaries(plain, st.one_of(plain, LONG, INTEGERS, st.booleans(), st.none(), st.lists(LONG)), max_size=3))
@settings(max_examples=100, deadline=None)
def test_tool_arguments_are_written_as_json_writes_them(arguments):
    _check_arguments(arguments)


def test_every_character_is_written_as_json_writes_it():
    """Long texts are quoted by another library than short ones."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    for start in range(0, len(points), 1 << 14):
        _check_arguments({"text": "".join(map(chr, points[start : start + (1 << 14)]))})


def _check_arguments(arguments):
    call = {"name": "look_up", "arguments": arguments}
    asked, said = {"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}
    text = unchecked(public("trl/qwen3")).render(Conversation([asked, said]))[0].text
    assert f'"arguments": {json.dumps(arguments, ensure_ascii=False)}}}' in text


@given(st.lists(st.tuples(texts, plain), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_escaping_changes_no_text(turns):
    messages = [
        m for asked, said in turns for m in ({"role": "user", "content": asked}, {"role": "assistant", "content": said})
    ]
    escaped = public("trl/qwen3")
    try:
        row = escaped.render(Conversation(messages))[0]
    except RecordRejected:
        return
    tokens = escaped.controls.tokens
    for start, end in row.escapes:
        assert start == end or row.text[start:end] in tokens
    assert row.escapes == sorted(row.escapes)
    for (_, end), (start, _) in zip(row.escapes, row.escapes[1:], strict=False):
        assert end <= start
    assert sum(1 for a, b in row.escapes if a < b) == sum(len(escaped.controls.find(asked)) for asked, _ in turns)
