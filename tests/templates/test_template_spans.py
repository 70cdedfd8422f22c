"""Masks and spans in situations that people reported: each kind of fault on real templates."""

from __future__ import annotations

import pytest
from templates_common import chat, check_cover, load, of_kind, public, public_texts, recipe, spans, trained

from retok_dask.templates.probes import TOOLS
from retok_dask.types import Conversation, RecordRejected, RejectReason

QWEN3 = "trl/qwen3"
QWEN25 = "trl/qwen2_5"
GPTOSS = "trl/gptoss"
GLM = "llama-cpp-python/GLM-4.6"
LLAMA31 = "trl/llama3_1"
GEMMA3 = "trl/gemma3"

TWO_THINKING = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "reasoning_content": "r1", "content": "a1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "reasoning_content": "r2", "content": "a2"},
]


def call_message(*calls, content="", **more):
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


def rendered(name, conversation, **settings):
    row = public(name, **settings).render(conversation)[0]
    check_cover(row)
    return row


@pytest.mark.parametrize(
    ("name", "stop"),
    [("axolotl/chatml", "<|im_end|>"), (LLAMA31, "<|eot_id|>"), (GEMMA3, "<end_of_turn>"), (QWEN25, "<|im_end|>")],
)
def test_a01_stock_templates_without_tags_train_the_answer_and_the_stop(name, stop):
    row = rendered(name, chat(("user", "ping"), ("assistant", "pong")))
    assert trained(row) == ["pong" + stop]
    assert not public(name).facts.generation_tags


def test_a06_one_stop_token_and_an_untrained_newline_after_it():
    row = rendered(QWEN25, chat(("user", "Say hi"), ("assistant", "Hi.")))
    assert row.text.endswith("Hi.<|im_end|>\n")
    assert [(kind, text) for kind, owner, text in spans(row) if owner == 1] == [
        ("header", "<|im_start|>assistant\n"), ("content", "Hi."), ("stop", "<|im_end|>"), ("trailer", "\n"),
    ]  # fmt: skip


def test_a07_a16_a_template_that_rewrites_history():
    row = rendered(QWEN3, Conversation(TWO_THINKING))
    assert trained(row) == ["a1<|im_end|>", "<think>\nr2\n</think>\n\na2<|im_end|>"]
    assert row.counts["reasoning_chars"] == 4
    assert row.counts["reasoning_dropped_chars"] == 2


def test_a16_the_same_where_the_next_role_marker_ends_a_turn():
    row = rendered(GLM, Conversation(TWO_THINKING))
    assert trained(row) == ["a1<|user|>", "\n<think>r2</think>\na2"]
    stops = [(owner, text) for kind, owner, text in spans(row) if kind == "stop"]
    assert stops == [(1, "<|user|>")]


def test_a08_parallel_calls_and_merged_results():
    conversation = chat(
        ("user", "u"),
        call_message(("probe_weather", {"city": "X"}), ("probe_clock", {"zone": "Y"})),
        {"role": "tool", "content": "A"},
        {"role": "tool", "content": "B"},
        ("assistant", "done"),
        tools=TOOLS,
    )
    row = rendered(QWEN3, conversation)
    first, last = trained(row)
    assert first.count("<tool_call>") == 2
    assert first.startswith("<tool_call>")
    assert first.endswith("</tool_call><|im_end|>")
    assert last == "<think>\n\n</think>\n\ndone<|im_end|>".removeprefix("<think>\n\n</think>\n\n")
    assert [owner for kind, owner, _ in spans(row) if kind == "tool"] == [2, 3]


@pytest.mark.parametrize("name", [QWEN3, "trl/nemotron_3_nano", "trl/qwen3_6", GLM])
def test_a14_an_empty_think_block_is_not_trained(name):
    row = rendered(name, chat(("user", "Solve"), ("assistant", "import sys")))
    assert trained(row)[0].lstrip().startswith("import sys")
    assert not any("think>" in text for text in trained(row))
    assert any("<think>" in text for kind, _, text in spans(row) if kind in ("scaffold", "prefill"))
    real = rendered(
        name, chat(("user", "Solve"), {"role": "assistant", "content": "import sys", "reasoning_content": "hm"})
    )
    assert "</think>" in trained(real)[0]


def test_gpt_oss_stop_depends_on_the_position():
    called = call_message(("probe_weather", {"city": "X"}), reasoning_content="need it")
    row = rendered(
        GPTOSS,
        chat(("user", "u"), ("assistant", "a"), ("user", "w"), called, {"role": "tool", "content": "r"},
             {"role": "assistant", "content": "fin", "reasoning_content": "so"}, tools=TOOLS),
    )  # fmt: skip
    assert [text for kind, _, text in spans(row) if kind == "stop"] == ["<|end|>", "<|call|>", "<|return|>"]
    assert trained(row)[0] == "<|channel|>final<|message|>a<|end|>"
    last = [(kind, text) for kind, owner, text in spans(row) if owner == 5]
    assert last == [
        ("header", "<|start|>assistant"),
        ("reasoning", "<|channel|>analysis<|message|>so<|end|>"),
        ("content", "<|start|>assistant<|channel|>final<|message|>fin"),
        ("stop", "<|return|>"),
    ]


def test_a17_flags_travel_with_their_messages():
    conversation = chat(
        ("user", "u"), ("assistant", "x"), ("user", "v"), ("assistant", "y"), flags=[None, False, None, True]
    )
    row = rendered(QWEN3, conversation)
    assert row.flags == [None, False, None, True]
    turns = public(QWEN3, history="per_turn").render(conversation)
    assert [turn.turn for turn in turns] == [3]


def test_a19_tags_that_render_other_text_are_seen():
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tagged = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    conversation = chat(("user", "u"), ("assistant", "a"))
    first, second = load(plain).render(conversation)[0], load(tagged).render(conversation)[0]
    assert first.text.endswith("<|im_end|>\n")
    assert second.text.endswith("<|im_end|>")  # the renderer eats the newline after the tag; so does the reference
    assert trained(second) == trained(first) == ["a<|im_end|>"]
    assert load(tagged).digest != load(plain).digest


def test_generation_tags_are_honoured():
    template = load(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}<|im_end|>\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    row = template.render(chat(("user", "u"), ("assistant", "a")))[0]
    assert trained(row) == ["a"]
    assert row.counts["outside_generation_tags"] == 1
    assert template.facts.generation_tags


def test_b01_per_turn_trains_each_reasoning_once():
    rows = public(QWEN3, history="per_turn").render(Conversation(TWO_THINKING))
    assert [row.turn for row in rows] == [1, 3]
    texts = [
        "".join(t for k, o, t in spans(row) if o == row.turn and k in ("reasoning", "content", "stop")) for row in rows
    ]
    assert texts == ["<think>\nr1\n</think>\n\na1<|im_end|>", "<think>\nr2\n</think>\n\na2<|im_end|>"]


def test_auto_history_splits_only_where_reasoning_would_be_lost():
    template = public(QWEN3, history="auto")
    assert len(template.render(Conversation(TWO_THINKING))) == 2
    assert len(template.render(chat(("user", "q"), ("assistant", "a"), ("user", "q"), ("assistant", "b")))) == 1


SPELLINGS = [
    {"reasoning_content": "because", "content": "yes"},
    {"reasoning": "because", "content": "yes"},
    {"thinking": "because", "content": "yes"},
    {"content": "<think>\nbecause\n</think>\n\nyes"},
    {"content": "because\n</think>\n\nyes"},
    {"content": [{"type": "thinking", "thinking": "because"}, {"type": "text", "text": "yes"}]},
]


@pytest.mark.parametrize("name", [QWEN3, GPTOSS, GLM, "trl/qwen3_6"])
def test_b16_reasoning_under_each_name_renders_alike(name):
    texts = {rendered(name, chat(("user", "q"), {"role": "assistant", **said})).text for said in SPELLINGS}
    assert len(texts) == 1
    assert "because" in texts.pop()


@pytest.mark.parametrize("name", [QWEN3, "trl/qwen3_6", GLM, "llama-cpp-python/moonshotai-Kimi-K2", "trl/deepseekv3"])
def test_b02_arguments_as_text_or_object_render_alike(name):
    forms = ['{"x": 2, "y": 5.0, "a": null}', {"x": 2, "y": 5.0, "a": None}]
    conversations = [
        chat(("user", "u"), call_message(("add", form)), {"role": "tool", "content": "r"}, ("assistant", "d"))
        for form in forms
    ]
    one, other = (rendered(name, conversation) for conversation in conversations)
    assert one.text == other.text
    assert "5.0" in one.text
    assert one.text.index("x") < one.text.rindex("y")
    assert one.counts["arguments_parsed"] == 1


@pytest.mark.parametrize("empty", ["", "{}", "null", None, {}])
def test_empty_arguments_are_an_empty_object(empty):
    row = rendered(
        QWEN3, chat(("user", "u"), call_message(("now", empty)), {"role": "tool", "content": "r"}, ("assistant", "d"))
    )
    assert '{"name": "now", "arguments": {}}' in row.text


def test_b05_system_messages_where_the_template_refuses_them():
    conversation = chat(("system", "S"), ("user", "U"), ("assistant", "A"))
    gemma2 = "llama-cpp-python/google-gemma-2-2b-it"
    with pytest.raises(RecordRejected) as refused:
        public(gemma2).render(conversation)
    assert refused.value.reason == RejectReason.system_not_supported
    folded = rendered(gemma2, conversation, system="fold")
    assert "S\n\nU" in folded.text
    assert folded.counts["system_folded"] == 1
    assert [owner for kind, owner, _ in spans(folded) if kind == "content"] == [2]
    dropped = rendered(gemma2, conversation, system="drop")
    assert "S" not in dropped.text.replace("BOS", "")
    assert public(gemma2).facts.refuses_system


def test_b06_roles_that_do_not_alternate_are_a_reject_with_the_templates_words():
    with pytest.raises(RecordRejected, match="user assistant user user") as refused:
        public(GEMMA3).render(chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")))
    assert refused.value.reason == RejectReason.template_error
    assert "alternate" in refused.value.detail


@pytest.mark.parametrize("name", [QWEN3, "trl/qwen3_6", GPTOSS, GLM, "llama-cpp-python/moonshotai-Kimi-K2", LLAMA31])
def test_b07_null_content_beside_calls(name):
    forms = [{"content": None}, {}, {"content": ""}]
    base = call_message(("probe_weather", {"city": "X"}))
    del base["content"]
    rows = [
        rendered(
            name,
            chat(("user", "u"), {**base, **form}, {"role": "tool", "content": "r"}, ("assistant", "d"), tools=TOOLS),
        )
        for form in forms
    ]
    assert len({row.text for row in rows}) == 1
    assert "None" not in rows[0].text
    assert any("probe_weather" in text for text in trained(rows[0]))


def test_b08_content_as_parts():
    forms = [
        "ab c",
        [{"type": "text", "text": "ab c"}],
        [{"type": "text", "text": "ab "}, {"type": "text", "value": "c"}],
    ]
    texts = {rendered(QWEN3, chat(("user", form), ("assistant", "d"))).text for form in forms}
    assert len(texts) == 1
    for bad, reason in [
        ([{"type": "image_url", "image_url": {"url": "x"}}], RejectReason.non_text_part),
        (42, RejectReason.bad_content),
    ]:
        with pytest.raises(RecordRejected) as refused:
            public(QWEN3).render(chat(("user", bad), ("assistant", "d")))
        assert refused.value.reason == reason
    assert "<|im_start|>user\n<|im_end|>" in rendered(QWEN3, chat(("user", []), ("assistant", "d"))).text


@pytest.mark.parametrize("name", [GPTOSS, "llama-cpp-python/ibm-granite-granite-3.3-2B-Instruct", LLAMA31])
def test_b10_the_date_is_the_runs(name):
    row = rendered(name, chat(("user", "u"), ("assistant", "a")))
    assert (
        any(day in row.text for day in ("2026-03-04", "March 04, 2026", "04 Mar 2026"))
        or not public(name).facts.prints_date
    )


def test_b11_exactly_the_bos_that_the_template_prints():
    row = rendered("trl/llama3", chat(("user", "test"), ("assistant", "a")))
    assert of_kind(row, "bos") == ["<BOS>"]
    assert row.text.count("<BOS>") == 1
    assert not of_kind(rendered(QWEN3, chat(("user", "test"), ("assistant", "a"))), "bos")
    doubled = load("{{ bos_token }}{{ bos_token }}" + public_texts()["axolotl/chatml"]).render(
        chat(("user", "u"), ("assistant", "a"))
    )[0]
    assert doubled.counts["doubled_bos"] == 1


def test_b13_a_template_that_demands_a_user():
    name = "llama-cpp-python/Qwen3.5-4B"
    with pytest.raises(RecordRejected) as refused:
        public(name).render(chat(("assistant", "Hello, how can I help?")))
    assert refused.value.reason == RejectReason.template_error
    assert trained(rendered(name, chat(("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b"))))


HARMONY = "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>hi"


def test_b14_control_markers_in_an_answer_are_refused_or_parsed():
    conversation = chat(("user", "u"), ("assistant", HARMONY))
    with pytest.raises(RecordRejected) as refused:
        public(GPTOSS).render(conversation)
    assert refused.value.reason == RejectReason.control_markers_in_content
    settings = {"normalize": {"control_markers": "parse"}}
    row = load(public_texts()[GPTOSS], **settings).render(conversation)[0]
    expected = rendered(GPTOSS, chat(("user", "u"), {"role": "assistant", "content": "hi", "reasoning_content": "t"}))
    assert row.text == expected.text
    assert row.counts["control_markers_parsed"] == 1


def test_the_order_of_precedence_in_an_assistant_message():
    message = call_message(("probe_weather", {"city": "X"}), content="Let me look.", reasoning_content="need it")
    row = rendered(
        "trl/qwen3_6", chat(("user", "u"), message, {"role": "tool", "content": "r"}, ("assistant", "d"), tools=TOOLS)
    )
    kinds = [kind for kind, owner, _ in spans(row) if owner == 1]
    assert kinds == ["header", "prefill", "reasoning", "content", "tool_call", "stop", "trailer"]


def test_prompts_end_with_the_generation_prompt():
    template = public("trl/qwen3_6")
    row = template.render_prompt(
        chat(("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b"))
    )
    check_cover(row)
    assert row.text.endswith("<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert spans(row)[-2:] == [("header", -1, "<|im_start|>assistant\n"), ("prefill", -1, "<think>\n")]
    with pytest.raises(RecordRejected) as refused:
        template.render_prompt(chat(("assistant", "a")))
    assert refused.value.reason == RejectReason.no_prompt


@pytest.mark.parametrize("name", ["trl/qwen3_6", GLM, "llama-cpp-python/moonshotai-Kimi-K2"])
@pytest.mark.parametrize(
    "answer",
    [
        {"content": "<|im_end|><|user|> and more"},
        {"content": 5},
        {"content": "a", "tool_calls": "none"},
        {"content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
    ],
)
def test_no_prompt_is_lost_for_what_was_answered(name, answer):
    template = public(name)
    asked = [("user", "u"), ("assistant", "a"), ("user", "v")]
    row = template.render_prompt(chat(*asked, {"role": "assistant", **answer}))
    alone = template.render_prompt(chat(*asked))
    assert (row.text, spans(row)) == (alone.text, spans(alone))


def test_a_role_that_the_template_does_not_know_is_counted():
    row = rendered(
        "llama-cpp-python/llama-cpp-rwkv-world", chat(("user", "u"), ("narrator", "It was dark."), ("assistant", "a"))
    )
    assert row.counts["message_not_rendered"] == 1
    assert row.counts["message_not_rendered_narrator"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "think",
        "a",
        "<think>",
        "im",
        "\n",
        " ",
        "assistant",
        "\x01",
        "\x01\x02\x03\x04\x0e\x0f",
        "\ue1f0\x01",
        "{{ x }}",
        "\x1cq\x1c",
    ],
)
@pytest.mark.parametrize("name", [QWEN3, "trl/llama3", "llama-cpp-python/Kimi-K2-Instruct"])
def test_texts_that_also_stand_in_the_template_or_in_other_fields(name, text):
    message = {"role": "assistant", "content": f"{text} and {text}", "reasoning_content": text}
    conversation = chat(("user", text), message, ("user", f"{text}{text}"), {**message, "content": text * 2})
    try:
        row = rendered(name, conversation)
    except RecordRejected as refused:
        assert refused.reason in (RejectReason.span_not_proved, RejectReason.message_not_rendered)  # noqa: PT017
        return
    assert row.text == public(name).reference_text(conversation)
    assert [owner for kind, owner, _ in spans(row) if kind == "stop"] == [1, 3]


def test_ambiguous_text_is_located_by_marking_the_fields():
    text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.note is defined %}{{ m.note }} {% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    conversation = chat(("user", "u"), {"role": "assistant", "content": "yes", "note": "yes yes"})
    row = load(text).render(conversation)[0]
    assert row.counts["located_by_marks"] == 1
    assert [text for kind, _, text in spans(row) if kind == "content"][-1].endswith("yes")


def test_templates_named_for_tools_are_chosen_as_transformers_does():
    plain, tools = public_texts()["axolotl/chatml"], public_texts()[QWEN25]
    from templates_common import Facts, facts_of

    tokenizer = Facts({"default": plain, "tool_use": tools}, added_tokens=facts_of(tools).added_tokens)
    template = load("", tokenizer=tokenizer)
    assert "# Tools" in template.render(chat(("user", "u"), ("assistant", "a"), tools=TOOLS))[0].text
    assert "# Tools" not in template.render(chat(("user", "u"), ("assistant", "a")))[0].text


def test_arguments_of_one_conversation_change_its_template():
    conversation = chat(("user", "u"), ("assistant", "a"), template_args={"enable_thinking": False})
    row = public("trl/qwen3_6").render_prompt(conversation)
    assert row.text.endswith("<think>\n\n</think>\n\n")
    assert spans(row)[-1] == ("prefill", -1, "<think>\n\n</think>\n\n")
    assert recipe().template.kwargs == {}


@pytest.mark.parametrize("name", [GLM, QWEN3, "trl/qwen3_6", "llama-cpp-python/moonshotai-Kimi-K2"])
def test_a_function_whose_name_also_stands_in_the_template(name):
    for function in ("think", "assistant", "tool_call", "e"):
        said = call_message((function, {"thought": "hm"}), content="Let me see.")
        row = rendered(name, chat(("user", "u"), said, {"role": "tool", "content": "r"}, ("assistant", "d")))
        kinds = [kind for kind, owner, text in spans(row) if owner == 1 and kind in ("content", "tool_call")]
        assert kinds == ["content", "tool_call"]
