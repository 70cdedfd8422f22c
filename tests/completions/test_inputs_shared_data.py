"""Every file of the shared data has an entry that works; counts agree with an independent reading."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from reading import SHARED, items_of, read_all, recipe_for, values

from retok_dask.types import Conversation, Document

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data is not at {SHARED}")

ENTRIES = {
    "messages/tinker_conversations.jsonl": {},
    "messages/v1_sft_demo.jsonl": {},
    "messages/reason_tool_use_demo_50.jsonl": {},
    "messages/kto_en_demo.json": {},
    "sharegpt/glaive_toolcall_en_demo.json": {},
    "sharegpt/glaive_toolcall_zh_demo.json": {},
    "sharegpt/dummy_conversation.json": {},
    "sharegpt/sharegpt_zh_1K_format.jsonl": {},
    "trajectories/tau_bench_airline.json": {},
    "trajectories/swe_agent": {},
    "prompts/BFCL_v4_multi_turn_base.json": {"mode": "prompts"},
    "prompts/BFCL_v4_parallel.json": {"mode": "prompts"},
    "prompts/gsm8k_test_socratic.jsonl": {},
    "preference/harmless-base-test.jsonl.gz": {},
    "preference/en_100_message.jsonl": {},
    "preference/en_100_tree.jsonl": {},
    "text/ja_wagahai.txt": {"mode": "text"},
    "text/pride_and_prejudice.txt": {"mode": "text"},
    "text/tinyshakespeare.txt": {"mode": "text"},
    "text/xquad.ar.json": {"mode": "text"},
    "text/xquad.de.json": {"mode": "text"},
    "text/xquad.hi.json": {"mode": "text"},
    "text/xquad.ru.json": {"mode": "text"},
    "text/xquad.th.json": {"mode": "text"},
    "text/xquad.zh.json": {"mode": "text"},
}


def independently(path: Path) -> list:
    """The records of a file by Python's own libraries alone."""
    if path.is_dir():
        return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(path.iterdir())]
    if path.suffix == ".txt":
        return [{"text": path.read_bytes().decode("utf-8-sig")}]
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            return [json.loads(line) for line in file]
    text = path.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line]
    return whole["data"] if isinstance(whole, dict) else whole


def test_no_file_is_left_out():
    files = {str(p.relative_to(SHARED)) for p in SHARED.rglob("*") if p.is_file() and "swe_agent" not in p.parts}
    assert files | {"trajectories/swe_agent"} == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("unit_bytes", ["128MiB", "300kB"])
def test_records_agree_with_an_independent_reading(name, unit_bytes):
    recipe = recipe_for(SHARED / name, units={"bytes": unit_bytes}, **ENTRIES[name])
    assert values(read_all(recipe)) == independently(SHARED / name)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_record_becomes_something_or_says_why_not(name):
    items, refused = items_of(recipe_for(SHARED / name, **ENTRIES[name]))
    records = independently(SHARED / name)
    if "xquad" in name:
        assert len(items) == sum(len(article["paragraphs"]) for article in records)
    else:
        assert len(items) + len(refused) == len(records)
    reasons = Counter(reason for reason, _ in refused)
    expected = {"sharegpt/sharegpt_zh_1K_format.jsonl": 1, "preference/harmless-base-test.jsonl.gz": 3}
    assert reasons == ({"no_assistant": expected[name]} if name in expected else {})


def messages_of(name, **dataset):
    items, _ = items_of(recipe_for(SHARED / name, **(ENTRIES[name] | dataset)))
    return items


def test_openai_messages_come_out_as_they_are():
    name = "messages/tinker_conversations.jsonl"
    assert [item.messages for item in messages_of(name)] == [r["messages"] for r in independently(SHARED / name)]


def test_loss_weights_become_flags():
    items = messages_of("messages/v1_sft_demo.jsonl")
    for item, record in zip(items, independently(SHARED / "messages/v1_sft_demo.jsonl"), strict=True):
        assert item.flags == [m["loss_weight"] != 0 for m in record["messages"]]
        assert [m["content"] for m in item.messages] == [m["content"] for m in record["messages"]]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_sharegpt_calls_and_observations(language):
    name = f"sharegpt/glaive_toolcall_{language}_demo.json"
    for item, record in zip(messages_of(name), independently(SHARED / name), strict=True):
        expected = Counter(m["from"] for m in record["conversations"])
        roles = Counter(m["role"] for m in item.messages)
        calls = [m for m in item.messages if m.get("tool_calls")]
        assert roles["tool"] == expected["observation"]
        assert len(calls) == expected["function_call"]
        assert roles["assistant"] == expected["gpt"] + expected["function_call"]
        tools = json.loads(record["tools"]) if record["tools"] else []
        assert len(item.tools or []) == len(tools)
        texts = [m["value"] for m in record["conversations"] if m["from"] == "function_call"]
        assert [c["tool_calls"][0]["function"]["arguments"] for c in calls] == [
            json.loads(text)["arguments"] for text in texts
        ]


def test_trajectories_keep_their_calls():
    items = messages_of("trajectories/tau_bench_airline.json")
    assert sum(len(m.get("tool_calls") or []) for item in items for m in item.messages) == 1164
    assert sum(len(item.messages) for item in items) / len(items) == pytest.approx(26.5, abs=0.1)
    assert len(messages_of("trajectories/swe_agent")) == 22


def test_dialogue_texts_put_together_again_are_the_originals():
    name = "preference/harmless-base-test.jsonl.gz"
    speaker = {"user": "Human", "assistant": "Assistant"}
    texts = {r["chosen"] for r in independently(SHARED / name)}
    for item in messages_of(name):
        built = "".join(f"\n\n{speaker[m['role']]}: {m['content']}" for m in item.messages)
        # what is not rebuilt: a blank after a colon that the source lacks, and a last speaker who says nothing
        assert built in texts or any(_squeezed(built) == _squeezed(t) for t in texts)


def _squeezed(text: str) -> str:
    return re.sub(r"\n\nAssistant:\s*$", "", re.sub(r"((?:Human|Assistant):) ?", r"\1", text))


def test_trees_follow_the_best_reply_and_all_paths_cover_all_answers():
    name = "preference/en_100_tree.jsonl"
    records = independently(SHARED / name)
    items = messages_of(name)
    assert all(isinstance(item, Conversation) for item in items)
    for item, record in zip(items, records, strict=True):
        best = min(record["prompt"]["replies"], key=lambda r: 1e9 if r.get("rank") is None else r["rank"])
        assert item.messages[1]["content"] == best["text"]

    def answers(node):
        own = [node["text"]] if node["role"] == "assistant" else []
        return own + [text for reply in node["replies"] for text in answers(reply)]

    every = messages_of(name, prefer="both")
    trained = [
        message["content"]
        for item in every
        for message, flag in zip(item.messages, item.flags or [None] * len(item.messages), strict=True)
        if message["role"] == "assistant" and flag is not False
    ]
    assert Counter(trained) == Counter(text for record in records for text in answers(record["prompt"]))


def test_prompts_hold_their_tools_and_turns():
    for name in ("prompts/BFCL_v4_multi_turn_base.json", "prompts/BFCL_v4_parallel.json"):
        for item, record in zip(messages_of(name), independently(SHARED / name), strict=True):
            assert item.messages == [m for turn in record["question"] for m in turn]
            assert len(item.tools or []) == len(record.get("function", []))
            assert item.id == record["id"]


def test_texts_are_whole():
    (item,) = messages_of("text/pride_and_prejudice.txt")
    assert isinstance(item, Document)
    assert b"\xef\xbb\xbf" + item.text.encode() == (SHARED / "text/pride_and_prejudice.txt").read_bytes()
