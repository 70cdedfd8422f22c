"""The demo data: deterministic, honest about its bad lines, rich enough to show what masks do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import minijinja
import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from retok_dask.demo import chat_template, write_demo
from retok_dask.errors import InputError
from retok_dask.recipe import Recipe


def digest_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jsonl")}


def good_records(folder: Path) -> list[dict]:
    records = []
    for path in sorted(folder.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and not record["id"].endswith("-bad"):
                records.append(record)
    return records


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder, conversations=600, seed=3)
    return folder


def test_same_seed_same_bytes_other_seed_other_bytes(demo: Path, tmp_path: Path) -> None:
    write_demo(tmp_path / "a", conversations=600, seed=3)
    write_demo(tmp_path / "b", conversations=600, seed=4)
    assert digest_tree(tmp_path / "a") == digest_tree(demo)
    assert digest_tree(tmp_path / "b") != digest_tree(demo)


def test_facts_say_what_lies_there(demo: Path) -> None:
    facts = json.loads((demo / "facts.json").read_text())
    lines = sum(path.read_bytes().count(b"\n") for path in demo.rglob("*.jsonl"))
    assert lines == facts["records"] == sum(facts["conversations"].values()) + sum(facts["bad"].values())
    assert len(good_records(demo)) == 600
    recipe = Recipe.load(demo / "recipe.yaml")
    assert sum(facts["bad"].values()) / lines < recipe.max_reject_share


def test_it_holds_what_masks_are_about(demo: Path) -> None:
    records = good_records(demo)
    assert {record["language"] for record in records} == {"en", "de", "zh", "ja", "ar", "ru"}
    messages = [message for record in records for message in record["messages"]]
    assert {message["role"] for message in messages} == {"system", "user", "assistant", "tool"}
    assert any(message.get("reasoning_content") for message in messages)
    assert any(message.get("reasoning_content") == "" for message in messages)
    assert any(len(message.get("tool_calls") or ()) > 1 for message in messages)
    assert any(message["content"] is None for message in messages)
    assert max(len(record["messages"]) for record in records) >= 10


def test_template_gives_the_same_text_in_both_engines(demo: Path) -> None:
    text = chat_template()
    reference = _compile_jinja_template(text)
    fast = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
    fast.add_filter("tojson", lambda value: json.dumps(value, ensure_ascii=False))
    for record in good_records(demo):
        for prompt in (False, True):
            given = {"messages": record["messages"], "tools": record.get("tools"), "add_generation_prompt": prompt}
            assert fast.render_str(text, **given) == reference.render(**given)


def test_template_drops_earlier_reasoning_and_merges_tool_results() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1", "reasoning_content": "old thought"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "", "reasoning_content": "new thought", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "a2"},
    ]
    text = _compile_jinja_template(chat_template()).render(messages=messages, tools=None)
    assert "old thought" not in text
    assert "<|im_start|>assistant\na1<|im_end|>\n" in text
    assert text.count("<think>\nnew thought\n</think>\n\n<tool_call>") == 1
    assert text.count("<|im_start|>user") == 3
    assert "one\n</tool_response>\n<tool_response>\ntwo" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\na2<|im_end|>\n")


def test_template_refuses_a_role_it_does_not_know() -> None:
    with pytest.raises(Exception, match="narrator"):
        _compile_jinja_template(chat_template()).render(messages=[{"role": "narrator", "content": "x"}])


def test_too_small_a_demo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 10"):
        write_demo(tmp_path, conversations=3)
    command = [sys.executable, "-m", "retok_dask.demo", str(tmp_path), "--conversations", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "at least 10" in done.stderr
    assert not list(tmp_path.iterdir())
