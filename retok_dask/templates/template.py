"""A chat template that renders conversations with proved spans."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import jinja2.nodes as n
import orjson

from retok_dask.doing import doing
from retok_dask.recipe import NormalizeSpec
from retok_dask.templates.build import Builder, Source, leading_system
from retok_dask.templates.controls import ControlTokens, count_in
from retok_dask.templates.learned import State, TemplateFacts, learn_template
from retok_dask.templates.limits import Limits
from retok_dask.templates.loading import template_texts
from retok_dask.templates.markers import MarkControls, check_markers, joined_tokens
from retok_dask.templates.marks import unmark
from retok_dask.templates.normalize import normalize_conversation
from retok_dask.templates.program import MarkFields, MarkInput, Program
from retok_dask.templates.prove import Setting
from retok_dask.templates.scan import scan
from retok_dask.templates.segments import NotProved
from retok_dask.templates.syntax import parse
from retok_dask.templates.tags import TagDifference, tag_differences
from retok_dask.types import Conversation, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from retok_dask.recipe import Recipe, TemplateSpec
    from retok_dask.templates.loading import TokenizerFacts
    from retok_dask.templates.marks import Marks, Runs
    from retok_dask.templates.probes import Message
    from retok_dask.templates.scan import Scan, Tools
    from retok_dask.types import Counts


@dataclass(slots=True)
class _Ready:
    """A conversation in order, and where its messages stand in the one that came in."""

    conversation: Conversation
    shift: int
    program: Program
    scan: Scan
    controls: bool


class ChatTemplate:
    """A model's chat template, proved: conversation -> text and spans.

    Made by :meth:`load`; sent to workers as :meth:`reduce`'s state, or pickled.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._programs: dict[str, Program] = {}
        self._trees: dict[str, n.Template] = {}
        self._first = next(iter(state.texts))
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
            learned={},
        )
        template = cls(state)
        doing("proving the chat template")
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
        return self._program(self._first, {})

    @cached_property
    def facts(self) -> TemplateFacts:
        """What probing found out."""
        return TemplateFacts.of(self.text, self._main)

    @cached_property
    def controls(self) -> ControlTokens:
        """Finds control tokens in texts."""
        literal = [*self._state.special_tokens.values()]
        for name in self._state.texts:
            tree = self._tree(name)
            literal += [node.data for node in tree.find_all(n.TemplateData)]
            literal += [node.value for node in tree.find_all(n.Const) if isinstance(node.value, str)]
        return ControlTokens(self._state.added, "\0".join(literal))

    @cached_property
    def _knows_developer(self) -> bool:
        return any("developer" in text for text in self._state.texts.values())

    def _program(self, name: str, arguments: Mapping[str, Any]) -> Program:
        key = name if not arguments else name + orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()
        if key not in self._programs:
            self._programs[key] = self._make_program(key, name, arguments)
        return self._programs[key]

    def _make_program(self, key: str, name: str, arguments: Mapping[str, Any]) -> Program:
        state = self._state
        tree = self._tree(name)
        variables = {**state.special_tokens, **state.kwargs, **arguments}
        setting = Setting(variables, state.date, Limits(), state.fast)
        if key not in state.learned:
            state.learned[key] = learn_template(tree, setting, state)
        return Program(tree, setting, state.learned[key], self.controls.pattern)

    def _tree(self, name: str) -> n.Template:
        if name not in self._trees:
            self._trees[name] = parse(self._state.texts[name])
        return self._trees[name]

    def _program_for(self, conversation: Conversation) -> Program:
        texts = self._state.texts
        name = "tool_use" if conversation.tools is not None and "tool_use" in texts else self._first
        return self._program(name, conversation.template_args)

    def render(self, conversation: Conversation) -> list[Rendered]:
        """One rendering of a conversation, or one for each assistant turn.

        Raises:
            RecordRejected: the template refuses the conversation, or its spans
                cannot be proved.
        """
        ready = self._ready(conversation)
        messages = ready.conversation.messages
        if self._state.history == "per_turn":
            return self._turns(ready)
        whole = self._render(ready, messages)
        if self._state.history == "auto" and whole.counts.get("reasoning_dropped"):
            return self._turns(ready)
        return [whole]

    def render_turns(self, conversation: Conversation) -> list[Rendered]:
        """One rendering for each assistant turn, as the model saw it, whatever the recipe's history."""
        return self._turns(self._ready(conversation))

    def render_whole(self, conversation: Conversation) -> Rendered:
        """One rendering of the whole conversation, whatever the recipe's history."""
        ready = self._ready(conversation)
        return self._render(ready, ready.conversation.messages)

    def render_prompt(self, conversation: Conversation) -> Rendered:
        """The conversation up to its last user or tool message, with the generation prompt.

        Raises:
            RecordRejected: there is no such message, or the template refuses.
        """
        ready = self._ready(conversation)
        messages = ready.conversation.messages
        last = max((k for k, message in enumerate(messages) if message["role"] in ("user", "tool")), default=-1)
        if last < 0:
            raise RecordRejected(RejectReason.no_prompt, "no user message")
        return self._render(ready, messages[: last + 1], prompt=True)

    def reference_text(self, conversation: Conversation, *, generation_prompt: bool = False) -> str:
        """What transformers renders for this conversation, after normalizing."""
        ready = self._ready(conversation)
        made = ready.conversation
        return ready.program.reference_text(made.messages, made.tools, prompt=generation_prompt)

    def _ready(self, conversation: Conversation) -> _Ready:
        program = self._program_for(conversation)
        refused = program.learned.refused
        knows = self._knows_developer and "developer" not in refused
        ready = normalize_conversation(conversation, self._normalize, knows_developer=knows)
        seen = scan(ready.messages, ready.tools)
        held = seen.nested is None or self.controls.may_hold(seen.texts, seen.nested, seen.tools)
        if held:
            check_markers(ready, self.controls, program.learned.shape, parse=self._normalize.control_markers == "parse")
        first = ready.messages[0]
        if first["role"] == "system" and "system" in refused and "turns" not in refused:
            return _Ready(self._without_system(ready), 1, program, seen, held)
        return _Ready(ready, 0, program, seen, held)

    def _without_system(self, conversation: Conversation) -> Conversation:
        first, rest = conversation.messages[0], conversation.messages[1:]
        if self._state.system == "reject":
            detail = "the template refuses system messages; set `system: fold` or `system: drop` to go on without"
            raise RecordRejected(RejectReason.system_not_supported, detail)
        if not rest:
            raise RecordRejected(RejectReason.empty_conversation, "nothing but a system message")
        conversation.counts[f"system_{'folded' if self._state.system == 'fold' else 'dropped'}"] = 1
        if self._state.system == "fold":
            asked = next((k for k, message in enumerate(rest) if message["role"] == "user"), None)
            if asked is None:
                raise RecordRejected(
                    RejectReason.system_not_supported, "no user message to fold the system message into"
                )
            folded = {**rest[asked], "content": f"{first['content']}\n\n{rest[asked]['content']}"}
            rest = [*rest[:asked], folded, *rest[asked + 1 :]]
        return replace(conversation, messages=rest)

    def _turns(self, ready: _Ready) -> list[Rendered]:
        conversation = ready.conversation
        rows = []
        for index, message in enumerate(conversation.messages):
            place = index + ready.shift
            flagged = conversation.flags[place] if place < len(conversation.flags) else None
            if message["role"] == "assistant" and flagged is not False:
                row = self._render(ready, conversation.messages[: index + 1])
                row.turn = place
                rows.append(row)
                # what normalizing changed is counted once a conversation
                conversation.counts = {}
        return rows or [self._render(ready, conversation.messages)]

    def _render(self, ready: _Ready, messages: list[Message], *, prompt: bool = False) -> Rendered:
        conversation, program = ready.conversation, ready.program
        tools: Tools = conversation.tools
        counts: Counts = defaultdict(int)
        escape = self._find_controls(messages, tools, counts) if ready.controls else None

        found = self._rendering(ready, messages, counts, escape, prompt=prompt)
        if isinstance(found, Rendered):
            rendered, escapes = found, []
        else:
            if escape is not None:
                program.check_text(found.text, messages, tools, ready.scan, prompt=prompt)
            source = self._source(program, messages, tools, prompt=prompt)
            rendered = self._build(program, found, source, escape, counts)
            escapes = self.controls.clean(found) if found.escapes else []
        if self._state.control_tokens != "allow":
            escapes += joined_tokens(
                self.controls, program, rendered.text, messages, tools, prompt=prompt, first=escape
            )
        rendered.escapes = _disjoint(escapes) if escapes else escapes
        for more in (conversation.counts, rendered.counts) if counts or conversation.counts else ():
            for name, number in more.items():
                counts[name] += number
        if counts:
            rendered.counts = {name: number for name, number in counts.items() if number}
        rendered.flags = list(conversation.flags[: len(messages) + ready.shift]) if conversation.flags else []
        if ready.shift:
            rendered.messages = [owner + ready.shift if owner >= 0 else owner for owner in rendered.messages]
        return rendered

    def _rendering(
        self, ready: _Ready, messages: list[Message], counts: Counts, escape: MarkInput | None, *, prompt: bool
    ) -> Rendered | Runs:
        """A row by a path that it shares with others, or as the template renders it."""
        program, tools, seen = ready.program, ready.conversation.tools, ready.scan
        paths = program.paths
        shape = None if ready.controls or prompt else paths.shape(messages, seen)
        if shape is not None and not program.due:
            known = paths.render(shape, messages, program.setting.limits.size(seen.size))
            if known is not None:
                program.rows += 1
                return known

        def read(marked: str, marks: Marks) -> Rendered | Runs:
            usual = None if escape or prompt else program.usual.read(marked, marks, messages, tools)
            return usual or unmark(marked, marks)

        found = program.rendering(messages, tools, counts, read, prompt=prompt, mark=escape, seen=seen)
        if shape is not None and not counts:
            counts["engine_mismatch"] += not paths.learn(shape, messages, tools, found)
        return found

    def _build(
        self, program: Program, runs: Runs, source: Source, escape: MarkInput | None, counts: Counts
    ) -> Rendered:
        """The spans of a row that is not made as usual; what is noticed is added to `counts`."""
        noticed: Counts = defaultdict(int)
        try:
            rendered = Builder(program.parser, runs, source, noticed).build()
        except NotProved as error:
            noticed.clear()
            rendered = self._by_fields(program, runs, source, escape, noticed, error)
        for name, number in noticed.items():
            counts[name] += number
        return rendered

    def _source(self, program: Program, messages: list[Message], tools: Tools, *, prompt: bool = False) -> Source:
        return Source(
            messages=messages,
            tools=tools,
            bos=program.bos,
            token=self.controls.pattern,
            dropped=program.dropped,
            bare=lambda: program.preamble(leading_system(messages)),
            prompt=prompt,
        )

    def compare_tags(self, conversation: Conversation) -> list[TagDifference]:
        """Where ``{% generation %}`` tags and the default policy disagree on one conversation.

        Raises:
            RecordRejected: as :meth:`render` does.
        """
        ready = self._ready(conversation)
        counts: Counts = defaultdict(int)
        messages, tools = ready.conversation.messages, ready.conversation.tools
        runs = ready.program.trace(messages, tools, counts)
        source = self._source(ready.program, messages, tools)
        source.keep_to_tags = False
        return tag_differences(Builder(ready.program.parser, runs, source, counts).build(), runs.generated)

    def _by_fields(
        self,
        program: Program,
        runs: Runs,
        source: Source,
        escape: MarkInput | None,
        counts: Counts,
        error: NotProved,
    ) -> Rendered:
        """A second render with the fields themselves marked, for rows whose text alone is ambiguous."""
        marker = MarkFields(escape)
        marked = program.trace(source.messages, source.tools, counts, prompt=source.prompt, mark=marker)
        if marked.text != runs.text:
            raise RecordRejected(RejectReason.span_not_proved, str(error)) from error
        source.located = {key: place for key, place in marked.fields.items() if 0 <= place[0] <= place[1]}
        counts["located_by_marks"] += 1
        try:
            return Builder(program.parser, runs, source, counts).build()
        except NotProved as still:
            raise RecordRejected(RejectReason.span_not_proved, str(still)) from still

    def _find_controls(self, messages: list[Message], tools: Tools, counts: Counts) -> MarkInput | None:
        outside = count_in(self.controls, messages, tools, counts)
        if not outside or self._state.control_tokens == "allow":
            return None
        if self._state.control_tokens == "reject":
            found = ", ".join(name for name in counts if name.startswith("control_tokens_in_"))
            raise RecordRejected(RejectReason.control_tokens_in_text, found)
        return MarkControls(self.controls)


def _disjoint(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for start, end in sorted(set(ranges)):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept
