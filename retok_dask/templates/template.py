"""A chat template that renders conversations with proved spans."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import jinja2.nodes as n
import orjson

from retok_dask.doing import doing
from retok_dask.recipe import NormalizeSpec
from retok_dask.templates.build import Builder
from retok_dask.templates.controls import ControlTokens
from retok_dask.templates.learned import State, TemplateFacts, learn_template
from retok_dask.templates.limits import Limits
from retok_dask.templates.loading import template_texts
from retok_dask.templates.markers import check_markers
from retok_dask.templates.normalize import normalize_conversation
from retok_dask.templates.paths import OFTEN
from retok_dask.templates.program import Program
from retok_dask.templates.prove import Setting, reference_engine
from retok_dask.templates.rows import Ready, Rows
from retok_dask.templates.scan import scan
from retok_dask.templates.syntax import parse
from retok_dask.templates.tags import TagDifference, tag_differences
from retok_dask.types import Conversation, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from retok_dask.recipe import Recipe, TemplateSpec
    from retok_dask.templates.loading import TokenizerFacts
    from retok_dask.types import Counts


def prompt_end(conversation: Conversation) -> int:
    """How many messages its prompt has: up to the last that waits for an answer; 0 if none does."""
    waits = ("user", "tool", "function")
    return max((k + 1 for k, message in enumerate(conversation.messages) if message.get("role") in waits), default=0)


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
    def _rows(self) -> Rows:
        return Rows(self.controls, self._state.control_tokens)

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
        reference = None
        if key not in state.learned:
            reference = reference_engine(tree, setting)
            state.learned[key] = learn_template(tree, reference, setting, state)
        return Program(tree, setting, state.learned[key], self.controls.pattern, reference)

    def _tree(self, name: str) -> n.Template:
        if name not in self._trees:
            self._trees[name] = parse(self._state.texts[name])
        return self._trees[name]

    def _program_for(self, conversation: Conversation) -> Program:
        texts = self._state.texts
        name = "tool_use" if conversation.tools is not None and "tool_use" in texts else self._first
        return self._program(name, conversation.template_args)

    def warm_up(self) -> None:
        """Compile what is compiled at first use, so that no row waits for it."""
        warm = Conversation([{"role": role, "content": "warm"} for role in ("user", "assistant")])
        with suppress(RecordRejected):
            for _ in range(2 * OFTEN):
                self.render(warm)
        self._main.rows = 0  # the first rows of the data are compared all the same

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
        whole = self._rows.render(ready, messages)
        if self._state.history == "auto" and whole.counts.get("reasoning_dropped"):
            return self._turns(ready)
        return [whole]

    def render_turns(self, conversation: Conversation) -> list[Rendered]:
        """One rendering for each assistant turn, as the model saw it, whatever the recipe's history."""
        return self._turns(self._ready(conversation))

    def render_whole(self, conversation: Conversation) -> Rendered:
        """One rendering of the whole conversation, whatever the recipe's history."""
        ready = self._ready(conversation)
        return self._rows.render(ready, ready.conversation.messages)

    def render_prompt(self, conversation: Conversation) -> Rendered:
        """The conversation up to its last user or tool message, with the generation prompt.

        Raises:
            RecordRejected: there is no such message, or the template refuses.
        """
        end = prompt_end(conversation)
        if not end:
            raise RecordRejected(RejectReason.no_prompt, "no user message")
        # what stands behind the prompt is not looked at: a record is not lost for an answer that nobody reads
        asked = replace(conversation, messages=conversation.messages[:end], flags=conversation.flags[:end])
        ready = self._ready(asked)
        return self._rows.render(ready, ready.conversation.messages, prompt=True)

    def reference_text(self, conversation: Conversation, *, generation_prompt: bool = False) -> str:
        """What transformers renders for this conversation, after normalizing."""
        ready = self._ready(conversation)
        made = ready.conversation
        return ready.program.reference_text(made.messages, made.tools, prompt=generation_prompt)

    def _ready(self, conversation: Conversation) -> Ready:
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
            return Ready(self._without_system(ready), 1, program, seen, held)
        return Ready(ready, 0, program, seen, held)

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

    def _turns(self, ready: Ready) -> list[Rendered]:
        conversation = ready.conversation
        rows = []
        for index, message in enumerate(conversation.messages):
            place = index + ready.shift
            flagged = conversation.flags[place] if place < len(conversation.flags) else None
            if message["role"] == "assistant" and flagged is not False:
                row = self._rows.render(ready, conversation.messages[: index + 1])
                row.turn = place
                rows.append(row)
                # what normalizing changed is counted once a conversation
                conversation.counts = {}
        return rows or [self._rows.render(ready, conversation.messages)]

    def compare_tags(self, conversation: Conversation) -> list[TagDifference]:
        """Where ``{% generation %}`` tags and the default policy disagree on one conversation.

        Raises:
            RecordRejected: as :meth:`render` does.
        """
        ready = self._ready(conversation)
        counts: Counts = defaultdict(int)
        messages, tools = ready.conversation.messages, ready.conversation.tools
        runs = ready.program.trace(messages, tools, counts)
        source = self._rows.source(ready.program, messages, tools)
        source.keep_to_tags = False
        return tag_differences(Builder(ready.program.parser, runs, source, counts).build(), runs.generated)
