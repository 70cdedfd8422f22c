"""What the audit says, what history costs, and that a restored template needs no new proof."""

from __future__ import annotations

import json
import pickle

import pytest
import yaml
from templates_common import chat, load, public, public_texts, trained
from typer.testing import CliRunner

from retok_dask.cli import app
from retok_dask.demo import qwen_tokenizer_spec
from retok_dask.recipe import NormalizeSpec
from retok_dask.templates import ChatTemplate, audit, history_costs, normalize_conversation, prove
from retok_dask.types import Conversation, RecordRejected, RejectReason

THINKING = Conversation(
    [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "reasoning_content": "r" * 50, "content": "a1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "reasoning_content": "s" * 30, "content": "a2"},
    ]
)
PLAIN = chat(("user", "u"), ("assistant", "a"))


def row_of(found, fact):
    return next(row for row in found.rows if row.fact == fact)


def test_facts_of_a_thinking_template():
    found = audit(public("trl/qwen3"), [THINKING, PLAIN])
    assert found.records == 2
    drops = row_of(found, "drops reasoning")
    assert (drops.value, drops.count, drops.share) == ("of earlier turns", 1, 0.5)
    assert row_of(found, "header").value == repr("<|im_start|>assistant\n")
    assert row_of(found, "stop").value == repr("<|im_end|>")
    assert row_of(found, "prefix-stable").value.startswith("no")
    assert row_of(found, "generation tags").value == "none"
    assert row_of(found, "scaffold").count == 1
    assert row_of(found, "scaffold").example == repr("<think>\n\n</think>\n\n")
    assert found.history["whole"].rows == 2
    assert found.history["per_turn"].rows == 3
    assert found.history["auto"].rows == 3
    assert "drops reasoning" in found.to_text()
    assert set(found.to_dict()) == {"records", "rows", "rejected", "roles", "history", "settings"}


@pytest.mark.parametrize(
    ("name", "fact", "value"),
    [
        ("trl/gemma3", "refuses", "system after the start"),
        ("trl/gemma3", "prefix-stable", "yes"),
        ("llama-cpp-python/GLM-4.6", "stop", "the next role marker"),
        ("trl/gptoss", "date", "prints the run's date"),
        ("trl/qwen3_6", "prefill", repr("<think>\n")),
        ("trl/smolvlm", "called with", "contents as lists of parts"),
        ("trl/deepseekv3", "called with", "arguments as JSON text"),
        ("trl/qwen3_training", "generation tags", "yes"),
        ("llama-cpp-python/llama-cpp-rwkv-world", "swallows", "tool results"),
        ("trl/gptoss", "tools", "prints calls, but only the first of several"),
    ],
)
def test_facts_of_public_templates(name, fact, value):
    assert value in row_of(audit(public(name)), fact).value


def test_rejects_are_counted_in_the_audit():
    found = audit(public("trl/gemma3"), [PLAIN, chat(("user", "u"), ("user", "v"), ("assistant", "a"))])
    assert found.rejected == {"template_error": 1}
    assert found.roles == {"user assistant": 1, "user user assistant": 1}


def test_keys_of_messages_that_nothing_reads_are_listed():
    """speculators pull 346: reasoning under a name that nobody maps is lost without notice."""
    said = {"role": "assistant", "content": "a", "chain_of_thought": "hm", "reasoning": "known"}
    found = audit(public("trl/qwen3"), [chat(("user", "u"), said), PLAIN, chat(("user", "u"), ("user", "v"), said)])
    row = row_of(found, "message key 'chain_of_thought'")
    assert (row.count, row.example) == (2, repr("hm"))
    assert not [row for row in found.rows if row.fact == "message key 'reasoning'"]


def test_history_is_measured_on_records_from_everywhere():
    """Not on the first ones alone, which are those of one data set: reasoning of the others is lost all the same."""
    found = audit(public("trl/qwen3"), [*[PLAIN] * 400, *[THINKING] * 200])
    whole = found.history["whole"]
    assert 100 <= whole.records <= 200
    assert whole.reasoning_lost > 0
    assert f"of {whole.records} records" in found.to_text()


def test_history_costs():
    costs = history_costs(public("trl/qwen3"), [THINKING, PLAIN])
    assert costs["whole"].reasoning_lost == 50
    assert costs["per_turn"].reasoning_lost == costs["auto"].reasoning_lost == 0
    assert costs["per_turn"].size > costs["auto"].size - len("x") > costs["whole"].size
    assert costs["per_turn"].trained > costs["whole"].trained
    tokens = history_costs(public("trl/qwen3"), [PLAIN], measure=lambda row: (1, 0))
    assert tokens["whole"].size == 1


def test_a_worker_needs_no_new_proof(monkeypatch):
    template = public("trl/qwen3")
    sent = pickle.dumps(template)
    assert len(sent) < 100_000
    monkeypatch.setattr(prove, "prove", None)
    for other in (pickle.loads(sent), ChatTemplate.restore(pickle.loads(pickle.dumps(template.reduce())))):
        assert other.digest == template.digest
        assert other.engine == template.engine
        assert other.facts == template.facts
        assert other.render(THINKING)[0].text == template.render(THINKING)[0].text


def test_the_slow_engine_gives_the_same_rows():
    for name in ("trl/qwen3", "trl/gptoss", "llama-cpp-python/GLM-4.6"):
        slow = load(public_texts()[name], engine="reference")
        assert slow.engine == "jinja"
        assert public(name).engine == "minijinja"
        assert slow.render(THINKING) == public(name).render(THINKING)


def test_digests_tell_templates_and_arguments_apart():
    text = public_texts()["trl/qwen3"]
    digests = {
        load(text).digest,
        load(text + " ").digest,
        load(text, {"kwargs": {"enable_thinking": False}, "text": text}).digest,
    }
    assert len(digests) == 3


NORMAL = NormalizeSpec()


def normal(message, **more):
    conversation = chat(("user", "u"), message, **more)
    done = normalize_conversation(conversation, NORMAL)
    return done.messages[1], done.counts


def test_every_change_is_counted_and_the_input_is_left_alone():
    given = {
        "role": "assistant",
        "content": None,
        "thinking": "t",
        "tool_calls": [{"name": "f", "arguments": '"{\\"a\\": 1}"'}],
    }
    before = pickle.dumps(given)
    message, counts = normal(given)
    assert pickle.dumps(given) == before
    assert message["content"] == ""
    assert message["reasoning_content"] == "t"
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert counts == {
        "null_content": 1, "reasoning_renamed": 1, "arguments_parsed": 1, "arguments_encoded_twice": 1, "flat_tool_calls": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reasoning", "rest", "count"),
    [
        ("<think>\nr\n</think>\n\na", "r", "a", "inline_reasoning_moved"),
        ("r\n</think>\n\na", "r", "a", "lone_closing_think"),
        ("<think>\n\n</think>\n\na", None, "a", "inline_reasoning_moved"),
        ("<think>never closed", None, "<think>never closed", "unbalanced_think_tags"),
        ("It says <think> and </think> here", None, "It says <think> and </think> here", None),
    ],
)
def test_inline_reasoning(content, reasoning, rest, count):
    message, counts = normal({"role": "assistant", "content": content})
    assert message.get("reasoning_content") == reasoning
    assert message["content"] == rest
    assert not count or counts[count] == 1


def test_columnar_nulls_are_dropped_where_they_cannot_be_meant():
    tools = [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "string", "enum": None}}},
            },
        }
    ]
    call = {"type": "function", "id": None, "function": {"name": "f", "arguments": {"a": None, "b": None}}}
    done = normalize_conversation(
        chat(("user", "u"), {"role": "assistant", "content": "", "tool_calls": [call]}, tools=tools), NORMAL
    )
    assert done.tools[0]["function"]["parameters"]["properties"] == {"a": {"type": "string"}}
    assert done.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": None}}}]
    assert done.counts["tool_nulls_dropped"] == 1
    assert done.counts["argument_nulls_dropped"] == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}]},
            RejectReason.bad_tool_call,
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{}"}}]},
            RejectReason.bad_tool_call,
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            RejectReason.bad_tool_call,
        ),
        ({"role": "assistant", "content": "", "tool_calls": {"a": 1}}, RejectReason.bad_tool_call),
        ({"role": None, "content": "x"}, RejectReason.unknown_role),
        ({"role": "assistant", "content": {"a": 1}}, RejectReason.bad_content),
        ({"role": "assistant", "content": "x", "reasoning_content": ["a"]}, RejectReason.bad_content),
    ],
)
def test_messages_that_cannot_be_put_in_order(message, reason):
    with pytest.raises(RecordRejected) as refused:
        normal(message)
    assert refused.value.reason == reason


def test_each_switch_turns_its_change_off():
    off = NormalizeSpec(
        inline_reasoning=False,
        reasoning_fields=False,
        tool_arguments=False,
        null_content=False,
        developer_role=False,
        content_parts=False,
        tool_schemas=False,
    )
    call = {"type": "function", "id": None, "function": {"name": "f", "arguments": "{}"}}
    conversation = chat(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "<think>r</think>a", "thinking": "t", "tool_calls": [call]},
        tools=[{"type": "function", "function": {"name": "f", "description": None}}],
    )
    done = normalize_conversation(conversation, off)
    assert done.counts == {}
    assert done.messages == conversation.messages
    assert done.tools == conversation.tools
    on = normalize_conversation(conversation, NORMAL)
    assert on.counts.keys() >= {"developer_as_system", "content_parts_joined", "tool_nulls_dropped", "arguments_parsed"}


def test_a_developer_where_the_template_knows_none():
    row = public("trl/qwen3").render(chat(("developer", "D"), ("user", "u"), ("assistant", "a")))[0]
    assert row.counts["developer_as_system"] == 1
    assert "<|im_start|>system\nD<|im_end|>" in row.text
    own = public("trl/gptoss").render(chat(("developer", "D"), ("user", "u"), ("assistant", "a")))[0]
    assert "developer_as_system" not in own.counts
    assert trained(own)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What the command is given: a recipe with a real tokenizer and template, and a file of conversations."""
    folder = tmp_path_factory.mktemp("audit")
    recipe = {"tokenizer": qwen_tokenizer_spec(), "template": {"text": public_texts()["trl/qwen3"]}}
    recipe |= {"engine": "reference", "output": "-", "datasets": [{"input": "-"}]}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    talks = [THINKING, PLAIN, chat(("user", "what does <|im_end|> do?"), ("assistant", "It ends a turn."))]
    (folder / "in.jsonl").write_text("".join(json.dumps({"messages": talk.messages}) + "\n" for talk in talks))
    return folder


def audited(folder, *more):
    done = CliRunner().invoke(app, ["audit", str(folder / "in.jsonl"), "-t", str(folder / "recipe.yaml"), *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_tells_each_fact_with_its_share_of_the_data(asked):
    found = json.loads(audited(asked, "--json"))
    assert found["records"] == 3
    rows = {row["fact"]: row for row in found["rows"]}
    named = {
        "generation tags",
        "prefix-stable",
        "drops reasoning",
        "date",
        "header",
        "prefill",
        "stop",
        "tools",
        "scaffold",
    }
    assert rows.keys() >= named | {"refuses", "swallows"}
    assert (rows["drops reasoning"]["count"], rows["drops reasoning"]["share"]) == (1, pytest.approx(1 / 3))
    assert rows["control_tokens_in_user"]["count"] == 1
    assert rows["scaffold"]["example"]
    assert found["history"]["per_turn"]["rows"] == 4


def test_the_command_in_the_terminal_and_as_a_page(asked, tmp_path):
    text = audited(asked)
    assert "drops reasoning" in text
    assert "1 of 3, 33.3%" in text
    audited(asked, "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "drops reasoning" in page
    assert "&lt;|im_end|&gt;" in page
    assert "<|im_end|>" not in page
