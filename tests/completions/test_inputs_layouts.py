"""Layouts: what people's records become, and why those that become nothing do not."""

from __future__ import annotations

import json

import orjson
import pytest
from reading import A, Q, item_of, items_of, recipe_for, refusal

from retok_dask.completions import content_key, detect_layout, layout_for
from retok_dask.errors import RecipeError
from retok_dask.types import (
    Conversation,
    Document,
    Record,
)


@pytest.mark.parametrize("name", ["messages", "conversation", "conversations", "traj", "history", "dialogue", "chat"])
def test_messages_under_any_of_the_usual_names(name):
    assert item_of({name: [Q, A]}) == Conversation([Q, A])


def test_message_keys_are_kept_and_flags_taken_out():
    message = {"role": "assistant", "content": None, "reasoning_content": "r", "name": "n", "tool_call_id": "t"}
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    item = item_of({"id": 5, "messages": [{**Q, "train": None}, {**message, "tool_calls": calls, "loss_weight": 0.0}]})
    assert item.messages[1] == {**message, "tool_calls": calls}
    assert item.flags == [None, False]
    assert item.id == "5"


@pytest.mark.parametrize(
    ("extra", "flag"),
    [
        ({"train": True}, True),
        ({"weight": 0}, False),
        ({"loss_weight": 0.5}, True),
        ({"loss": False}, False),
        ({"train": "0"}, False),
        ({"weight": "1.0"}, True),
        ({"loss": "False"}, False),
    ],
)
def test_flags_under_any_of_the_usual_names(extra, flag):
    item = item_of({"messages": [Q, A | extra]})
    assert item.flags == [None, flag]
    assert item.messages == [Q, A]


# C01
def test_sharegpt_speakers_by_their_many_names():
    names = ["human", "bing", "user", "assistant", "system", "chatgpt", "Human", "GPT", "model"]
    item = item_of({"conversations": [{"from": name, "value": name} for name in names]})
    expected = ["user", "assistant", "user", "assistant", "system", "assistant", "user", "assistant", "assistant"]
    assert [m["role"] for m in item.messages] == expected
    assert [m["content"] for m in item.messages] == names


def test_an_unknown_speaker_rejects_its_record_with_the_name_or_is_mapped():
    value = {"conversations": [{"from": "human", "value": "h"}, {"from": "robot9", "value": "b"}]}
    reason, detail = refusal(value)
    assert reason == "unknown_role"
    assert "'robot9'" in detail
    assert item_of(value, roles={"robot9": "assistant"}).messages[1] == {"role": "assistant", "content": "b"}
    assert refusal({"messages": [{"role": None, "content": "x"}, A]}, layout="messages")[0] == "unknown_role"


# C03
LONG = 12345678901234567890123


@pytest.mark.parametrize("flag", [{}, {"weight": 0}, {"train": True}])
def test_a_call_of_sharegpt_keeps_what_else_its_message_says(flag):
    """Its flag above all: one that was lost let it be trained though the data says otherwise."""
    more = {"reasoning_content": "r", "id": "m1"}
    value = f'{{"name":"w","arguments":{{"n":{LONG},"x":1.5}}}}'
    talk = [{"from": "human", "value": "h"}, {"from": "function_call", "value": value, **more, **flag}]
    item = item_of({"conversations": [*talk, {"from": "gpt", "value": "a"}]})
    (called,) = item.messages[1].pop("tool_calls")
    assert called["function"] == {"name": "w", "arguments": {"n": LONG, "x": 1.5}}  # no digit is lost
    assert item.messages[1] == {"role": "assistant", "content": "", **more}
    assert item.flags == ([None, bool(next(iter(flag.values()))), None] if flag else [])


def test_no_digit_is_lost_in_json_that_lies_in_text():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"maximum": LONG}}}]
    call = {"function": {"name": "f", "arguments": {"n": LONG}}}
    messages = [Q, {"role": "assistant", "content": "", "tool_calls": [call]}]
    item = item_of({"messages": json.dumps(messages), "tools": json.dumps(tools)})
    assert item.messages == messages
    assert list(item.tools) == tools


@pytest.mark.parametrize("flags", [{"train": True, "weight": 0}, {"train": "false", "loss_weight": 1.0}])
def test_flags_of_a_message_that_contradict_each_other_are_not_chosen_from(flags):
    reason, detail = refusal({"messages": [Q, {**A, **flags}]})
    assert reason == "flag_conflict"
    assert all(name in detail for name in flags)
    agreed = dict.fromkeys(flags, 1)
    assert item_of({"messages": [Q, {**A, **agreed}]}).flags == [None, True]


def test_sharegpt_tool_roles_become_calls_and_results():
    tools = [{"name": "w", "description": "d", "parameters": {}}]
    value = {
        "conversations": [
            {"from": "human", "value": "h"},
            {"from": "function_call", "value": '{"name":"w","arguments":{"c":"X"}}'},
            {"from": "observation", "value": '{"t":3}'},
            {"from": "gpt", "value": "3 degrees"},
        ],
        "tools": json.dumps(tools),
    }
    item = item_of(value)
    call = {"type": "function", "function": {"name": "w", "arguments": {"c": "X"}}}
    assert item.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert item.messages[2] == {"role": "tool", "content": '{"t":3}'}
    assert item.tools == [{"type": "function", "function": tools[0]}]
    assert item.counts == {"tools_wrapped": 1}
    value["conversations"][1]["value"] = '[{"name":"w","arguments":{}},{"name":"v","arguments":{}}]'
    assert len(item_of(value).messages[1]["tool_calls"]) == 2


@pytest.mark.parametrize(
    "value", ['{"name":"w","arguments":', "[]x", "7", '{"arguments":{}}', '["w"]', '{"name": 3}', "null"]
)
def test_a_broken_function_call_rejects_its_record(value):
    talk = [{"from": "human", "value": "h"}, {"from": "function_call", "value": value}]
    assert refusal({"conversations": talk})[0] == "bad_tool_call"


@pytest.mark.parametrize("calls", ["text", [1], [{"function": {}}], [{"function": "f"}], {"a": 1}])
def test_tool_calls_that_no_template_could_write(calls):
    assert refusal({"messages": [Q, {"role": "assistant", "tool_calls": calls}]})[0] == "bad_tool_call"


@pytest.mark.parametrize(
    ("tools", "ok"), [("[]", True), ("", True), (None, True), ("{", False), ([1], False), (7, False)]
)
def test_tools_as_list_or_text(tools, ok):
    value = {"messages": [Q, A], "tools": tools}
    if ok:
        assert item_of(value).tools is None
    else:
        assert refusal(value)[0] == "bad_tools"


# C04
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"messages": []}, "empty_conversation"),
        ({"messages": None}, "empty_conversation"),
        ({"conversations": []}, "empty_conversation"),
        ({}, "unknown_layout"),
        ({"messages": [{"role": "system", "content": "s"}]}, "no_assistant"),
        ({"messages": [Q]}, "no_assistant"),
        ({"messages": [Q, "text"]}, "bad_layout"),
        ({"text": "x"}, "unknown_layout"),
        ({"messages": "text"}, "unknown_layout"),
    ],
)
def test_what_is_no_conversation(value, reason):
    assert refusal(value)[0] == reason


def test_an_empty_answer_is_a_message():
    assert item_of({"messages": [Q, {"role": "assistant", "content": ""}]}).messages[1]["content"] == ""


def test_a_tail_after_the_last_answer_is_kept_and_counted_or_cut():
    tool = {"role": "tool", "content": "t"}
    kept = item_of({"messages": [Q, A | {"train": True}, Q, tool]})
    assert (len(kept.messages), kept.counts) == (4, {"tail_untrained": 1})
    cut = item_of({"messages": [Q, A | {"train": True}, Q, tool]}, tail="cut")
    assert (cut.messages, cut.flags, cut.counts) == ([Q, A], [None, True], {"tail_cut": 2})


def test_a_system_text_beside_the_messages():
    system = {"role": "system", "content": "s"}
    assert item_of({"messages": [Q, A | {"train": True}], "system": "s"}).messages == [system, Q, A]
    assert item_of({"messages": [Q, A | {"train": True}], "system": "s"}).flags == [None, None, True]
    assert item_of({"messages": [system, Q, A], "system": "other"}).messages == [system, Q, A]


@pytest.mark.parametrize("answer", ["completion", "response", "output"])
def test_prompt_and_completion_as_text_or_messages(answer):
    assert item_of({"prompt": "q", answer: "a"}).messages == [Q, A]
    assert item_of({"prompt": [Q], answer: [A]}) == Conversation([Q, A])
    many = item_of({"prompt": [Q, A, Q], answer: [A]})
    assert many.messages == [Q, A, Q, A]
    assert many.flags == [False, False, False, None]
    assert item_of({"prompt": [{"role": "system", "content": "s"}, Q], answer: A}).messages[2] == A
    assert refusal({"prompt": "q", answer: 7})[0] == "bad_layout"


def test_alpaca_with_input_system_and_history():
    item = item_of({"instruction": "i", "input": "x", "output": "a", "system": "s", "history": [["q", "a"]]})
    assert [m["content"] for m in item.messages] == ["s", "q", "a", "i\nx", "a"]
    assert item_of({"instruction": "q", "input": "", "output": "a"}).messages == [Q, A]
    assert item_of({"instruction": "q", "output": "a"}, mode="prompts").messages == [Q]
    assert refusal({"instruction": None, "output": "a"})[0] == "bad_layout"
    assert refusal({"instruction": "q", "output": "a", "history": ["odd"]})[0] == "bad_layout"


@pytest.mark.parametrize("names", [("question", "answer"), ("query", "response"), ("problem", "solution")])
def test_question_and_answer(names):
    value = dict(zip(names, "qa", strict=True))
    assert item_of(value).messages == [Q, A]
    assert item_of(value, mode="prompts").messages == [Q]


def test_preference_pairs_as_text_messages_or_one_dialogue():
    good, bad = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}
    forms = [
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": "q", "chosen": [Q, good], "rejected": [Q, bad]},
        {"prompt": [Q], "chosen": [good], "rejected": [bad]},
        {"messages": [Q], "chosen": good, "rejected": bad},
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": bad,
        },
        {"question": "q", "chosen": "good", "rejected": "bad"},
        {"chosen": "\n\nHuman: q\n\nAssistant: good", "rejected": "\n\nHuman: q\n\nAssistant: bad"},
    ]
    for value in forms:
        assert item_of(value).messages == [Q, good]
        assert item_of(value, prefer="rejected").messages == [Q, bad]
        both = layout_for(recipe_for("x", prefer="both").datasets[0])(Record("f", 0, 0, None, value))
        assert [item.messages for item in both] == [[Q, good], [Q, bad]]
        prompts = layout_for(recipe_for("x", prefer="both", mode="prompts").datasets[0])
        assert len(prompts(Record("f", 0, 0, None, value))) == 1


def test_dialogues_written_as_one_text():
    text = "\n\nHuman: a\nb \n\nAssistant:c\n\n d\n\nHuman: e\n\nAssistant:"
    item = item_of({"text": text})
    said = [("user", "a\nb "), ("assistant", "c\n\n d"), ("user", "e")]
    assert [(m["role"], m["content"]) for m in item.messages] == said
    assert item.counts == {"tail_untrained": 1}
    assert refusal({"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": "\n\nHuman: a"})[0] == "no_assistant"


def tree():
    return {
        "message_id": "m1",
        "role": "prompter",
        "text": "q",
        "replies": [
            {"role": "assistant", "text": "second", "rank": 1, "replies": []},
            {
                "role": "assistant",
                "text": "best",
                "rank": 0,
                "replies": [
                    {
                        "role": "prompter",
                        "text": "more",
                        "replies": [{"role": "assistant", "text": "end", "replies": []}],
                    },
                    {"role": "prompter", "text": "unanswered", "replies": []},
                ],
            },
            {"role": "assistant", "text": "gone", "rank": None, "deleted": True, "replies": []},
        ],
    }


@pytest.mark.parametrize("wrapped", [False, True])
def test_message_trees(wrapped):
    value = {"message_tree_id": "t", "prompt": tree()} if wrapped else tree()
    assert [m["content"] for m in item_of(value).messages] == ["q", "best", "more", "end"]
    assert [m["content"] for m in item_of(value, prefer="rejected").messages] == ["q", "second"]
    both = layout_for(recipe_for("x", prefer="both").datasets[0])(Record("f", 0, 0, None, value))
    assert [[m["content"] for m in item.messages] for item in both] == [["q", "best", "more", "end"], ["q", "second"]]
    assert both[0].flags == []
    assert both[1].flags == [False, None]
    assert item_of(value).id == ("t" if wrapped else "m1")


def test_each_message_of_a_tree_is_trained_in_one_path_only():
    value = tree()
    value["replies"][1]["replies"][1]["replies"] = [{"role": "assistant", "text": "late", "replies": []}]
    both = layout_for(recipe_for("x", prefer="both").datasets[0])(Record("f", 0, 0, None, value))
    trained = [
        message["content"]
        for item in both
        for message, flag in zip(item.messages, item.flags or [None] * 9, strict=False)
        if message["role"] == "assistant" and flag is not False
    ]
    assert sorted(trained) == ["best", "end", "late", "second"]


def test_documents_and_paragraphs():
    assert item_of({"text": "t", "id": "x"}, mode="text") == Document("t", id="x")
    assert item_of({"content": "t"}, mode="text") == Document("t")
    assert refusal({"text": ""}, mode="text")[0] == "empty_text"
    assert refusal({"text": None}, mode="text")[0] == "empty_text"
    assert refusal({"text": 5}, mode="text", layout="text")[0] == "bad_layout"
    value = {"title": "t", "paragraphs": [{"context": "a", "qas": []}, {"context": "b"}]}
    spec = recipe_for("x", mode="text").datasets[0]
    assert layout_for(spec)(Record("f", 0, 0, None, value)) == [Document("a"), Document("b")]


def test_prompts_alone_as_text_messages_or_turns():
    assert item_of({"prompt": "q"}, mode="prompts").messages == [Q]
    assert item_of({"question": [[Q], [Q]], "function": [{"name": "f"}]}, mode="prompts").counts == {
        "turns_joined": 2,
        "tools_wrapped": 1,
    }
    assert item_of({"messages": [Q]}, mode="prompts").messages == [Q]
    assert refusal({"messages": [A]}, mode="prompts")[0] == "no_prompt"


def test_field_names_and_roles_of_the_data_are_mapped():
    value = {"talk": [{"speaker": "A", "said": "q"}, {"speaker": "B", "said": "a"}], "key": 9}
    found = item_of(
        value,
        fields={"messages": "talk", "role": "speaker", "content": "said", "id": "key"},
        roles={"A": "user", "B": "assistant"},
        keep=["key"],
    )
    assert found == Conversation([Q, A], id="9", kept={"key": 9})
    assert item_of({"body_html": "x"}, mode="text", fields={"text": "body_html"}) == Document("x")


def test_a_layout_named_in_the_recipe_is_not_guessed():
    assert refusal({"conversations": [{"from": "human", "value": "x"}]}, layout="alpaca")[0] == "bad_layout"
    with pytest.raises(RecipeError, match="Did you mean 'alpaca'"):
        layout_for(recipe_for("x", layout="alpacca").datasets[0])
    with pytest.raises(RecipeError, match="does not serve mode 'text'"):
        layout_for(recipe_for("x", layout="alpaca", mode="text").datasets[0])


def test_mixed_layouts_in_one_file_and_the_evidence(tmp_path):
    rows = [
        {"messages": [Q, A]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"prompt": "q", "completion": "a"},
        {"instruction": "q", "output": "a"},
        {"text": "nothing for chat"},
        {"messages": []},
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    recipe = recipe_for(path)
    items, refused = items_of(recipe)
    assert [item.messages for item in items] == [[Q, A]] * 4
    assert [reason for reason, _ in refused] == ["unknown_layout", "empty_conversation"]
    evidence = detect_layout([Record("f", 0, 0, None, row) for row in rows], recipe.datasets[0])
    assert evidence.layouts == {"messages": 2, "sharegpt": 1, "prompt_completion": 1, "alpaca": 1}
    assert evidence.rejected == {"unknown_layout": 1, "empty_conversation": 1}
    assert "layout text would, in mode text" in evidence.examples["unknown_layout"]
    assert evidence.records == 6


def test_kept_columns_are_carried_with_exact_numbers(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],'
        '"n":99999999999999999999,"d":"2024-01-01T00:00:00","m":{"a":[1]}}'
    )
    ((item,), _) = items_of(recipe_for(tmp_path / "a.jsonl", keep=["n", "d", "m", "missing"]))
    assert item.kept == {"n": 99999999999999999999, "d": "2024-01-01T00:00:00", "m": {"a": [1]}}


def test_the_content_key_ignores_where_a_conversation_comes_from():
    one = item_of({"id": 1, "messages": [Q, A]}, keep=["id"])
    two = item_of({"id": 2, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})
    other = item_of({"id": 1, "messages": [Q, A, Q, A]})
    flagged = item_of({"messages": [Q, A | {"train": False}]})
    assert content_key(one) == content_key(two)
    assert len({content_key(item) for item in (one, other, flagged, Document("q"), Document("a"))}) == 5
    assert len(content_key(one)) == 16
    call = {"function": {"name": "f", "arguments": {"n": 10**30}}}
    assert len(content_key(item_of({"messages": [Q, A | {"tool_calls": [call]}]}))) == 16
    ids = [item_of({"input_ids": ids}, mode="tokens") for ids in ([1, 2], [1, 2], [1, 3])]
    assert content_key(ids[0]) == content_key(ids[1]) != content_key(ids[2])
