"""A chat template that renders conversations with proved spans."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.recipe import NormalizeSpec
from retok_dask.templates.build import Builder
from retok_dask.templates.engines import Engine, JinjaEngine, LimitReached, Limits, Raised, RenderFailed
from retok_dask.templates.instrument import ALL_MARKS, Marks, Method, holds, instrument
from retok_dask.templates.loading import TokenizerFacts, template_texts
from retok_dask.templates.normalize import normalize_conversation
from retok_dask.templates.probes import Message, probes
from retok_dask.templates.prove import (
    Form,
    Setting,
    engine_class,
    generation_prompt,
    prove,
    render_marked,
    render_plain,
    shaped,
)
from retok_dask.templates.segments import NotProved
from retok_dask.templates.shape import Shape, learn
from retok_dask.templates.syntax import parse
from retok_dask.types import Conversation, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jinja2.nodes as n

    from retok_dask.recipe import Recipe, TemplateSpec


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What probing found out about a template.

    Attributes:
        header: the role header of an assistant message.
        prefill: what the generation prompt adds after it.
        stops: texts of the tokens that end a turn; empty where the next role
            marker does.
        generation_tags: whether the template has ``{% generation %}`` tags.
        refused: probes that the template refuses, with its words.
        prints_date: whether it asks for the date.
        method: how messages are told apart.
        form: how it wants to be called.
    """

    header: str
    prefill: str
    stops: tuple[str, ...]
    generation_tags: bool
    refused: dict[str, str]
    prints_date: bool
    method: str
    form: Form


@dataclass(slots=True)
class Program:
    """One template text with one set of variables, ready to render."""

    tree: n.Template
    setting: Setting
    engine: str
    method: Method
    form: Form
    shape: Shape
    refused: dict[str, str] = field(default_factory=dict)
    _engines: dict[tuple[str, Marks], Engine] = field(default_factory=dict)
    _reference: JinjaEngine | None = None

    def marked_engine(self, name: str, marks: Marks) -> Engine:
        """The engine for one choice of marks, made at first use."""
        key = (name, marks)
        if key not in self._engines:
            tree = instrument(self.tree, self.method, marks)
            self._engines[key] = engine_class(name)(tree, date=self.setting.date, limits=self.setting.limits)
        return self._engines[key]

    @property
    def reference(self) -> JinjaEngine:
        """The unmarked template in Jinja."""
        if self._reference is None:
            self._reference = JinjaEngine(copy.deepcopy(self.tree), date=self.setting.date, limits=self.setting.limits)
        return self._reference


@dataclass(slots=True)
class State:
    """All that a worker needs to render without proving again."""

    texts: dict[str, str]
    special_tokens: dict[str, str]
    added: tuple[str, ...]
    kwargs: dict[str, Any]
    date: dt.date
    history: str
    control_tokens: str
    system: str
    normalize: dict[str, Any]
    fast: bool
    proofs: dict[str, tuple[str, Method, Form, Shape, dict[str, str]]]


class ChatTemplate:
    """A model's chat template, proved: conversation -> text and spans.

    Made by :meth:`load`; sent to workers as :meth:`reduce`'s state.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._programs: dict[str, Program] = {}
        self._trees: dict[str, n.Template] = {}
        self._normalize = NormalizeSpec(**state.normalize)

    @classmethod
    def load(
        cls,
        spec: TemplateSpec,
        *,
        tokenizer: TokenizerFacts,
        recipe: Recipe,
        date: dt.date,
        options: dict[str, Any] | None = None,
    ) -> Self:
        """Load, compile and prove a template.

        Args:
            spec: where its text is, and its arguments.
            tokenizer: whose template and tokens are meant.
            recipe: for history, control tokens, system messages, normalizing and engine.
            date: the day that the template sees as today.
            options: file-system options for `spec.path`.

        Raises:
            TemplateError: there is none, it does not compile, or renders no plain conversation.
            UnprovenTemplate: its spans cannot be proved.
        """
        special = {name: str(text) for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
        state = State(
            texts=template_texts(spec, tokenizer, options),
            special_tokens=special,
            added=tuple(tokenizer.added_tokens),
            kwargs=dict(spec.kwargs),
            date=date,
            history=recipe.history,
            control_tokens=recipe.control_tokens,
            system=recipe.system,
            normalize=recipe.normalize.model_dump(),
            fast=recipe.engine == "auto",
            proofs={},
        )
        template = cls(state)
        for name in state.texts:
            template._program(name, {})
        return template

    def reduce(self) -> State:
        """Small picklable state for workers."""
        return self._state

    @classmethod
    def restore(cls, state: State) -> Self:
        """The template from :meth:`reduce`'s state, without proving it again."""
        return cls(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).restore, (self._state,))

    @property
    def text(self) -> str:
        """The Jinja text (of the default template, where there are several)."""
        return next(iter(self._state.texts.values()))

    @cached_property
    def digest(self) -> str:
        """sha256 of all that the template's text and arguments are, as hex."""
        parts = [self._state.texts, self._state.kwargs, self._state.special_tokens]
        return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def engine(self) -> str:
        """``minijinja`` or ``jinja``."""
        return self._main.engine

    @property
    def _main(self) -> Program:
        return self._program(next(iter(self._state.texts)), {})

    @cached_property
    def facts(self) -> TemplateFacts:
        """What probing found out."""
        program = self._main
        return TemplateFacts(
            header=program.shape.header,
            prefill=program.shape.prefill,
            stops=tuple(dict.fromkeys(stop for stop, _ in program.shape.tails)),
            generation_tags="endgeneration" in self.text,
            refused=program.refused,
            prints_date="strftime_now" in self.text,
            method=program.method.describe(),
            form=program.form,
        )

    def _program(self, name: str, arguments: Mapping[str, Any]) -> Program:
        key = name if not arguments else name + orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()
        if key not in self._programs:
            self._programs[key] = self._make_program(key, name, arguments)
        return self._programs[key]

    def _make_program(self, key: str, name: str, arguments: Mapping[str, Any]) -> Program:
        state = self._state
        if name not in self._trees:
            self._trees[name] = parse(state.texts[name])
        tree = self._trees[name]
        variables = {**state.special_tokens, **state.kwargs, **arguments}
        setting = Setting(variables, state.date, Limits(), state.fast)
        if key not in state.proofs:
            proof = prove(tree, setting)
            reference = JinjaEngine(copy.deepcopy(tree), date=state.date, limits=setting.limits)
            prompt = generation_prompt(reference, proof.form, setting, probes())
            bos = state.special_tokens.get("bos_token", "")
            shape = learn(proof.traces, prompt, {*state.added, *_ends(state)}, bos)
            state.proofs[key] = (proof.engine, proof.method, proof.form, shape, proof.refused)
        engine, method, form, shape, refused = state.proofs[key]
        return Program(tree, setting, engine, method, form, shape, refused)

    def _program_for(self, conversation: Conversation) -> Program:
        texts = self._state.texts
        name = "tool_use" if conversation.tools and "tool_use" in texts else next(iter(texts))
        return self._program(name, conversation.template_args)

    def render(self, conversation: Conversation) -> list[Rendered]:
        """One rendering of a conversation, or one for each assistant turn.

        Raises:
            RecordRejected: the template refuses the conversation, or its spans
                cannot be proved.
        """
        ready = self._ready(conversation)
        if self._state.history == "per_turn":
            return self._turns(ready)
        whole = self._render(ready, ready.messages)
        if self._state.history == "auto" and whole.counts.get("reasoning_dropped"):
            return self._turns(ready)
        return [whole]

    def render_prompt(self, conversation: Conversation) -> Rendered:
        """The conversation up to its last user message, with the generation prompt.

        Raises:
            RecordRejected: there is no user message, or the template refuses.
        """
        ready = self._ready(conversation)
        last = max((n for n, message in enumerate(ready.messages) if message["role"] in ("user", "tool")), default=-1)
        if last < 0:
            raise RecordRejected(RejectReason.no_prompt, "no user message")
        return self._render(ready, ready.messages[: last + 1], prompt=True)

    def reference_text(self, conversation: Conversation, *, generation_prompt: bool = False) -> str:
        """What transformers renders for this conversation, after normalizing."""
        ready = self._ready(conversation)
        return self._reference_text(self._program_for(ready), ready, ready.messages, prompt=generation_prompt)

    def _reference_text(
        self, program: Program, conversation: Conversation, messages: list[Message], *, prompt: bool
    ) -> str:
        return render_plain(
            program.reference,
            shaped(messages, program.form),
            conversation.tools,
            program.setting.variables,
            _limit(program, messages),
            generation_prompt=prompt,
        )

    def _ready(self, conversation: Conversation) -> Conversation:
        program = self._program_for(conversation)
        knows = "developer" in self.text and "developer" not in program.refused
        fresh = copy.copy(conversation)
        fresh.counts = {}
        return normalize_conversation(fresh, self._normalize, knows_developer=knows)

    def _turns(self, conversation: Conversation) -> list[Rendered]:
        rows = []
        for index, message in enumerate(conversation.messages):
            flagged = conversation.flags[index] if index < len(conversation.flags) else None
            if message["role"] == "assistant" and flagged is not False:
                row = self._render(conversation, conversation.messages[: index + 1])
                row.turn = index
                rows.append(row)
        return rows or [self._render(conversation, conversation.messages)]

    def _render(self, conversation: Conversation, messages: list[Message], *, prompt: bool = False) -> Rendered:
        program = self._program_for(conversation)
        counts = Counter(conversation.counts)
        text, starts, owners = self._trace(program, conversation, messages, counts, prompt=prompt)
        builder = Builder(program.shape, self._state.special_tokens.get("bos_token", ""), counts)
        try:
            rendered = builder.build(text, starts, owners, messages, conversation.tools, prompt=prompt)
        except NotProved as error:
            raise RecordRejected(RejectReason.span_not_proved, str(error)) from error
        rendered.flags = list(conversation.flags[: len(messages)])
        return rendered

    def _trace(
        self,
        program: Program,
        conversation: Conversation,
        messages: list[Message],
        counts: Counter[str],
        *,
        prompt: bool,
    ) -> tuple[str, list[int], list[int]]:
        shown = shaped(messages, program.form)
        marks = _free_marks(shown, conversation.tools)
        limit = _limit(program, messages)
        for name in dict.fromkeys((program.engine, "jinja")):
            try:
                return render_marked(
                    program.marked_engine(name, marks),
                    program.method,
                    marks,
                    shown,
                    conversation.tools,
                    program.setting.variables,
                    limit,
                    generation_prompt=prompt,
                )
            except LimitReached as error:
                raise RecordRejected(RejectReason.render_limit, str(error)) from error
            except Raised as error:
                failure = RecordRejected(RejectReason.template_error, _with_roles(error, messages))
            except RenderFailed as error:
                failure = RecordRejected(RejectReason.template_error, _with_roles(error, messages))
            counts["engine_fallback"] += name != "jinja"
        raise failure


def _ends(state: State) -> list[str]:
    return [text for name, text in state.special_tokens.items() if name == "eos_token" and text]


def _limit(program: Program, messages: list[Message]) -> int:
    size = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str))
    return program.setting.limits.size(size)


def _with_roles(error: Exception, messages: list[Message]) -> str:
    roles = " ".join(str(message["role"]) for message in messages[:20])
    return f"{error} (roles: {roles}{' ...' if len(messages) > 20 else ''})"


def _free_marks(messages: list[Message], tools: list[dict[str, Any]] | None) -> Marks:
    """Marks whose characters no text of the input holds."""
    try:
        dumped = orjson.dumps((messages, tools))
    except (TypeError, ValueError):
        dumped = None
    for marks in ALL_MARKS:
        if dumped is not None and len(marks.begin.encode()) == 1:
            written = (f"\\u{ord(marks.begin):04x}".encode(), f"\\u{ord(marks.end):04x}".encode())
            if not any(character in dumped for character in written):
                return marks
        elif not holds((messages, tools), (marks.begin, marks.end)):
            return marks
    raise RecordRejected(RejectReason.span_not_proved, "the text holds every character that could be used as a mark")


__all__ = ["ChatTemplate", "TemplateFacts", "asdict"]
