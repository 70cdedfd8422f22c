"""Rows that take a path through the template which others took before are what the template makes of them."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from templates_common import chat, load, public, spans, unchecked
from test_template_properties import FAMILIES, plain

from retok_dask.templates import ChatTemplate, symbols
from retok_dask.templates.paths import Paths
from retok_dask.templates.program import Program
from retok_dask.types import Conversation, RecordRejected, RejectReason

TEXTS = ["alpha", "beta gamma", "one\ntwo", "x"]
SOFT = [
    "", " ", "\n", "a", "A", "yes", "x", "xx", "xyz", "zyx", "y", "word", "Word", " x", "x ", "\nx\n", "x\ny", "0", "12", "a" * 40, "user",
    "assistant", "é", "中文", "\u00a0x", "\u2028x", "\x1cx", "\t", "<b>", "&", '"', "\\", "{{ x }}",
]  # fmt: skip


def wrapped(piece: str) -> str:
    """A template for plain conversations that does something with each text."""
    return (
        "{% for message in messages %}{% set text = message['content'] %}"
        "<|im_start|>{{ message['role'] }}\n" + piece + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


ASKING = {
    "holds": "{% if 'x' in text %}[!]{% endif %}{{ text }}",
    "holds none": "{% if 'x' not in text %}[no]{% endif %}{{ text }}",
    "begins": "{% if text.startswith('x') %}[!]{% endif %}{{ text }}",
    "ends": "{% if text.endswith('x') %}[!]{% endif %}{{ text }}",
    "is": "{% if text == 'x' %}[!]{% endif %}{{ text }}",
    "is not": "{% if 'x' != text %}[!]{% endif %}{{ text }}",
    "is one of": "{% if text in ['x', 'yes'] %}[!]{% endif %}{{ text }}",
    "is there": "{% if text %}[{{ text }}]{% else %}[nothing]{% endif %}",
    "is blank": "{% if text | trim %}{{ text }}{% else %}[blank]{{ text }}{% endif %}",
    "or": "{{ text or '[nothing]' }}",
    "and": "{{ (text and '[some]') ~ text }}",
    "choice": "{{ '[!]' if 'x' in text else '[no]' }}{{ text }}",
    "default": "{{ text | default('[none]', true) }}",
    "long": "{% if text | length > 10 %}[long]{% endif %}{{ text }}",
    "long by turns": "{% if 3 <= text | length %}[long]{% elif text | count == 1 %}[one]{% endif %}{{ text }}",
    "length": "[{{ text | length }}]{{ text }}",
    "trimmed": "{{ text | trim }}",
    "trimmed here": "{{ text.lstrip('\\n').rstrip() }}",
    "trimmed letters": "{{ text.strip('x') }}",
    "trimmed with more": "{{ ('\\n' ~ text ~ '\\n') | trim }}",
    "joined": "{{ '[' + text + ']' }}",
    "joined otherwise": "{{ text ~ '[' ~ text ~ ']' }}",
    "the first line": "{{ text.split('\\n')[0] }}",
    "the last part": "{{ text.split('x')[-1] }}",
    "each part": "{% for part in text.split('x') %}[{{ part }}]{% endfor %}",
    "split by nothing": "{% if text.split() | length > 1 %}[!]{% endif %}{{ text }}",
    "split together": "{{ ('<a>' ~ text ~ '</a>').split('</a>')[0] }}",
    "replaced": "{{ text | replace('x', 'XX') }}",
    "replaced here": "{{ text.replace('x', '') }}",
    "larger": "{% if text | upper == 'YES' %}[!]{% endif %}{{ text }}",
    "a method": "{% if text.title() == 'Word' %}[!]{% endif %}{{ text }}",
    "asks a method": "{% if text.isdigit() %}[0]{% endif %}{{ text }}",
    "asks for a method": "{% if text.upper %}[upper]{% endif %}{{ text }}",
    "has no such": "{% if text.nothing %}[some]{% endif %}{{ text }}",
    "a character": "{% if text[0] == 'y' %}[!]{% endif %}{{ text }}",
    "some characters": "{% if text[:2] == 'xx' %}[!]{% endif %}{{ text }}",
    "each character": "{% for c in text %}{{ c }}{% endfor %}",
    "is text": "{% if text is string %}[text]{% endif %}{{ text }}",
    "is a list": "{% if text is sequence and text is iterable and text is not mapping %}[many]{% endif %}{{ text }}",
    "is a number": "{% if text is number or text is boolean or text is none %}[one]{% endif %}{{ text }}",
    "is large": "{% if text is upper %}[upper]{% endif %}{{ text }}",
    "as JSON": "{{ text | tojson }}",
    "in JSON": "{{ {'text': text} | tojson }}",
    "in a list": "{{ [text, text] | join(', ') }}",
    "of a list": "{{ [text, '[2]'] | first }}",
    "as a key": "{{ {'x': '[!]'}.get(text, '') }}{{ text }}",
    "compared": "{% if text < 'x' %}[less]{% endif %}{{ text }}",
    "formatted": "{{ '%s' % text }}",
    "formatted here": "{{ '{}'.format(text) }}",
    "multiplied": "{{ text * 2 }}",
    "block": "{% set kept %}[{{ text }}]{% endset %}{{ kept | trim }}",
    "filter block": "{% filter trim %} {{ text }} {% endfilter %}",
    "macro": "{% macro show(t) %}{% if 'x' in t %}[!]{% endif %}{{ t }}{% endmacro %}{{ show(text) | trim }}",
    "caller": "{% macro show() %}[{{ caller() }}]{% endmacro %}{% call show() %}{{ text }}{% endcall %}",
    "remembered": "{% set ns = namespace(t='') %}{% set ns.t = ns.t ~ text %}{{ ns.t }}",
    "as before": "{% if loop.previtem is defined and loop.previtem.content == text %}[same]{% endif %}{{ text }}",
    "changed": "{% if loop.changed(text) %}[new]{% endif %}{{ text }}",
    "sorted": "{{ text }}{% for m in messages | sort(attribute='content') %}{{ m.role[0] }}{% endfor %}",
    "chosen": "{{ text }}{% if messages | selectattr('content') | list | length > 1 %}[some]{% endif %}",
    "the rest": "{% for m in messages %}{% if 'x' in m.content %}!{% endif %}{% endfor %}{{ text }}",
    "has parts": "{% if text.parts is undefined and 'x' in text %}[!]{% endif %}{{ text }}",
    "has steps": "{% if not text['steps'] and 'x' in text %}[!]{% endif %}{{ text }}",
    "as a number": "{% if text | int > 5 %}[!]{% endif %}{{ text }}",
    "as a real number": "{% if text | float > 5 %}[!]{% endif %}{{ text }}",
    "of an object": "{{ {'x': '[!]'}[text] }}{{ text }}",
    "length is a number": "{% if text | length is number and 'x' in text %}[!]{% endif %}{{ text }}",
    "length as it is": "{% if text | length | default(0) > 10 %}[!]{% endif %}{{ text }}",
    "default is a text": "{{ nothing | default(text) }}",
    "joined by it": "{% if ['a', 'b'] | join(text) == 'axb' %}[!]{% endif %}{{ text }}",
    "much": "{% for n in range(90) %}{% if (n ~ 'x') in text %}[!]{% endif %}{% endfor %}{{ text }}",
    "more and more": "{% set ns = namespace(t='') %}{% for n in range(90) %}{% set ns.t = ns.t ~ text ~ n %}"
    "{% if 'xx' in ns.t %}{% endif %}{% endfor %}{{ text }}",
    # loops over characters: those that do nothing there are skipped, the others must not be
    "each part's type": "{% for c in text %}{% if c['type'] == 'image' %}[picture]{% elif c.type | lower in ['a', 'b'] %}[!]"
    "{% endif %}{% endfor %}{{ text }}",
    "each part of a message": "{% for c in message.content %}{% if 'image' in c or (c is mapping and c.x) %}[picture]"
    "{% else %}{% if c.type is defined %}[!]{% endif %}{% endif %}{% endfor %}{{ text }}",
    "each character's type": "{% for c in text %}{% if c.type != 'image' %}.{% endif %}{% endfor %}{{ text }}",
    "no type": "{% for c in text %}{% if c.type is not defined %}.{% endif %}{% endfor %}{{ text }}",
    "no type or x": "{% for c in text %}{% if c.type == 'x' or c == 'x' %}.{% endif %}{% endfor %}{{ text }}",
    "x in each": "{% for c in text %}{% if 'x' in c %}.{% endif %}{% endfor %}{{ text }}",
    "nothing in each": "{% for c in text %}{% if '' in c %}.{% endif %}{% endfor %}{{ text }}",
    "a field of texts": "{% for c in text %}{% if c.title is defined %}.{% endif %}{% endfor %}{{ text }}",
    "no type as a text": "{% for c in text %}{% if c.type | trim == '' %}.{% endif %}{% endfor %}{{ text }}",
    "type or else": "{% for c in text %}{% if c.type == 'x' %}!{% else %}.{% endif %}{% endfor %}{{ text }}",
    "no parts": "{% for c in text %}{% if c.type == 'x' %}!{% endif %}{% else %}[none]{% endfor %}{{ text }}",
    "parts that fit": "{% if 'x' in text %}{% for c in text if c.get('type') %}{% if c.type == 'x' %}!{% endif %}"
    "{% endfor %}{% endif %}{{ text }}",
    "a text at each": "{% for c in text %}{% if c.type == 'x' %}!{% endif %}.{% endfor %}{{ text }}",
    "a count at each": "{% set ns = namespace(n=0) %}{% for c in text %}{% if c.type == 'x' %}!{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ text }}",
    "what no text has": "{% if 'x' in text %}{% for c in text %}{% if c.get('type') == 'x' and c.type == 'x' %}!{% endif %}"
    "{% endfor %}{% endif %}{{ text }}",
    "all keys": "{% for key, value in message.items() %}{{ key }}={{ value }};{% endfor %}",
}


@pytest.mark.parametrize(
    ("what", "engine"), [(what, "auto") for what in ASKING] + [(what, "reference") for what in [*ASKING][::5]]
)
def test_whatever_a_template_asks_of_a_text(what, engine):
    """Rows like those before, with texts for which its questions have other answers."""
    template = load(wrapped(ASKING[what]), engine=engine)
    other = unchecked(ChatTemplate.restore(template.reduce()))
    for known in TEXTS:
        for _ in range(12):
            answer(template, chat(("user", known), ("assistant", "fine")))
    for text in SOFT:
        for asked in (chat(("user", text), ("assistant", "fine")), chat(("user", "alpha"), ("assistant", text))):
            found = answer(unchecked(template), asked)
            assert found == answer_of_the_template(other, asked)
            if isinstance(found, list):
                assert found[0][0] == template.reference_text(asked)


def answer_of_the_template(template: ChatTemplate, conversation: Conversation) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Paths, "shape", lambda *_: None)
        return answer(template, conversation)


def answer(template: ChatTemplate, conversation: Conversation) -> object:
    try:
        rows = template.render(conversation)
    except RecordRejected as refused:
        return refused.reason, refused.detail
    return [(row.text, spans(row), row.escapes, row.counts, row.turn) for row in rows]


FOLLOWED = [name for name in FAMILIES if name != "axolotl/mistral_v3_tekken"]
# tags; messages in pieces; an end behind all messages; a default system text with the first message; Jinja alone;
# a look at each character
OTHERWISE = [
    "llama-cpp-python/LFM2.5-8B-A1B", "trl/gptoss_training", "trl/glm4moe_training", "llama-cpp-python/Kimi-K2-Thinking",
    "llama-cpp-python/Kimi-K3", "trl/phi3", "axolotl/metharme", "llama-cpp-python/Kimi-K2-Instruct", "axolotl/jamba",
    "llama-cpp-python/GigaChat3-10B-A1.8B", "axolotl/llama3_2_vision",
]  # fmt: skip


def said(user: str, answer_: str, *, system: str | None = None, reasoning: str | None = None) -> Conversation:
    messages = [{"role": "system", "content": system}] if system is not None else []
    reply = {"role": "assistant", "content": answer_}
    if reasoning is not None:
        reply["reasoning_content"] = reasoning
    return Conversation([*messages, {"role": "user", "content": user}, reply])


@pytest.mark.parametrize("name", FOLLOWED + OTHERWISE)
def test_rows_of_a_known_path_need_no_template(name, monkeypatch):
    template = ChatTemplate.restore(public(name).reduce())
    for number in range(24):
        template.render(said(f"Question {number}?", f"Answer {number}."))
    expected = answer(ChatTemplate.restore(template.reduce()), said("Another?", "Yes.\n\nIt is."))
    monkeypatch.setattr(Program, "rendering", lambda *_, **__: pytest.fail("rendered by the template"))
    assert answer(template, said("Another?", "Yes.\n\nIt is.")) == expected


@pytest.mark.parametrize("name", ["trl/qwen3", "trl/gptoss", "trl/gemma4_v5", "trl/llama3_1"])
def test_each_row_may_have_a_system_message_of_its_own(name, monkeypatch):
    template = ChatTemplate.restore(public(name).reduce())
    for number in range(24):
        template.render(said(f"Question {number}?", "Yes.", system=f"You are number {number}."))
    asked = said("Another?", "Yes.", system="Be kind.\n\nAnd brief.")
    expected = answer(ChatTemplate.restore(template.reduce()), asked)
    monkeypatch.setattr(Program, "rendering", lambda *_, **__: pytest.fail("rendered by the template"))
    assert answer(template, asked) == expected


@pytest.mark.parametrize(
    "piece",
    [
        "{% if message.role != 'tool' %}{{ text }}{% else %}called: a{% endif %}",
        "{{ text if message.role != 'system' else 'a system' }}",
    ],
)
def test_what_a_template_leaves_out_is_counted_in_each_row(piece):
    """Its text may stand in the template's own by chance in the row that others would follow."""
    template = unchecked(load(wrapped(piece)))
    roles = ("system", "user", "assistant", "tool", "assistant")
    for number in range(12):
        template.render(chat(*[(role, "a" if role in ("system", "tool") else f"{role} {number}") for role in roles]))
    asked = chat(*[(role, f"another {role}") for role in roles])
    found = template.render(asked)[0].counts
    assert found == ChatTemplate.restore(template.reduce()).render(asked)[0].counts
    assert sum(found.values()) > 0


@pytest.mark.parametrize(
    ("name", "history"),
    [(name, "whole") for name in FOLLOWED[::2] + OTHERWISE[::2]] + [(name, "per_turn") for name in FOLLOWED[1::4]],
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.tuples(plain, plain, plain, plain),
    reasoning=st.one_of(st.none(), plain),
    system=st.sampled_from([None, "Be kind.", " a "]),
)
def test_known_paths_change_nothing(name, history, texts, reasoning, system):
    """The law of rows rendered before, for rows of few shapes."""
    warm = public(name, control_tokens="allow", history=history)
    first, second = said(*texts[:2], system=system), said(*texts[2:], reasoning=reasoning)
    asked = Conversation([*first.messages, *second.messages])
    for _ in range(7):
        answer(warm, asked)
    assert answer(unchecked(warm), asked) == answer_of_the_template(warm, asked)


@pytest.mark.parametrize("marks", [("[!]", ""), ("", "[!]")])
def test_a_path_that_was_wrong_is_given_up_and_counted(monkeypatch, marks):
    """Should a question go unnoticed, the comparison of a path's first rows with the template's finds it."""
    monkeypatch.setattr(symbols.Steps, "ask", lambda _, __, answer: answer)
    template = load(wrapped(f"{{% if 'x' in text %}}{marks[0]}{{% else %}}{marks[1]}{{% endif %}}{{{{ text }}}}"))
    rows = [chat(("user", text), ("assistant", "fine")) for text in "abcdefgxhijkx"]
    found = [unchecked(template).render(row)[0] for row in rows]
    assert [row.text for row in found] == [template.reference_text(row) for row in rows]
    assert sum(row.counts.get("engine_mismatch", 0) for row in found) == 1


def test_what_is_empty_in_a_row_makes_no_giant_either():
    """Doubled again and again, an empty text stays empty; what stands for it would not."""
    doubling = (
        "{% set ns = namespace(t=text) %}{% for n in range(22) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}"
    )
    template = unchecked(load(wrapped("{% if text | length < 2 %}" + doubling + "{% else %}{{ text }}{% endif %}")))
    rows = [chat(("user", ""), ("assistant", f"fine {number}")) for number in range(12)]
    tracemalloc.start()
    try:
        found = [template.render(row)[0].text for row in rows]
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert found == [template.reference_text(row) for row in rows]


def test_a_path_prints_no_more_than_a_template_may():
    template = unchecked(load(wrapped("{{ text }}" * 600), engine="reference"))
    for _ in range(40):
        template.render(chat(("user", "short"), ("assistant", "fine")))
    tracemalloc.start()
    try:
        with pytest.raises(RecordRejected) as refused:
            template.render(chat(("user", "long " * 40_000), ("assistant", "fine")))
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    assert refused.value.reason == RejectReason.render_limit


@pytest.mark.parametrize("name", FOLLOWED)
def test_other_tools_systems_and_names_take_other_paths(name):
    template = unchecked(ChatTemplate.restore(public(name).reduce()))
    for number in range(40):
        tool = {
            "name": f"look_up_{number % 3}",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {}},
        }
        asked = said(
            f"Question {number}?", "Yes.", system=["Be kind.", "Be brief.", None][number % 2 + number % 3 // 2]
        )
        asked.tools = [{"type": "function", "function": tool}] if number % 4 else None
        if number % 5 == 0:
            asked.messages[-2]["name"] = f"user_{number % 2}"
        assert answer(template, asked) == answer_of_the_template(template, asked)
        assert template.render(asked)[0].text == template.reference_text(asked)


@pytest.mark.parametrize("call", ["{{ ['a', 'b'] | random }}", "{{ lipsum() }}"])
def test_random_text_is_refused(call):
    """Rows would differ from worker to worker."""
    template = load(wrapped("{{ text }}{% if 'dice' in text %}" + call + "{% endif %}"))
    with pytest.raises(RecordRejected, match="random text"):
        template.render(chat(("user", "throw the dice"), ("assistant", "fine")))


@pytest.mark.parametrize("name", ["axolotl/llama3", "trl/llama3", "trl/gemma", "llama-cpp-python/google-gemma-2-2b-it"])
@pytest.mark.parametrize("first", ["", " \n", "A question?"])
def test_bos_is_bos_whatever_the_first_message_says(name, first):
    """Some templates print it with the first message; a row like many others has it too."""
    template = ChatTemplate.restore(public(name).reduce())
    for number in range(20):
        template.render(said(f"Question {number}?", "Yes."))
    for asked in (template, ChatTemplate.restore(template.reduce())):
        assert spans(unchecked(asked).render(said(first, "Yes."))[0])[0] == ("bos", -1, "<BOS>")


def test_rows_read_as_usual_are_those_of_a_new_process():
    """Whatever makes a row usual, its spans and counts are found by a search too."""
    for name in OTHERWISE:
        warm = unchecked(public(name, control_tokens="allow"))
        asked = chat(
            ("user", "one two"), ("assistant", "fine"), ("user", "two"), ("assistant", "finer"), ("user", "three")
        )
        for number in range(2):
            warm.render(chat(("user", "one"), ("assistant", f"fine {number}"), ("user", "two"), ("assistant", "finer")))
        assert answer_of_the_template(warm, asked) == answer(ChatTemplate.restore(warm.reduce()), asked), name


def test_tags_around_nothing_end_no_text():
    piece = "{% if message.role == 'assistant' %}{% generation %}{{ text[:3] }}{% endgeneration %}{% generation %}{% endgeneration %}{{ text[3:] }}{% else %}{{ text }}{% endif %}"
    row = load(wrapped(piece)).render(chat(("user", "one"), ("assistant", "fine words")))[0]
    assert [text for kind, _, text in spans(row) if kind in ("content", "scaffold")] == ["fin", "e words"]
