"""What old templates write in ways of their own is read back: blanks, tools within a turn, ids of calls, other calls."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from assets import template_files, tiny_tokenizer

from retok_dask import plan
from retok_dask.datasets import open_dataset, read_manifest
from retok_dask.recipe import Recipe
from tests.retokenize.runs import write_run

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock", "description": "Time.", "parameters": {"type": "object"}}},
]


def user(text):
    return {"role": "user", "content": text}


def answer(text, reasoning=None, **more):
    return {"role": "assistant", "content": text} | ({"reasoning_content": reasoning} if reasoning else {}) | more


def call(number, name="get_weather", **arguments):
    return {"id": f"callabcd{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, number=1, name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": f"callabcd{number}", "name": name}


SYSTEM = {"role": "system", "content": "s"}
TURN = [user("w?"), answer("", tool_calls=[call(1, city="Łódź", days=3)]), result('{"sky": "grey"}'), answer("Grey.")]
TALKS = {
    "short": [user("a"), answer("b"), user("c"), answer("d")],
    "blank": [user("a"), answer("     ")],
    "line": [user("a"), answer("\n"), user("c"), answer("d")],
    "lines": [user("a"), answer("\n\n"), user("c"), answer("d")],
    "blank_system": [SYSTEM | {"content": "  "}, user("a"), answer("b")],
    "blank_reasoning": [user("a"), answer("b", " ")],
    "call": TURN,
    "two_calls": [
        user("w?"),
        answer("", tool_calls=[call(1, city='a\n"b" <c>'), call(2, "clock")]),
        result("one"),
        result("two", 2, "clock"),
        answer("Both."),
    ],
    "calls_of_two_turns": [
        *TURN,
        user("and?"),
        answer("", tool_calls=[call(2, city="b")]),
        result("r", 2),
        answer("z"),
    ],
    "system_and_tools": [SYSTEM, *TURN],
    "calls_without_ids": [
        user("w?"),
        answer("", tool_calls=[{"type": "function", "function": {"name": "clock", "arguments": {}}}]),
        {"role": "tool", "content": 'a "b"\nc'},
        answer("z"),
    ],
    "tools_alone": [user("a"), answer("b")],
}
WITH_TOOLS = {"calls_without_ids", "call", "two_calls", "calls_of_two_turns", "system_and_tools", "tools_alone"}

NEW = "Qwen-Qwen3-0.6B"
OLD = {
    "Qwen-Qwen3-0.6B": set(),
    "GLM-4.6": {"blank", "line", "lines", "blank_reasoning"},
    "deepseek-ai-DeepSeek-V3.1": {"blank_reasoning", *WITH_TOOLS},
    "deepseek-ai-DeepSeek-V3.2": {"blank_reasoning"},
    "moonshotai-Kimi-K2": {"blank_reasoning"},
    "mistralai-Mistral-Nemo-Instruct-2407": {
        "blank_system",
        "blank_reasoning",
        "system_and_tools",
        "calls_without_ids",
    },
    "Mistral-Small-3.2-24B-Instruct-2506": {"blank_reasoning", "calls_without_ids"},
    "meta-llama-Llama-3.2-3B-Instruct": {"blank", "line", "lines", "blank_system", "blank_reasoning", "two_calls"},
}
"""Old templates, and the talks of which they leave something out, take blanks off, or refuse them."""

MARKERS = """
<|im_start|> <|im_end|> <tool_call> </tool_call> <tool_response> </tool_response> <｜begin▁of▁sentence｜> <｜User｜>
<｜end▁of▁sentence｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜>
<｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> [INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]
[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [ARGS] [CALL_ID] [TOOL_CONTENT] <|im_user|>
<|im_assistant|> <|im_system|> <|im_middle|> <|tool_calls_section_begin|> <|tool_calls_section_end|> [gMASK] <sop>
<|tool_call_begin|> <|tool_call_end|> <|tool_call_argument_begin|> <|begin_of_text|> <|start_header_id|> <|eot_id|>
<|end_header_id|> <|system|> <|user|> <|assistant|> <|observation|> <arg_key> </arg_key> <arg_value> </arg_value>
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A small tokenizer that knows the control tokens of all these families."""
    data = json.loads(Path(tiny_tokenizer("byte_level").path).read_text())
    first = 1 + max([*data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])])
    likewise = data["added_tokens"][0]
    data["added_tokens"] += [likewise | {"id": first + n, "content": text} for n, text in enumerate(MARKERS.split())]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(data))
    return {"path": str(path), "bos_token": "<s>", "eos_token": "</s>"}


def recipe(tokenizer, template, data, output, **dataset):
    (path,) = (path for path in template_files() if path.stem == template)
    return Recipe.from_dict(
        {
            "tokenizer": tokenizer,
            "template": {"path": str(path)},
            "engine": "reference",
            "output": str(output),
            "datasets": [{"input": str(data), "keep": ["id"]} | dataset],
        }
    )


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    path = tmp_path_factory.mktemp("in") / "chat.jsonl"
    rows = [
        {"messages": messages, "id": name} | ({"tools": TOOLS} if name in WITH_TOOLS else {})
        for name, messages in TALKS.items()
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def fresh(tokenizer, talks, tmp_path_factory):
    return rows_of(write_run(recipe(tokenizer, NEW, talks, tmp_path_factory.mktemp("fresh") / "out")))


def rows_of(folder):
    return {
        row["id"]: (row["input_ids"].tolist(), row["loss_mask"].tolist(), row["segments"])
        for row in open_dataset(folder.url)
    }


@pytest.mark.parametrize("old", OLD)
def test_rows_of_other_templates_become_what_a_fresh_run_gives(old, tokenizer, talks, fresh, tmp_path):
    write_run(recipe(tokenizer, old, talks, tmp_path / "old"))
    moved = rows_of(write_run(recipe(tokenizer, NEW, tmp_path / "old", tmp_path / "moved", format="retok")))
    assert {name for name in TALKS if moved.get(name) != fresh[name]} == OLD[old]


def test_arguments_that_may_be_texts_or_values_are_not_guessed(tokenizer, tmp_path):
    """Without quotes 3 and "3" are written alike: a schema tells them apart, or nothing does."""
    typed = {"city": {"type": "string"}, "days": {"type": "integer"}, "either": {"type": ["string", "integer"]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": typed}}}]
    told = {"city": ["3", "true", "[1]", "x", "{'a': 1}"], "days": [3], "either": ["x"], "free": ["x", "3 4", "{x"]}
    open_ = {"either": ["3", 3], "free": ["3", 3, True, [1, "a"], '{"a": 1}', "{'a': 1}", "2.5"]}
    talks = [
        {"messages": [user("w?"), answer("", tool_calls=[call(1, "f", **{key: value})]), result("r"), answer("z")]}
        | {"tools": tools, "id": f"{kind} {key} {value!r}"}
        for kind, arguments in (("told", told), ("open", open_))
        for key, values in arguments.items()
        for value in values
    ]
    (tmp_path / "chat.jsonl").write_bytes(b"\n".join(map(orjson.dumps, talks)))
    wanted = rows_of(write_run(recipe(tokenizer, NEW, tmp_path / "chat.jsonl", tmp_path / "fresh")))
    for old in ("GLM-4.6", "Qwen3.5-4B"):
        write_run(recipe(tokenizer, old, tmp_path / "chat.jsonl", tmp_path / old))
        moved = write_run(recipe(tokenizer, NEW, tmp_path / old, tmp_path / f"new-{old}", format="retok"))
        assert rows_of(moved) == {name: row for name, row in wanted.items() if name.startswith("told")}
        rejects = [one for path in Path(tmp_path / f"new-{old}").glob("rejects/*/*") for one in rejects_of(path)]
        assert len(rejects) == sum(map(len, open_.values()))
        assert all("no schema says which" in reject["detail"] for reject in rejects)


def test_what_rows_do_not_say_is_counted_and_named_by_a_plan(tokenizer, tmp_path):
    talk = [user("w?"), answer("I look.", "why", tool_calls=[call(1, city="a")]), result("r"), answer("z")]
    (tmp_path / "chat.jsonl").write_bytes(orjson.dumps({"messages": talk, "tools": TOOLS, "id": "1"}))
    old = write_run(recipe(tokenizer, "deepseek-ai-DeepSeek-V3.2", tmp_path / "chat.jsonl", tmp_path / "old"))
    again = recipe(tokenizer, "moonshotai-Kimi-K2", old.url, tmp_path / "new", format="retok")
    assert plan(again).notes == [
        "data: the run that wrote its rows left out what they do not say any more: reasoning_dropped 1"
    ]
    counts = read_manifest(write_run(again)).total.counts
    assert {name: counts[name] for name in counts if "_in_row" in name} == {"call_ids_not_in_row": 1}


def test_conversations_that_were_read_back_are_held_to_their_data_set(tokenizer, tmp_path):
    """As those of other files are: an unanswered question at the end is cut, or kept and counted."""
    talk = [user("a"), answer("b"), user("c")]
    (tmp_path / "chat.jsonl").write_bytes(orjson.dumps({"messages": talk, "id": "1"}))
    old = write_run(recipe(tokenizer, "GLM-4.6", tmp_path / "chat.jsonl", tmp_path / "old"))
    for tail, count in (("cut", "tail_cut"), ("keep", "tail_untrained")):
        wanted = write_run(recipe(tokenizer, NEW, tmp_path / "chat.jsonl", tmp_path / f"fresh-{tail}", tail=tail))
        moved = write_run(recipe(tokenizer, NEW, old.url, tmp_path / f"moved-{tail}", format="retok", tail=tail))
        assert rows_of(moved) == rows_of(wanted)
        assert read_manifest(moved).total.counts[count] == read_manifest(wanted).total.counts[count] == 1


def test_tool_output_within_an_answer_is_read_back_where_its_markers_are_named(tokenizer, tmp_path):
    texts = ["I run <out>42</out> and so 42.", "<out>42</out>", "no output"]
    talks = [{"messages": [user("run"), answer(text, "I <out>7</out> think")], "id": text} for text in texts]
    (tmp_path / "chat.jsonl").write_bytes(b"\n".join(map(orjson.dumps, talks)))
    named = {"tool_output_markers": ["<out>", "</out>"]}
    write_run(recipe(tokenizer, "Qwen-Qwen3-0.6B", tmp_path / "chat.jsonl", tmp_path / "old", **named))
    wanted = rows_of(write_run(recipe(tokenizer, "GLM-4.6", tmp_path / "chat.jsonl", tmp_path / "fresh", **named)))
    moved = write_run(recipe(tokenizer, "GLM-4.6", tmp_path / "old", tmp_path / "new", format="retok", **named))
    assert len(wanted) == 3
    assert rows_of(moved) == wanted

    unnamed = write_run(recipe(tokenizer, "GLM-4.6", tmp_path / "old", tmp_path / "none", format="retok"))
    assert not rows_of(unnamed)  # all three think between the markers: none may be trained by mistake
    why = {reject["detail"] for path in Path(tmp_path / "none").glob("rejects/*/*") for reject in rejects_of(path)}
    assert len(why) == 1
    assert "tool_output_markers" in why.pop()


def rejects_of(path):
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()
