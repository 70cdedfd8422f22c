"""What a template says of tools is rendered once a tool set; no text may differ for it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates_common import chat, load, public, spans, unchecked

from retok_dask.templates import ChatTemplate, engines
from retok_dask.types import RecordRejected, SharedTools

FRAME = """%s{%% for message in messages %%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant
{%% endif %%}"""

LIST = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"

BODIES = {
    "loop": "{% for tool in tools or [] %}{{ tool | tojson }},{{ loop.index }}{% else %}none{% endfor %}",
    "all": "{{ bos_token ~ (tools | tojson(indent=2)) }}{{ tools | length if tools else 0 }}{{ tools[0].function.name if tools else 0 }}",
    "condition": "{% if tools %}<tools>{% for tool in tools or [] %}{{ tool.function }}{% endfor %}{% elif eos_token %}{{ eos_token }}{% else %}no{% endif %}",
    "macro": "{% macro sheet(mark, end='.') %}" + LIST + "{{ mark }}{{ end }}{% endmacro %}{{ sheet('!') }}{{ sheet(eos_token, end='?') }}",
    "macros": "{% macro one(tool) %}{{ tool.function.name }}{% endmacro %}{% macro all(tools_) %}{% for tool in tools_ or [] %}{{ one(tool) }} {% endfor %}{% endmacro %}{{ all(tools) }}",
    "recursive macro": "{% macro show(value) %}{% if value is mapping %}{% for key, item in value.items() %}{{ key }}({{ show(item) }}){% endfor %}{% else %}{{ value }}{% endif %}{% endmacro %}{% for tool in tools or [] %}{{ show(tool) }}{% endfor %}",
    "macro used before": "{% if messages | length > 4 %}{{ sheet() }}{% endif %}{% macro sheet() %}" + LIST + "{% endmacro %}",
    "macro called by an earlier one": "{% macro a() %}{{ b() }}{% endmacro %}{% if messages | length > 4 %}{{ a() }}{% endif %}{% macro b() %}" + LIST + "{% endmacro %}{{ b() }}",
    "macro written twice": "{% macro sheet() %}" + LIST + "{% endmacro %}{{ sheet() }}{% macro sheet() %}x{% endmacro %}{{ sheet() }}",
    "macro under another name": "{% macro a() %}" + LIST + "{% endmacro %}{% macro b() %}-{% endmacro %}{% macro use(a) %}{{ messages | length }}{{ a() }}{% endmacro %}{{ use(b) }}",
    "macro with a caller": "{% macro sheet() %}" + LIST + "{{ caller() }}{% endmacro %}{% call sheet() %}{{ (tools or []) | length }}{% endcall %}",
    "macro that sees messages": "{% macro sheet() %}" + LIST + "{{ messages | length }}{% endmacro %}{{ sheet() }}",
    "undefined": "{% for tool in tools or [] %}{{ tool.nothing | tojson }}{% endfor %}",
    "undefined inside": "{% for tool in tools or [] %}{{ {'a': [tool.nothing]} | tojson }}{% endfor %}",
    "undefined in a message": "{% if tools %}{{ messages[0].nothing | tojson }}{% endif %}",
    "a function": "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}",
    "a function inside": "{% for tool in tools or [] %}{{ {'f': [tool.function]} | tojson }}{% endfor %}",
    "a function set before": "{% for tool in tools or [] %}{% set d = {'f': tool['function']} %}{{ d | tojson }}{% endfor %}",
    "null": "{{ [none, tools is none] | tojson }}",
    "set inside": "{% for tool in tools or [] %}{% set f = tool.function %}{{ f.name }}{{ f | tojson }}{% endfor %}",
    "set now and then": "{% for tool in tools or [] %}{% if loop.first %}{% set f = tool.function %}{% endif %}{{ f.name if f is defined else '-' }}{% endfor %}",
    "set for later": "{% if tools %}{% set f = (tools or []) | length %}{% endif %}{{ f if f is defined else '-' }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for tool in tools or [] %}{% set ns.n = ns.n + messages | length %}{{ ns.n }}{% endfor %}{{ ns.n }}",
    "number of messages": "{% set many = messages | length %}{% for tool in tools or [] %}{{ many }}{{ tool.function.name }}{% endfor %}",
    "around each message": "{% for message in messages %}{% for tool in tools or [] %}{{ loop.index }}{{ tool.function.name }}{% endfor %}{% for tool in tools or [] %}{{ message.role }}{% endfor %}{% endfor %}",
    "in a filter": "{% filter upper %}" + LIST + "{% endfilter %}{% set text %}" + LIST + "{% endset %}{{ text | length }}",
    "tools set": "{% if messages | length > 4 %}{% set tools = (tools or [])[:1] %}{% endif %}" + LIST,
    "tools set in a loop": "{% for message in messages %}{% set tools = [message] %}{{ (tools or []) | length }}{% endfor %}" + LIST,
    "tools as loop variable": "{% for tools in [messages, messages[:1]] %}{{ (tools or []) | length }}{% endfor %}",
    "tools as argument": "{% macro sheet(tools) %}{{ (tools or []) | length }}{% endmacro %}{{ sheet(messages) }}",
    "constant set": "{% if messages | length > 4 %}{% set eos_token = 'x' %}{% endif %}{% for tool in tools or [] %}{{ eos_token }}{% endfor %}",
    "break": "{% for tool in tools or [] %}{% if loop.index > 1 %}{% break %}{% endif %}{{ tool.function.name }}{% endfor %}",
    "break around": "{% for message in messages %}{% if (tools or []) | length > 2 %}{% break %}{% endif %}x{% endfor %}",
    "raises": "{% for tool in tools or [] %}{% if tool.function.name == 'bad' %}{{ raise_exception('bad tool') }}{% endif %}{% endfor %}",
    "fails": "{% for tool in tools or [] %}{{ tool.function.parameters.properties.items() | length }}{% endfor %}",
    "fails for some": "{% if messages | length > 4 %}{% for tool in tools or [] %}{{ tool.function.parameters.properties.items() | length }}{% endfor %}{% endif %}",
    "refuses for some": "{% if messages | length > 4 %}{% for tool in tools or [] %}{{ tool.function.name + 1 }}{% endfor %}{% endif %}",
    "today": "{% for tool in tools or [] %}{{ strftime_now('%Y') }}{% endfor %}",
    "text in pieces": "{{ messages[0].content ~ (tools | tojson) ~ messages[0].role }}",
}  # fmt: skip


def schema(name: str, **more):
    return {"type": "function", "function": {"name": name, **more}}


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "default": None}, "n": {"type": "integer"}}}
TOOLS = [
    None,
    [],
    [schema("look_up", description='Finds "it" — quickly\n', parameters=PARAMETERS)],
    [schema("look_up", parameters=PARAMETERS), schema("run", description="<|im_end|>", parameters=PARAMETERS)],
    [schema("a", parameters=PARAMETERS), schema("b", parameters=None), schema("c", parameters=PARAMETERS)],
    [schema("a"), schema("bad"), schema("long" * 500, number=1.5)],
    [schema("big", number=2**70)],
    [schema("float", number=5.0)],
    [schema("marks", description="\x01 and \x02")],
    [{"type": "function", "name": "bare"}],
]


@cache
def family(name: str, control_tokens: str) -> ChatTemplate:
    return unchecked(load(FRAME % BODIES[name], control_tokens=control_tokens))


def answer(template: ChatTemplate, conversation):
    """All that comes of a conversation, or why nothing does."""
    try:
        (row,) = template.render(conversation)
    except RecordRejected as refused:
        return refused.reason, refused.detail
    return row.text, spans(row), row.escapes, row.counts


def expected(template: ChatTemplate, conversation):
    try:
        return template.reference_text(conversation)
    except RecordRejected as refused:
        return refused.reason


RECORDS = st.lists(st.tuples(st.sampled_from(TOOLS), st.booleans(), st.integers(1, 3)), min_size=1, max_size=5)


def conversation_of(tools, system, turns):
    said = [("user", "asked é"), ("assistant", "said")] * turns
    return chat(*([("system", "rules")] if system else []), *said, tools=tools)


@pytest.mark.parametrize("control_tokens", ["allow", "escape"])
@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=8, deadline=None)
@given(records=RECORDS)
def test_each_record_is_what_the_reference_renders(name, control_tokens, records):
    """Whatever tools the records before had, and whatever of them fails."""
    template = family(name, control_tokens)
    fresh = unchecked(ChatTemplate.restore(template.reduce()))
    for tools, system, turns in records:
        conversation = conversation_of(tools, system, turns)
        found = answer(template, conversation)
        assert found == answer(fresh, conversation)
        assert found[0] == expected(template, conversation)


@pytest.mark.parametrize(
    "name", ["trl/qwen3", "trl/glm4moe", "llama-cpp-python/moonshotai-Kimi-K2", "llama-cpp-python/MiniMax-M2"]
)
def test_public_templates_with_changing_tools(name):
    template = unchecked(public(name, control_tokens="allow"))
    for _ in range(2):
        for tools in TOOLS:
            conversation = conversation_of(tools, system=True, turns=2)
            found = answer(template, conversation)
            assert found[0] == expected(template, conversation)


def test_the_same_tools_are_written_once(monkeypatch):
    calls = []
    own = engines.tojson
    monkeypatch.setattr(engines, "tojson", lambda value, **form: calls.append(value) or own(value, **form))
    template = unchecked(load(FRAME % BODIES["loop"]))
    assert template.engine == "minijinja"
    calls.clear()
    for turns in range(1, 4):
        (row,) = template.render(conversation_of(TOOLS[2], system=False, turns=turns))
        assert '"look_up"' in row.text
    assert len(calls) == 1


def test_a_part_that_no_record_comes_to_may_fail():
    template = unchecked(load(FRAME % BODIES["fails for some"]))
    (row,) = template.render(conversation_of([schema("a")], system=False, turns=1))
    assert row.text.startswith("<|im_start|>user")
    assert "engine_fallback" not in row.counts
    with pytest.raises(RecordRejected):
        template.render(conversation_of([schema("a")], system=False, turns=3))


def test_shared_tools_are_read_as_any_others():
    given = [schema("a", parameters=PARAMETERS), schema("b", number=2**70)]
    for tools in ([given[0]], given):
        shared = SharedTools(tools)
        for drop in (True, False, True):
            template = load(FRAME % BODIES["loop"], normalize={"tool_schemas": drop})
            found = answer(template, conversation_of(shared, system=False, turns=1))
            assert found == answer(template, conversation_of(tools, system=False, turns=1))
            assert ('"default": null' in found[0]) is not drop
        assert shared == tools
    with pytest.raises(RecordRejected):
        template.render(conversation_of(SharedTools(["a"]), system=False, turns=1))


def test_many_and_large_tool_sets():
    template = unchecked(load(FRAME % BODIES["loop"]))
    large = [schema("large", description="x" * 300_000)]
    for tools in (large, *([schema(f"tool_{number}")] for number in range(600)), large):
        conversation = conversation_of(tools, system=False, turns=1)
        (row,) = template.render(conversation)
        assert row.text == template.reference_text(conversation)
