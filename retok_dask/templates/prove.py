"""Choosing how a template is marked: a ladder of methods, each proved by probes or not used.

A method proves itself when, for every probe the template renders, the marked
rendering is the plain one once its marks are cut out, fails exactly where the
plain one fails, and holds each message's texts in that message's runs and in
no other's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from retok_dask.errors import TemplateError, UnprovenTemplate
from retok_dask.templates.context import template_context, template_messages, text_parts
from retok_dask.templates.engines import IDENTIFY, Engine, JinjaEngine, MiniEngine
from retok_dask.templates.growth import growing
from retok_dask.templates.instrument import Method, assigned_messages, instrument
from retok_dask.templates.limits import LimitReached, Limits, Raised, RenderFailed
from retok_dask.templates.marks import Marks, unmark
from retok_dask.templates.probes import Message, Probe, probes
from retok_dask.templates.shape import Trace

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    import jinja2.nodes as n

Failure = Raised | RenderFailed

_MORE = 1000
"""Characters put to each text to find out whether a template goes through texts one by one."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a template wants to be called.

    Attributes:
        parts: contents as lists of text parts.
        text_arguments: tool arguments as JSON text.
        needs_tools: it renders only with tools given.
    """

    parts: bool = False
    text_arguments: bool = False
    needs_tools: bool = False


@dataclass(slots=True)
class Proof:
    """What was found out about one template text with one set of variables."""

    engine: str
    method: Method
    form: Form
    traces: list[Trace] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    fuel: tuple[int, int] = (0, 0)

    def dropped(self) -> Iterator[tuple[str, int, str]]:
        """What the template leaves out: (probe, message, part: R, C, T)."""
        for trace in self.traces:
            for number, message in enumerate(trace.probe.messages):
                named = [("C", message.get("content")), ("R", message.get("reasoning_content"))]
                named += [("T", call["function"]["name"]) for call in message.get("tool_calls") or []]
                own = trace.texts(number) if message.get("tool_calls") else [trace.runs.text]
                for part, text in named:
                    if text and text.strip() and not any(text.strip() in run for run in own):
                        yield trace.probe.name, number, part


@dataclass(slots=True)
class Setting:
    """What stays the same over all renders of a template.

    Attributes:
        variables: special tokens and template arguments.
        date: the day that ``strftime_now`` sees.
        limits: what one render may cost.
        fast: whether minijinja may be used.
    """

    variables: Mapping[str, Any]
    date: dt.date
    limits: Limits
    fast: bool = True


def engine_class(name: str) -> type[MiniEngine | JinjaEngine]:
    """The engine by its name."""
    return MiniEngine if name == MiniEngine.name else JinjaEngine


def shaped(messages: list[Message], form: Form) -> list[Message]:
    """Messages in the form that the template wants."""
    if form.text_arguments:
        messages = [_text_arguments(message) if message.get("tool_calls") else message for message in messages]
    return text_parts(messages) if form.parts else messages


def _text_arguments(message: Message) -> Message:
    import json  # noqa: PLC0415

    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"].get("arguments", {}), ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def render_plain(
    engine: Engine,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
    limit: int,
    *,
    generation_prompt: bool = False,
) -> str:
    """One render without marks."""
    context = template_context(template_messages(messages), tools, variables, generation_prompt=generation_prompt)
    return engine.render(context, limit)


def render_marked(
    engine: Engine,
    method: Method,
    marks: Marks,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
    limit: int,
    *,
    generation_prompt: bool = False,
) -> str:
    """One render by a marked engine, with its marks."""
    seen = template_messages(messages, marks if method.carry else None)
    if not method.carry:
        seen = [dict(message) for message in seen]  # one object may stand for two messages
    context = template_context(seen, tools, variables, generation_prompt=generation_prompt)
    if not method.carry:
        known = {id(message): mark for message, mark in zip(seen, marks.messages(len(seen)), strict=True)}
        context[IDENTIFY] = lambda value: known.get(id(value), "")
    return engine.render(context, limit + limit // 4)


def prove(tree: n.Template, reference: JinjaEngine, setting: Setting) -> Proof:
    """Find the first method that proves itself.

    Args:
        tree: the template.
        reference: made of it without marks, by :func:`reference_engine`.
        setting: its variables, date and limits.

    Raises:
        TemplateError: the template renders no plain conversation at all.
        UnprovenTemplate: no method proves itself; says what failed.
    """
    form, plain = _calling_form(reference, setting)
    refused = {name: str(result) for name, result in plain.items() if isinstance(result, Exception)}
    tried: list[str] = []
    grows = growing(tree)
    if grows:
        tried.append(f"minijinja: not used, because {grows} might make giants out of small texts")
    for engine_name in ("minijinja", "jinja") if setting.fast and not grows else ("jinja",):
        for method in _ladder(tree):
            outcome = _try(tree, engine_name, method, form, plain, setting)
            if isinstance(outcome, str):
                tried.append(f"{engine_name}, {method.describe()}: {outcome}")
                continue
            fuel = _fuel(tree, method, form, outcome, setting) if engine_name == MiniEngine.name else (0, 0)
            return Proof(engine_name, method, form, outcome, refused, tried, fuel)
    nearest = tried[-1] if tried else "no method applies"
    msg = (
        "it cannot be proved which text of this chat template belongs to which message "
        f"({len(tried)} ways tried; the last: {nearest}); masks would be a guess. "
        "Use another template with `template: {path: FILE}`, such as the model's own one"
    )
    raise UnprovenTemplate(msg)


def _fuel(tree: n.Template, method: Method, form: Form, traces: list[Trace], setting: Setting) -> tuple[int, int]:
    """About how many steps minijinja takes for one message of a probe, and for one more character of its texts."""
    probe = max(traces, key=lambda trace: len(trace.probe.messages)).probe
    engine = MiniEngine(instrument(tree, method, Marks()), date=setting.date, limits=setting.limits)
    steps = _steps(engine, method, form, probe, setting)
    texts = [message for message in probe.messages if message.get("content")]
    longer = [m | {"content": m["content"] + "x" * _MORE} if m in texts else m for m in probe.messages]
    more = _steps(engine, method, form, replace(probe, messages=longer), setting) - steps
    return steps // len(probe.messages) + 1, max(0, round(more / (_MORE * len(texts))))


def _steps(engine: MiniEngine, method: Method, form: Form, probe: Probe, setting: Setting) -> int:
    """About how many steps minijinja takes for a probe; as many as it may where it does not render."""
    low, high = 16, setting.limits.fuel
    while high - low > low // 8:
        engine.set_fuel((low + high) // 2)
        try:
            messages = shaped(probe.messages, form)
            render_marked(engine, method, Marks(), messages, probe.tools, setting.variables, setting.limits.floor)
            high = (low + high) // 2
        except RenderFailed:
            low = (low + high) // 2
    return high


def reference_engine(tree: n.Template, setting: Setting) -> JinjaEngine:
    """The template in Jinja, without marks.

    Raises:
        TemplateError: it does not compile.
    """
    try:
        return JinjaEngine(tree, date=setting.date, limits=setting.limits)
    except RenderFailed as error:
        deep = isinstance(error.__cause__, RecursionError)
        why = "is nested too deeply to compile" if deep else f"does not compile: {error}"
        msg = f"the chat template {why}; name another one with `template: {{path: FILE}}`"
        raise TemplateError(msg) from error


def _calling_form(reference: JinjaEngine, setting: Setting) -> tuple[Form, dict[str, str | Failure]]:
    first_error = ""
    for needs_tools in (False, True):
        for parts in (False, True):
            form = Form(parts=parts, needs_tools=needs_tools)
            vital = "tools" if needs_tools else "plain"
            error = _unusable(_render_all(reference, form, setting, vital)[vital])
            if not error:
                return _argument_form(reference, form, _render_all(reference, form, setting), setting)
            first_error = first_error or error
    told = f"the chat template renders no plain conversation of a user and an assistant: {first_error}"
    msg = f"{told}; give the variables it needs under `template: {{kwargs: ...}}`, or another template"
    raise TemplateError(msg)


def _unusable(plain: str | Failure) -> str:
    if isinstance(plain, Exception):
        return str(plain) or type(plain).__name__
    for text in ("Usra asks something.", "Ansb says something."):
        if text not in plain or "[{'type'" in plain or '[{"type"' in plain.split(text)[0][-20:]:
            return f"the text {text!r} does not come out as it is"
    return ""


def _argument_form(
    reference: JinjaEngine, form: Form, plain: dict[str, str | Failure], setting: Setting
) -> tuple[Form, dict[str, str | Failure]]:
    """Whether arguments must be JSON text: where objects fail or are printed the Python way."""
    called = plain["call"]
    if isinstance(called, str) and "{'city': " not in called:
        return form, plain
    other = Form(form.parts, True, form.needs_tools)
    as_text = _render_all(reference, other, setting)
    result = as_text["call"]
    better = isinstance(result, str) and '{"city": "Argbx"}' in result
    return (other, as_text) if better else (form, plain)


def _render_all(reference: JinjaEngine, form: Form, setting: Setting, only: str = "") -> dict[str, str | Failure]:
    results: dict[str, str | Failure] = {}
    for probe in probes():
        if only not in ("", probe.name):
            continue
        try:
            results[probe.name] = render_plain(
                reference, shaped(probe.messages, form), probe.tools, setting.variables, setting.limits.floor
            )
        except LimitReached as error:
            msg = f"the chat template was stopped: {error}; name another one with `template: {{path: FILE}}`"
            raise TemplateError(msg) from error
        except (Raised, RenderFailed) as error:
            results[probe.name] = error
    return results


def _ladder(tree: n.Template) -> Iterator[Method]:
    names = assigned_messages(tree)
    choices = [frozenset[str](), *(frozenset([name]) for name in names), frozenset("*")]
    choices += [frozenset(pair) for pair in combinations(names[:6], 2)]
    for carry in (True, False):
        for sets in choices:
            yield Method(carry, sets, macros=True)
        yield Method(carry, frozenset(), macros=False)
        yield Method(carry, frozenset("*"), macros=False)
        yield Method(carry, frozenset(), macros=False, texts=True)


def _try(
    tree: n.Template,
    engine_name: str,
    method: Method,
    form: Form,
    plain: dict[str, str | Failure],
    setting: Setting,
) -> list[Trace] | str:
    marks = Marks()
    try:
        engine = engine_class(engine_name)(instrument(tree, method, marks), date=setting.date, limits=setting.limits)
    except (RenderFailed, ImportError) as error:
        return str(error)
    traces = []
    for probe in probes():
        expected = plain[probe.name]
        try:
            marked = render_marked(
                engine,
                method,
                marks,
                shaped(probe.messages, form),
                probe.tools,
                setting.variables,
                setting.limits.floor,
            )
            runs = unmark(marked, marks)
        except (Raised, RenderFailed, LimitReached, ValueError) as error:
            if isinstance(expected, Exception):
                continue
            return f"probe {probe.name!r} fails: {error}"[:300]
        if isinstance(expected, Exception):
            return f"probe {probe.name!r} renders, but the reference refuses it: {expected}"[:300]
        if runs.text != expected:
            return f"probe {probe.name!r} renders another text than the reference"
        trace = Trace(probe, runs)
        if not probe.unique:
            continue
        fault = _misplaced(trace)
        if fault:
            return f"probe {probe.name!r}: {fault}"
        traces.append(trace)
    return traces


def _texts(message: Message) -> list[str]:
    texts = [message[name].strip() for name in ("content", "reasoning_content") if message.get(name)]
    texts += [next(iter(call["function"]["arguments"].values())) for call in message.get("tool_calls") or []]
    return [text for text in texts if text]


def _misplaced(trace: Trace) -> str:
    """Why the spans of a probe are wrong; an empty text if they are right.

    System text may stand outside the spans (templates print it before their
    loop) or within a user's message (some put it there): it is located by
    itself, and never trained.
    """
    owned: dict[int, str] = {}
    ends = [*trace.runs.starts[1:], len(trace.runs.text)]
    for start, end, owner in zip(trace.runs.starts, ends, trace.runs.owners, strict=True):
        owned[owner] = owned.get(owner, "") + trace.runs.text[start:end]
    for index, message in enumerate(trace.probe.messages):
        outside = message["role"] in ("system", "developer")
        for text in _texts(message):
            if text not in trace.runs.text:
                continue
            if text not in owned.get(index, "") and not outside:
                return f"{text!r} lies outside its message"
            others = [n for n, run in owned.items() if n not in (index, -1) and text in run]
            if others and not (outside and all(trace.probe.messages[n]["role"] != "assistant" for n in others)):
                return f"{text!r} lies in message {others[0]}"
    return ""


def generation_prompt(engine: Engine, form: Form, setting: Setting, proof_probes: Sequence[Probe]) -> str:
    """What ``add_generation_prompt`` adds after a user's message, or an empty text."""
    for probe in proof_probes:
        if probe.name not in ("ends_in_user", "system_tools", "tools", "plain"):
            continue
        messages = list(probe.messages)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        made = prompt_texts(engine, form, setting, probe, len(messages))
        if len(made) < 2:
            continue
        without, with_prompt = made
        if with_prompt != without and with_prompt.startswith(without):
            return with_prompt[len(without) :]
    return ""


def prompt_texts(engine: Engine, form: Form, setting: Setting, probe: Probe, end: int) -> list[str]:
    """A probe's first messages without and with the generation prompt; nothing if the template refuses them."""
    messages, limit = shaped(probe.messages[:end], form), setting.limits.floor
    try:
        return [
            render_plain(engine, messages, probe.tools, setting.variables, limit, generation_prompt=wanted)
            for wanted in (False, True)
        ]
    except (Raised, RenderFailed, LimitReached):
        return []
