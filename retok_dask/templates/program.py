"""One template text with one set of variables: renders, and says what it may not trust."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from retok_dask.templates.charloops import without_character_loops
from retok_dask.templates.engines import Engine, JinjaEngine, MiniEngine
from retok_dask.templates.instrument import Method, instrument
from retok_dask.templates.limits import LimitReached, Raised, RenderFailed
from retok_dask.templates.marks import unmark
from retok_dask.templates.paths import Paths
from retok_dask.templates.prove import Form, Setting, render_marked, render_plain, shaped
from retok_dask.templates.scan import scan, unused_marks
from retok_dask.templates.segments import BodyParser
from retok_dask.templates.toolparts import PartsEngine
from retok_dask.templates.usual import UsualRows
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Container

    import jinja2.nodes as n

    from retok_dask.templates.marks import Marks, Runs
    from retok_dask.templates.probes import Message
    from retok_dask.templates.scan import Scan, Tools
    from retok_dask.templates.shape import Shape
    from retok_dask.types import Counts


class _Reading(Protocol):
    """What was read from a marked rendering: at least the text without marks."""

    @property
    def text(self) -> str: ...


R = TypeVar("R", bound=_Reading)

CHECK_FIRST, CHECK_EVERY = 8, 512
"""Rows compared with the reference: the first ones, then one in so many."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What proving a template gave; enough to render without proving again.

    Attributes:
        engine: the engine whose marked renders proved themselves.
        method: how messages are told apart.
        form: how the template wants to be called.
        shape: the fixed text around assistant parts.
        refused: probes that the template refuses, with its words.
        dropped: what the template leaves out, by probe: (probe, message, part).
        tried: methods that failed before.
        fuel: about how many steps of minijinja a message takes, and a character more.
        tags: how ``{% generation %}`` tags compare, by probe.
    """

    engine: str
    method: Method
    form: Form
    shape: Shape
    refused: dict[str, str]
    dropped: tuple[tuple[str, int, str], ...]
    tried: tuple[str, ...]
    fuel: tuple[int, int] = (0, 0)
    tags: dict[str, str] = field(default_factory=dict)


class Program:
    """Renders conversations with the message of each run.

    Args:
        tree: the parsed template.
        setting: its variables, date and limits.
        learned: what its proof gave.
        token: matches an added token.
        reference: the unmarked template in Jinja, if there is one; else made at first use.
    """

    def __init__(
        self,
        tree: n.Template,
        setting: Setting,
        learned: Learned,
        token: re.Pattern[str],
        reference: JinjaEngine | None = None,
    ) -> None:
        self.tree = tree
        self.setting = setting
        self.learned = learned
        self.engine = learned.engine
        self.parser = BodyParser(learned.shape)
        self.bos = str(setting.variables.get("bos_token") or "")
        self.paths = Paths(without_character_loops(tree), setting, learned.form)
        self.usual = UsualRows(self.parser, self.bos, token, self.preamble)
        # what some probe lost is the template's way to lose in data: contents beside calls, and calls
        self.dropped = frozenset(part for _, _, part in learned.dropped if part != "R")
        self.rows = 0
        self._engines: dict[tuple[str, str, str], Engine] = {}
        self._reference = reference
        self._preambles: OrderedDict[str, str] = OrderedDict()

    def marked_engine(self, name: str, marks: Marks) -> Engine:
        """The engine for one choice of marks, made at first use."""
        key = (name, marks.begin, marks.end)
        engine = self._engines.get(key)
        if engine is None:
            tree = instrument(self.tree, self.learned.method, marks)
            date, limits = self.setting.date, self.setting.limits
            if name == MiniEngine.name:
                engine = PartsEngine(tree, self.setting.variables, date=date, limits=limits)
            else:
                engine = JinjaEngine(tree, date=date, limits=limits)
            self._engines[key] = engine
        return engine

    @property
    def reference(self) -> JinjaEngine:
        """The unmarked template in Jinja."""
        if self._reference is None:
            self._reference = JinjaEngine(self.tree, date=self.setting.date, limits=self.setting.limits)
        return self._reference

    def reference_text(self, messages: list[Message], tools: Tools, *, prompt: bool = False) -> str:
        """What transformers renders.

        Raises:
            RecordRejected: the template refuses or fails.
        """
        try:
            return render_plain(
                self.reference,
                shaped(messages, self.learned.form),
                tools,
                self.setting.variables,
                self._limit(messages),
                generation_prompt=prompt,
            )
        except (Raised, RenderFailed, LimitReached) as error:
            raise _rejected(error, messages) from error

    def trace(
        self,
        messages: list[Message],
        tools: Tools,
        counts: Counts,
        *,
        prompt: bool = False,
        mark: MarkInput | None = None,
        seen: Scan | None = None,
    ) -> Runs:
        """The rendering of a conversation with the message of each run; see :meth:`rendering`."""
        return self.rendering(messages, tools, counts, unmark, prompt=prompt, mark=mark, seen=seen)

    def rendering(
        self,
        messages: list[Message],
        tools: Tools,
        counts: Counts,
        read: Callable[[str, Marks], R],
        *,
        prompt: bool = False,
        mark: MarkInput | None = None,
        seen: Scan | None = None,
    ) -> R:
        """What is read from the rendering of a conversation.

        Args:
            messages: as normalised.
            tools: function schemas or None.
            counts: what is noticed is added here.
            read: makes the answer of the marked rendering; ValueError says that its marks are broken.
            prompt: add the generation prompt.
            mark: puts further marks into the input before it is rendered.
            seen: what a look at the texts, or at more, found; None looks.

        Raises:
            RecordRejected: the template refuses or fails, or a comparison with
                the reference shows that its spans cannot be trusted.
        """
        seen = seen or scan(messages, tools)
        # marks within texts must come through a template's JSON, which escapes control characters
        marks = seen.marks if mark is None else unused_marks(messages, tools)
        shown, schemas = mark(messages, tools, marks) if mark is not None else (messages, tools)
        shown = shaped(shown, self.learned.form)
        engines = (self.engine, "jinja") if seen.safe and self.engine != "jinja" else ("jinja",)
        failure: Exception = RenderFailed("no engine")
        for name in engines:
            try:
                found = read(self._run(name, marks, shown, schemas, seen, prompt=prompt), marks)
            except LimitReached as error:
                raise _rejected(error, messages) from error
            except (Raised, RenderFailed, ValueError) as error:
                failure = error
                continue
            if name != self.engine:
                counts["engine_fallback"] += 1
            if mark is not None:
                return found
            due = self.due
            self.rows += 1
            if not due:
                return found
            return self._checked(found, name, messages, tools, counts, read, prompt=prompt)
        raise _rejected(failure, messages) from failure

    @property
    def due(self) -> bool:
        """Whether the next row is compared with the reference."""
        return self.rows < CHECK_FIRST or (self.rows + 1) % CHECK_EVERY == 0

    def _run(self, name: str, marks: Marks, shown: list[Message], tools: Tools, seen: Scan, *, prompt: bool) -> str:
        engine = self.marked_engine(name, marks)
        if isinstance(engine, MiniEngine):
            engine.set_fuel(self._fuel(len(shown), seen))
        return render_marked(
            engine,
            self.learned.method,
            marks,
            shown,
            tools,
            self.setting.variables,
            self._limit(shown) if seen.nested is None else self.setting.limits.size(seen.size),
            generation_prompt=prompt,
        )

    def _checked(
        self,
        found: R,
        name: str,
        messages: list[Message],
        tools: Tools,
        counts: Counts,
        read: Callable[[str, Marks], R],
        *,
        prompt: bool,
    ) -> R:
        """Compare with the reference; the fast engine is given up at the first difference."""
        expected = self.reference_text(messages, tools, prompt=prompt)
        if found.text == expected:
            return found
        counts["engine_mismatch"] += 1
        if name != "jinja":
            self.engine = "jinja"
            found = self.rendering(messages, tools, counts, read, prompt=prompt)
        if found.text != expected:
            raise RecordRejected(RejectReason.span_not_proved, "the marked template renders another text")
        return found

    def check_text(self, text: str, messages: list[Message], tools: Tools, seen: Scan, *, prompt: bool) -> None:
        """Refuse the text of a marked input if the template made of the marks anything but marks.

        Raises:
            RecordRejected: without them it renders another text.
        """
        if text != self.trace(messages, tools, defaultdict(int), prompt=prompt, seen=seen).text:
            detail = "the template changes texts that hold control tokens; it cannot be told which of them are its own"
            raise RecordRejected(RejectReason.span_not_proved, detail)

    def preamble(self, first: Message | None) -> str:
        """What stands before the first user message when there are no tools, for a given system message."""
        key = "" if first is None else f"{first['role']}\0{first.get('content')}"
        if key not in self._preambles:
            asked = {"role": "user", "content": "Usra asks something."}
            messages = [asked] if first is None else [first, asked]
            try:
                runs = self.trace(messages, None, defaultdict(int))
            except RecordRejected:
                text = ""
            else:
                last = len(messages) - 1
                end = runs.starts[runs.owners.index(last)] if last in runs.owners else len(runs.text)
                text = runs.text[:end]
            self._preambles[key] = text
            if len(self._preambles) > 64:
                self._preambles.popitem(last=False)
        return self._preambles[key]

    def _fuel(self, messages: int, seen: Scan) -> int:
        """Many times the steps that a conversation needs: what runs out of them is left to the guarded Jinja."""
        message, character = self.learned.fuel
        steps = 10 * message * (messages + 8) * (1 + messages // 32) + 400 * seen.tool_objects
        return steps + 10 * character * seen.size if character else steps

    def _limit(self, messages: list[Message]) -> int:
        size = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str))
        return self.setting.limits.size(size)


class MarkInput:
    """Something that puts marks into messages and tools before they are rendered."""

    def __call__(self, messages: list[Message], tools: Tools, marks: Marks) -> tuple[list[Message], Tools]:
        """Marked copies."""
        raise NotImplementedError


class MarkFields(MarkInput):
    """Marks reasoning and content of assistant messages, inside their outer white space.

    Args:
        first: what else marks the input, before.
        only: numbers of the messages that are marked instead.
    """

    def __init__(self, first: MarkInput | None = None, only: Container[int] | None = None) -> None:
        self._first = first
        self._only = only

    def __call__(self, messages: list[Message], tools: Tools, marks: Marks) -> tuple[list[Message], Tools]:
        """See :class:`MarkInput`."""
        if self._first is not None:
            messages, tools = self._first(messages, tools, marks)
        return [self._mark(message, number, marks) for number, message in enumerate(messages)], tools

    def _mark(self, message: Message, number: int, marks: Marks) -> Message:
        if message["role"] != "assistant" if self._only is None else number not in self._only:
            return message
        marked = dict(message)
        for part, name in (("R", "reasoning_content"), ("C", "content")):
            text = message.get(name)
            core = text.strip() if isinstance(text, str) else ""
            if core:
                begin = text.index(core)  # type: ignore[union-attr]
                opened, closed = marks.make(f"o{part}{number}"), marks.make(f"c{part}{number}")
                marked[name] = f"{text[:begin]}{opened}{core}{closed}{text[begin + len(core) :]}"  # type: ignore[index]
        return marked


def _rejected(error: Exception, messages: list[Message]) -> RecordRejected:
    reason = RejectReason.render_limit if isinstance(error, LimitReached) else RejectReason.template_error
    roles = " ".join(str(message["role"]) for message in messages[:20])
    return RecordRejected(reason, f"{error} (roles: {roles}{' ...' if len(messages) > 20 else ''})")
