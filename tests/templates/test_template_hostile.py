"""Templates are code from strangers: each attempt ends soon, with a clear error."""

from __future__ import annotations

import time

import pytest
from templates_common import chat, load, public_texts

from retok_dask.errors import TemplateError
from retok_dask.types import RecordRejected, RejectReason

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GROW = "{% set ns = namespace(x='aaaaaaaa' ) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"

ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "tree": "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
}
GIANTS = {
    "doubling by ~": GROW.replace("STEP", "ns.x ~ ns.x"),
    "doubling by +": GROW.replace("STEP", "ns.x + ns.x"),
    "doubling lists": GROW.replace("'aaaaaaaa'", "[1]").replace("STEP", "ns.x + ns.x"),
    "replace": GROW.replace("STEP", "ns.x.replace('a', ns.x)"),
    "replace filter": GROW.replace("STEP", "ns.x|replace('a', ns.x)"),
    "join": GROW.replace("STEP", "([ns.x] * 1000)|join(ns.x)"),
    "join method": GROW.replace("STEP", "ns.x.join([ns.x] * 1000)"),
    "repetition": "{% set x = 'a' * 9999999999 %}",
    "list repetition": "{% set x = [1] * 9999999999 %}",
    "power": "{% set x = 9 ** 99999999 %}",
    "center": "{% set x = 'a'|center(9999999999) %}",
    "ljust": "{% set x = 'a'.ljust(9999999999) %}",
    "indent": "{% set x = 'a\nb'|indent(9999999999) %}",
    "% width": "{% set x = '%9999999999d' % 1 %}",
    "% star": "{% set x = '%*d' % (9999999999, 1) %}",
    "format": "{% set x = '{:9999999999}'.format(1) %}",
    "nested format": "{% set x = '{:{}}'.format(1, 9999999999) %}",
    "format filter": "{% set x = '%9999999999d'|format(1) %}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ namespace.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "random text": "{{ lipsum() }}",
    "mutation": "{% set _ = messages.append({'role': 'user', 'content': 'x'}) %}",
    "private name": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "file": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("code", [*ENDLESS.values(), *GIANTS.values()], ids=[*ENDLESS, *GIANTS])
def test_endless_and_giant_templates_are_stopped(code):
    started = time.monotonic()
    with pytest.raises(TemplateError, match=r"was stopped.*name another one"):
        load(code + CHATML)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES)
def test_escapes_are_refused(code):
    with pytest.raises(TemplateError):
        load(code + CHATML)


@pytest.mark.parametrize(
    "code", ["{{ raise_exception.__globals__ }}", "{{ ''|attr('__class__') }}", "{{ strftime_now.__self__ }}"]
)
def test_private_attributes_are_nothing(code):
    try:
        template = load(code + CHATML)
    except TemplateError:
        return
    text = template.render(chat(("user", "u"), ("assistant", "a")))[0].text
    assert text.startswith("<|im_start|>")


@pytest.mark.parametrize(
    "code",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=m.content) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% for c in m.content %}{% for d in m.content %}{{ m.content }}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_is_hostile_to_some_data_costs_that_record(code):
    text = CHATML.replace("<|im_start|>", "{% if 'BOOM' in m.content %}" + code + "{% endif %}<|im_start|>", 1)
    template = load(text)
    assert template.render(chat(("user", "u"), ("assistant", "a")))
    with pytest.raises(RecordRejected) as refused:
        template.render(chat(("user", "BOOM" + "x" * 3000), ("assistant", "a")))
    assert refused.value.reason == RejectReason.render_limit


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% for m in messages %}\n{{ m.content \n{% endfor %}", "line 3"),
        ("{% for m in messages %}\n{{ m.content }}", "line 2"),
        ("{% do x %}" + CHATML, "line 1"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("no messages at all", "does not come out"),
        ("{{ raise_exception('never') }}", "never"),
    ],
)
def test_broken_templates_name_what_is_wrong(text, says):
    with pytest.raises(TemplateError, match=says):
        load(text)


def test_a_template_whose_spans_cannot_be_proved_is_refused():
    from retok_dask.errors import UnprovenTemplate

    text = "{% set t = namespace(s='') %}{% for m in messages %}{% set t.s = m.content ~ t.s %}{% endfor %}{{ t.s[::-1][::-1] }}"
    with pytest.raises(UnprovenTemplate, match="masks would be a guess"):
        load(text)


def test_no_template_and_unknown_names():
    from templates_common import Facts

    with pytest.raises(TemplateError, match="no chat template"):
        load("", tokenizer=Facts(None))
    with pytest.raises(TemplateError, match="Did you mean 'default'"):
        load("", {"name": "defualt"}, tokenizer=Facts({"default": CHATML}))
    with pytest.raises(TemplateError, match="cannot read"):
        load("", {"path": "/nowhere/chat.jinja"}, tokenizer=Facts(None))


def test_public_templates_stay_under_their_limits_on_long_conversations():
    turns = [("user" if n % 2 == 0 else "assistant", f"turn {n} " * 50) for n in range(400)]
    for name in ("trl/qwen3", "trl/gptoss", "trl/gemma4_v5"):
        template = load(public_texts()[name])
        row = template.render(chat(*turns))[0]
        assert "engine_fallback" not in row.counts
