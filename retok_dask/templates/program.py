"""One template text with one set of variables: renders, and says what it may not trust."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.templates.engines import Engine, JinjaEngine, LimitReached, MiniEngine, Raised, RenderFailed
from retok_dask.templates.instrument import Method, instrument
from retok_dask.templates.marks import ALL_MARKS, Marks, Runs, all_texts
from retok_dask.templates.normalize import holds_float
from retok_dask.templates.prove import Form, Setting, engine_class, render_marked, render_plain, shaped
from retok_dask.templates.segments import BodyParser
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections import Counter

    import jinja2.nodes as n

    from retok_dask.templates.probes import Message
    from retok_dask.templates.shape import Shape

Tools = list[dict[str, Any]] | None

CHECK_FIRST, CHECK_EVERY = 8, 512
"""Rows compared with the reference: the first ones, then one in so many."""

_SEPARATORS = re.compile(rb"\\u001[c-f]")
"""Characters that Python takes for white space and minijinja does not."""

_UNLIKE = re.compile(rb"[:,\[]-?(?:[0-9]+\.0[,}\]]|[0-9.]+e|(?=[0-9.]{17})[0-9]+\.)")
"""Numbers that the two engines print differently, as JSON writes them.

``5.0`` becomes 5 in minijinja's filters; with an exponent, or with more than 15
digits, several shortest texts stand for the same number and each engine has
its own choice.
"""


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
        fuel: about how many steps of minijinja a message takes.
        tags: how ``{% generation %}`` tags compare, by probe.
    """

    engine: str
    method: Method
    form: Form
    shape: Shape
    refused: dict[str, str]
    dropped: tuple[tuple[str, int, str], ...]
    tried: tuple[str, ...]
    fuel: int = 0
    tags: dict[str, str] = field(default_factory=dict)


class Program:
    """Renders conversations with the message of each run.

    Args:
        tree: the parsed template.
        setting: its variables, date and limits.
        learned: what its proof gave.
    """

    def __init__(self, tree: n.Template, setting: Setting, learned: Learned) -> None:
        self.tree = tree
        self.setting = setting
        self.learned = learned
        self.engine = learned.engine
        self.parser = BodyParser(learned.shape)
        # what some probe lost is the template's way to lose in data: contents beside calls, and calls
        self.dropped = frozenset(part for _, _, part in learned.dropped if part != "R")
        self.rows = 0
        self._engines: dict[tuple[str, Marks], Engine] = {}
        self._reference: JinjaEngine | None = None
        self._preambles: OrderedDict[str, str] = OrderedDict()

    def marked_engine(self, name: str, marks: Marks) -> Engine:
        """The engine for one choice of marks, made at first use."""
        key = (name, marks)
        if key not in self._engines:
            tree = instrument(self.tree, self.learned.method, marks)
            self._engines[key] = engine_class(name)(tree, date=self.setting.date, limits=self.setting.limits)
        return self._engines[key]

    @property
    def reference(self) -> JinjaEngine:
        """The unmarked template in Jinja."""
        if self._reference is None:
            self._reference = JinjaEngine(copy.deepcopy(self.tree), date=self.setting.date, limits=self.setting.limits)
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
        counts: Counter[str],
        *,
        prompt: bool = False,
        mark: MarkInput | None = None,
        seen: Scan | None = None,
    ) -> Runs:
        """The rendering of a conversation with the message of each run.

        Args:
            messages: as normalised.
            tools: function schemas or None.
            counts: what is noticed is added here.
            prompt: add the generation prompt.
            mark: puts further marks into the input before it is rendered.
            seen: what a look at the texts, or at more, found; None looks.

        Raises:
            RecordRejected: the template refuses or fails, or a comparison with
                the reference shows that its spans cannot be trusted.
        """
        seen = seen or scan(messages, tools)
        # marks within texts must come through a template's JSON, which escapes control characters
        marks = seen.marks if mark is None else _unused_marks(messages, tools)
        shown, schemas = mark(messages, tools, marks) if mark is not None else (messages, tools)
        shown = shaped(shown, self.learned.form)
        engines = (self.engine, "jinja") if seen.safe and self.engine != "jinja" else ("jinja",)
        failure: Exception = RenderFailed("no engine")
        for name in engines:
            try:
                runs = self._run(name, marks, shown, schemas, seen, prompt=prompt)
            except LimitReached as error:
                raise _rejected(error, messages) from error
            except (Raised, RenderFailed, ValueError) as error:
                failure = error
                continue
            if name != self.engine:
                counts["engine_fallback"] += 1
            return runs if mark is not None else self._checked(runs, name, messages, tools, counts, prompt=prompt)
        raise _rejected(failure, messages) from failure

    def _run(self, name: str, marks: Marks, shown: list[Message], tools: Tools, seen: Scan, *, prompt: bool) -> Runs:
        engine = self.marked_engine(name, marks)
        if isinstance(engine, MiniEngine):
            engine.set_fuel(self._fuel(len(shown), seen.tool_objects))
        return render_marked(
            engine,
            self.learned.method,
            marks,
            shown,
            tools,
            self.setting.variables,
            self._limit(shown) if seen.dumped is None else self.setting.limits.size(len(seen.dumped)),
            generation_prompt=prompt,
        )

    def _checked(
        self, runs: Runs, name: str, messages: list[Message], tools: Tools, counts: Counter[str], *, prompt: bool
    ) -> Runs:
        """Compare with the reference now and then; the fast engine is given up at the first difference."""
        self.rows += 1
        if self.rows > CHECK_FIRST and self.rows % CHECK_EVERY:
            return runs
        expected = self.reference_text(messages, tools, prompt=prompt)
        if runs.text == expected:
            return runs
        counts["engine_mismatch"] += 1
        if name != "jinja":
            self.engine = "jinja"
            runs = self.trace(messages, tools, counts, prompt=prompt)
        if runs.text != expected:
            raise RecordRejected(RejectReason.span_not_proved, "the marked template renders another text")
        return runs

    def preamble(self, first: Message | None, counts: Counter[str]) -> str:
        """What stands before the first user message when there are no tools, for a given system message."""
        key = "" if first is None else f"{first['role']}\0{first.get('content')}"
        if key not in self._preambles:
            asked = {"role": "user", "content": "Usra asks something."}
            messages = [asked] if first is None else [first, asked]
            try:
                runs = self.trace(messages, None, counts)
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

    def _fuel(self, messages: int, tool_objects: int) -> int:
        """Many times the steps that a conversation needs: what runs out of them is left to the guarded Jinja."""
        return 10 * self.learned.fuel * (messages + 8) * (1 + messages // 32) + 400 * tool_objects

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
    """

    def __init__(self, first: MarkInput | None = None) -> None:
        self._first = first

    def __call__(self, messages: list[Message], tools: Tools, marks: Marks) -> tuple[list[Message], Tools]:
        """See :class:`MarkInput`."""
        if self._first is not None:
            messages, tools = self._first(messages, tools, marks)
        return [self._mark(message, number, marks) for number, message in enumerate(messages)], tools

    @staticmethod
    def _mark(message: Message, number: int, marks: Marks) -> Message:
        if message["role"] != "assistant":
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


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at all texts of an input found.

    Attributes:
        dumped: messages and then tools as JSON, or None where JSON cannot hold them.
        marks: marks whose characters no text holds.
        safe: whether the fast engine may be used.
        tool_objects: about how many objects the tools consist of.
    """

    dumped: bytes | None
    marks: Marks
    safe: bool
    tool_objects: int = 0


def scan(messages: list[Message], tools: Tools) -> Scan:
    """Look at all texts of an input once.

    Raises:
        RecordRejected: the texts hold every character that could be a mark.
    """
    try:
        schemas = orjson.dumps(tools) if tools else b""
        dumped = orjson.dumps(messages) + schemas
    except (TypeError, ValueError):
        return Scan(None, _free_marks(messages, tools), safe=False)
    alike, objects = _schema_facts(schemas) if schemas else (True, 0)
    safe = alike and _prints_alike(messages)
    if b"\\u00" not in dumped:
        return Scan(dumped, ALL_MARKS[0], safe, objects)
    safe = safe and not _SEPARATORS.search(dumped)
    for marks, written in _WRITTEN:
        if not any(character in dumped for character in written):
            return Scan(dumped, marks, safe, objects)
    return Scan(dumped, _free_marks(messages, tools), False, objects)


@lru_cache(maxsize=256)
def _schema_facts(schemas: bytes) -> tuple[bool, int]:
    """Whether both engines print a tool set's numbers alike, and about how many objects it has."""
    return not _UNLIKE.search(schemas), schemas.count(b"{")


def _free_marks(messages: list[Message], tools: Tools) -> Marks:
    """The first of the usual marks whose characters no text holds, else any other."""
    for marks in ALL_MARKS:
        if not any(c in text for text in all_texts((messages, tools)) for c in (marks.begin, marks.end)):
            return marks
    return _unused_marks(messages, tools)


def _unused_marks(messages: list[Message], tools: Tools) -> Marks:
    """Two private-use characters that no text of an input holds."""
    found: set[str] = set()
    for text in all_texts((messages, tools)):
        found.update(text)
    free = [chr(code) for code in range(0xE000, 0xF900) if chr(code) not in found][:2]
    if len(free) < 2:
        detail = "the text holds every character that could be used as a mark"
        raise RecordRejected(RejectReason.span_not_proved, detail)
    return Marks(*free)


def _written(character: str) -> bytes:
    return f"\\u{ord(character):04x}".encode()


_WRITTEN = [(marks, (_written(marks.begin), _written(marks.end))) for marks in ALL_MARKS if ord(marks.begin) < 0x20]
"""Marks with their characters as JSON writes them: it always escapes control characters."""


def _prints_alike(messages: list[Message]) -> bool:
    """Whether both engines print all numbers in messages alike, as far as is known."""
    calls = [message["tool_calls"] for message in messages if "tool_calls" in message]
    if calls and holds_float(calls) and _UNLIKE.search(orjson.dumps(calls)):
        return False
    return not any(type(value) is float for message in messages for value in message.values())
