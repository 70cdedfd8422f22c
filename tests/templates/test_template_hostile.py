"""Templates are code from strangers: each attempt ends soon, with a clear error."""

from __future__ import annotations

import time
from functools import partial

import pytest
from templates_common import chat, load, public, unchecked

from retok_dask.errors import TemplateError
from retok_dask.templates import template as module
from retok_dask.templates.limits import Limits
from retok_dask.types import RecordRejected, RejectReason

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SET = "{% set ns.x = STEP %}"
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
    "macro": "{% macro d(t) %}{{ t }}{{ t }}{% endmacro %}" + GROW.replace("STEP", "d(ns.x)"),
    "macro that is passed on": "{% macro d(t) %}{{ t }}{{ t }}{% endmacro %}{% set f = d %}"
    + GROW.replace("STEP", "f(ns.x)"),
    "macro that calls itself": "{% macro d(t, k) %}{{ d(t ~ t, k - 1) if k else t }}{% endmacro %}{{ d('aaaaaaaa', 60) }}",
    "macros one in another": "{% macro d0(t) %}{{ t }}{{ t }}{% endmacro %}"
    + "".join(
        f"{{% macro d{k}(t) %}}{{% set u = d{k - 1}(t) %}}{{{{ u }}}}{{{{ u }}}}{{% endmacro %}}" for k in range(1, 60)
    )
    + "{{ d59('aaaaaaaa') }}",
    "namespace of another name": "{% macro d(a, b) %}{% set a.x = b.x ~ b.x %}{% endmacro %}"
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{{ d(ns, ns) }}{% endfor %}",
    "caller": "{% macro d() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set ns = namespace(x='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set y %}{% call d() %}{{ ns.x }}{% endcall %}{% endset %}{% set ns.x = y %}{% endfor %}",
    "set block": GROW.replace("{% set ns.x = STEP %}", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "set blocks": "{% set x = 'aaaaaaaa' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "loops in set blocks": "{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in range(9999) %}{{ x }}{% endfor %}{% endset %}" * 4,
    "loops in a macro": "{% macro d(t) %}{% for i in range(9999) %}{{ t }}{% endfor %}{% endmacro %}{% set x = d(d(d(d('a')))) %}",
    "filter block": GROW.replace(
        "{% set ns.x = STEP %}", "{% set ns.x %}{% filter replace('a', 'aa') %}{{ ns.x }}{% endfilter %}{% endset %}"
    ),
    "with": "{% set x = 'aaaaaaaa' %}" + "{% with y = x %}{% set x = y ~ y %}" * 60 + "{% endwith %}" * 60,
    "object": "{% set x = 'aaaaaaaa' %}" + "{% set d = {'x': x} %}{% set x = d.x ~ d.x %}" * 60,
    "namespaces": "{% set x = 'aaaaaaaa' %}" + "{% set d = namespace(x=x) %}{% set x = d.x ~ d.x %}" * 60,
    "replace by more": GROW.replace("STEP", "ns.x|replace('a', 'aaaaa')"),
    "replace method by more": GROW.replace("STEP", "ns.x.replace('a', 'aaaaa')"),
    "replace nothing": GROW.replace("STEP", "ns.x|replace('', 'aaaaa')"),
    "tojson": GROW.replace("'aaaaaaaa'", "'\"'").replace("STEP", "ns.x|tojson"),
    "tojson often": "{{ '\"'" + "|tojson" * 60 + " }}",
    "list to text": GROW.replace("'aaaaaaaa'", "'\\\\'").replace("STEP", "[ns.x]|string"),
    "join characters": GROW.replace("STEP", "ns.x|list|join('aaaaaaaa')"),
    "map": "{% set x = 'aaaaaaaa' %}" + "{% set x = [{'y': x}, {'y': x}]|map(attribute='y')|join('') %}" * 60,
    "nested lists": "{% set x = ['aaaaaaaa'] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
    "nested lists compared": "{% set x = ['a'] %}{% set y = ['a'] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 60
    + "{{ x == y }}",
    "nested objects": "{% set x = {'a': 'a'} %}" + "{% set x = {'a': x, 'b': x} %}" * 60 + "{{ x|tojson }}",
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
    "text handed to a call block": "{% macro d(t) %}{{ caller(t ~ t) }}{% endmacro %}"
    + GROW.replace(SET, "{% set y %}{% call(z) d(ns.x) %}{{ z }}{% endcall %}{% endset %}{% set ns.x = y %}"),
    "default of a call block": "{% macro d() %}{{ caller() }}{% endmacro %}"
    + GROW.replace(SET, "{% set y %}{% call(z=ns.x ~ ns.x) d() %}{{ z }}{% endcall %}{% endset %}{% set ns.x = y %}"),
    "default of a macro": "{% macro d(a, b=a ~ a) %}{{ b }}{% endmacro %}" + GROW.replace("STEP", "d(ns.x)"),
    "namespace of an object": "{% set x = 'aaaaaaaa' %}"
    + "{% set n = namespace({'a': x}) %}{% set x = n.a ~ n.a %}" * 24,
    "namespace within": "{% set x = 'aaaaaaaa' %}" + "{% set x = [namespace(a=x ~ x)][0].a %}" * 24,
    "namespace handed on": "{% macro d(n) %}{{ n.x }}{{ n.x }}{% endmacro %}{% set x = 'aaaaaaaa' %}"
    + "{% set x = d(namespace(x=x)) %}" * 24,
    "namespace by key": GROW.replace("STEP", "ns['x'] ~ ns['x']"),
    "joiner": "{% set x = 'aaaaaaaa' %}"
    + "{% set j = joiner(x) %}{% set x %}{{ j() }}{{ j() }}{{ j() }}{{ j() }}{{ j() }}{% endset %}" * 24,
    "cycler": "{% set x = 'aaaaaaaa' %}"
    + "{% set c = cycler(x) %}{% set x %}{{ c.next() }}{{ c.next() }}{% endset %}" * 24,
    "dict": GROW.replace("'aaaaaaaa'", "'\\\\'").replace("STEP", "dict(a=ns.x) ~ ''"),
    "range between": "{% set k = 9999 %}{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in range(1, k) %}{{ x }}{% endfor %}{% endset %}" * 4,
    "range down": "{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in range(9999, 1, -1) %}{{ x }}{% endfor %}{% endset %}" * 4,
    "range of a sum": "{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in range(4999 + 4999) %}{{ x }}{% endfor %}{% endset %}" * 4,
    "range of its own": "{% macro range(n) %}"
    + "a" * 5000
    + "{% endmacro %}{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in range(1) %}{{ x }}{% endfor %}{% endset %}" * 4,
    "range in a variable": "{% set r = range(9999) %}{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in r %}{{ x }}{% endfor %}{% endset %}" * 4,
    "loop over its own list": "{% set l = namespace(l=[]) %}{% for i in range(999) %}{% set l.l = l.l + [1] %}{% endfor %}{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in l.l %}{{ x }}{% endfor %}{% endset %}" * 4,
    "loop over many": "{% set x = 'aaaaaaaa' %}"
    + "{% set x %}{% for i in [''] * 9999 %}{{ x }}{% endfor %}{% endset %}" * 4,
    "printed text in loops": "{% set x = '' %}"
    + ("{% set x %}{% for i in range(999) %}" + "a" * 99 + "{{ x }}{% endfor %}{% endset %}") * 4,
    "map replace": "{% set x = ['aaaaaaaa'] %}" + "{% set x = x|map('replace', 'a', 'aa')|list %}" * 24,
    "map join": "{% set x = 'aaaaaaaa' %}" + "{% set x = [x]|map('join', 'aaaa')|first %}" * 24,
    "map indent": "{% set x = ['a\nb']|map('indent', 9999999999)|list %}",
    "map by another name": "{% set f = 'replace' %}{% set x = 'aaaaaaaa' %}"
    + "{% set x = [x]|map(f, 'a', 'aa')|first %}" * 24,
    "map default": "{% set x = 'aaaaaaaa' %}" + "{% set x = ([none] * 9999)|map('default', x, true)|join %}" * 4,
    "sum": "{% set x = ['aaaaaaaa'] %}" + "{% set x = [x, x]|sum(start=[]) %}" * 24,
    "groupby": "{% set x = ['aaaaaaaa'] %}" + "{% set x = [{'a': x}, {'a': x}]|groupby('a') %}" * 24 + "{{ x|string }}",
    "tojson indent": "{{ messages|tojson(indent=999999999) }}",
    "tojson indent text": "{{ messages|tojson(indent='a' * 101) }}",
    "tojson separators": "{{ messages|tojson(separators=(',' * 101, ':')) }}",
    "split": GROW.replace("'aaaaaaaa'", "'\\\\'").replace("STEP", "ns.x.split('b') ~ ''"),
    "items": GROW.replace("'aaaaaaaa'", "'\\\\'").replace("STEP", "({'a': ns.x}|items|list|first) ~ ''"),
    "list in capitals": GROW.replace("'aaaaaaaa'", "'\\\\'").replace("STEP", "[ns.x]|upper"),
    "filters of a block": GROW.replace(
        SET, "{% set y %}{% filter upper|replace('A', 'AA') %}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x = y %}"
    ),
    "replacements that cancel": "{% set x = ''" + "|replace('', 'aaaaaaaa')|replace('a', 'aaaaaaaa')" * 12 + " %}",
    "what it printed": "{% macro f(k) %}{% if k %}{% set y = f(k - 1) %}{{ y }}{{ y }}{% else %}aaaaaaaa{% endif %}{% endmacro %}{% set x = f(60) %}",
    "what it printed of a part": "{% macro f(t) %}{% if t %}{% set y = f(t[1:]) %}{{ y }}{{ y }}{% else %}a{% endif %}{% endmacro %}{% set x = f('a' * 24) %}",
    "in turn": "{% set ns = namespace(a='aaaaaaaa', b='') %}{% for i in range(60) %}{% set ns.b = ns.a %}{% set ns.a = ns.b ~ ns.a %}{% endfor %}",
    "one by one": "{% set ns = namespace(a='a', b='', c='', d='') %}{% for i in range(999) %}{% set ns.b = ns.b ~ ns.a %}{% endfor %}{% for i in range(999) %}{% set ns.c = ns.c ~ ns.b %}{% endfor %}{% for i in range(999) %}{% set ns.d = ns.d ~ ns.c %}{% endfor %}",
    "loops over data": "{% set m = messages[0].content * 99 %}{% set x = m %}"
    + "{% set x %}{% for c in m %}{{ x }}{% endfor %}{% endset %}" * 4,
    "format twice": GROW.replace("STEP", "'{}{}'.format(ns.x, ns.x)"),
    "numbers of the data": "{% if not k %}{% set k = 999999999 %}{% endif %}{% set x = 'aaaaaaaa' * k %}",
    "an endless number": "{% set x = 'a' * " + "9" * 400 + " %}",
}
NEVER_FAST = {
    "caller of a caller": "{% macro b() %}{{ caller() }}{{ caller() }}{% endmacro %}{% macro a() %}{% call b() %}"
    "{{ caller() }}{% endcall %}{% endmacro %}{% set x %}{% call a() %}a{% endcall %}{% endset %}",
    "variable of the round before": "{% for i in range(60) %}{% set x = x|default('aaaaaaaa') %}{% set x = x ~ x %}{% endfor %}",
    "assigned in a set block": "{% set x = 'aaaaaaaa' %}" + "{% set z %}{% set x = x ~ x %}{% endset %}" * 60,
    "assigned in a filter block": "{% set x = 'aaaaaaaa' %}"
    + "{% filter upper %}{% set x = x ~ x %}{% endfilter %}" * 60,
    "assigned in an empty loop": "{% set x = 'aaaaaaaa' %}"
    + "{% for i in [] %}{% else %}{% set x = x ~ x %}{% endfor %}" * 60,
    "with, one of another": "{% with a0 = 'aaaaaaaa'"
    + "".join(f", a{k + 1} = a{k} ~ a{k}" for k in range(60))
    + " %}{% endwith %}",
    "changing the data by another name": "{% set f = messages.extend %}{% for i in range(60) %}{% set _ = f(messages) %}{% endfor %}",
    "changing the data by a key": "{% set d = {'get': messages['ext' ~ 'end']} %}{% for i in range(60) %}{% set _ = d.get(messages) %}{% endfor %}",
    "a filter that nobody knows": "{{ messages|multiply }}",
    "namespace of a namespace": "{% set x = namespace(a='aaaaaaaa') %}"
    + "{% set x = namespace({'a': x.a ~ x.a}) %}" * 24,
    "loop over its own text": "{% set x = 'aaaaaaaa' %}"
    + ("{% set x %}{% for i in '" + "b" * 999 + "' %}{{ x }}{% endfor %}{% endset %}") * 4,
    "map in map": "{% set x = 'aaaaaaaa' %}"
    + "{% set x = [[x]]|map('map', 'replace', 'a', 'aa')|map('first')|first %}" * 24,
    "map default attribute": "{% set x = 'aaaaaaaa' %}"
    + "{% set x = range(9999)|map(attribute='q', default=x)|join %}" * 4,
    "indent float": "{% set x = '\n' * 9999 %}{% set x = x|indent(999999.0) %}",
    "list of a text": GROW.replace("STEP", "(ns.x|list) ~ ''"),
    "list of a text, printed": GROW.replace(SET, "{% set y %}{{ ns.x|list }}{% endset %}{% set ns.x = y %}"),
    "filters of a set block": "{% set x = 'aaaaaaaa' %}"
    + "{% set x | upper | replace('A', 'aa') %}{{ x }}{% endset %}" * 24,
    "numbers in loops": "{% set ns = namespace(a='', b='', c='') %}{% for i in range(999) %}{% set ns.a = ns.a ~ 1 %}{% endfor %}{% for i in range(9999) %}{% set ns.b = ns.b ~ ns.a %}{% endfor %}{% for i in range(999) %}{% set ns.c = ns.c ~ ns.b %}{% endfor %}",
    "whether, in loops": "{% set x = true %}"
    + "{% set x %}{% for i in range(999) %}{{ x == x }}{{ x }}{% endfor %}{% endset %}" * 4,
}
"""What makes giants in minijinja alone, or slowly in Jinja."""

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
def test_endless_and_giant_templates_are_stopped(code, monkeypatch):
    """Those that time alone ends are given less of it here; of a template hostile to some data one is given all."""
    if code in ENDLESS.values():
        monkeypatch.setattr(module, "Limits", partial(Limits, seconds=1.0))
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


@pytest.mark.parametrize("code", GIANTS.values(), ids=GIANTS)
def test_a_template_that_makes_giants_of_some_data_only_costs_that_record(code):
    """The fast engine cannot be stopped in the middle: it is never given such a template."""
    template = load("{% if 'BOOM' in messages[0].content %}" + code + "{% endif %}" + CHATML)
    assert template.engine == "jinja"
    assert template.render(chat(("user", "u"), ("assistant", "a")))
    with pytest.raises(RecordRejected) as refused:
        template.render(chat(("user", "BOOM"), ("assistant", "a")))
    assert refused.value.reason in (RejectReason.render_limit, RejectReason.template_error)


@pytest.mark.parametrize("code", NEVER_FAST.values(), ids=NEVER_FAST)
def test_a_template_that_only_the_fast_engine_makes_giants_of_runs_in_the_other(code):
    template = load("{% if 'BOOM' in messages[0].content %}" + code + "{% endif %}" + CHATML)
    assert template.engine == "jinja"
    assert template.render(chat(("user", "u"), ("assistant", "a")))


@pytest.mark.parametrize(
    "code",
    ["messages.append(m)", "messages.extend(messages)", "messages.pop()", "m.update({'content': 'x'})", "m.clear()"],
)
def test_no_engine_lets_a_template_change_its_data(code):
    changes = f"{{% if 'BOOM' in m.content %}}{{% set _ = {code} %}}{{% endif %}}<|im_start|>"
    template = unchecked(load(CHATML.replace("<|im_start|>", changes, 1)))
    assert template.engine == "minijinja"
    conversation = chat(("user", "BOOM"), ("assistant", "a"))
    with pytest.raises(RecordRejected) as refused:
        template.render(conversation)
    assert refused.value.reason == RejectReason.template_error
    assert conversation.messages == chat(("user", "BOOM"), ("assistant", "a")).messages


def test_json_with_short_indentation_and_separators_stays_in_the_fast_engine():
    template = load("{% if tools %}{{ tools|tojson(indent=100, separators=(', ', ': ')) }}{% endif %}" + CHATML)
    assert template.engine == "minijinja"


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
    "code",
    [
        "".join(f"{{% set v{k} = 1 %}}" for k in range(1000)) + "{% if a %}b{% else %}c{% endif %}" * 400,
        "{% macro m0(t) %}{{ t }}{% endmacro %}"
        + "".join(
            f"{{% macro m{k}(t) %}}{{{{ m{k - 1}(t) }}}}{{{{ m{k - 1}(t) }}}}{{% endmacro %}}" for k in range(1, 40)
        ),
        "".join(f"{{% macro f{k}(t) %}}{{{{ f{(k + 1) % 150}(t.a) }}}}{{% endmacro %}}" for k in range(150))
        + "{% if false %}{{ f0(1) }}{% endif %}",
    ],
)
def test_looking_for_giants_ends_soon(code):
    started = time.monotonic()
    template = load(code + ("{{ m39(1) if false }}" if "m39" in code else "") + CHATML)
    assert template.engine == "jinja"
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% for m in messages %}\n{{ m.content \n{% endfor %}", "line 3"),
        ("{% for m in messages %}\n{{ m.content }}", "line 2"),
        ("{% do x %}" + CHATML, "line 1"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("{{ messages" + "|list" * 900 + " }}", "nested too deeply"),
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


def test_a_template_that_goes_through_texts_character_by_character_stays_in_the_fast_engine():
    template = public("axolotl/llama3_2_vision")
    row = template.render(chat(("user", "u" * 5000), ("assistant", "a" * 5000)))[0]
    assert template.engine == "minijinja"
    assert "engine_fallback" not in row.counts


def test_public_templates_stay_under_their_limits_on_long_conversations():
    turns = [("user" if n % 2 == 0 else "assistant", f"turn {n} " * 50) for n in range(400)]
    for name in ("trl/qwen3", "trl/gptoss", "trl/gemma4_v5"):
        row = public(name).render(chat(*turns))[0]
        assert "engine_fallback" not in row.counts
