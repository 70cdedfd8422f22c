"""Conversations that go the same path through a template: rendered by the path, without the template.

Two conversations with the same roles and fields, for which a template asks the
same questions and gets the same answers, are printed alike: the same texts of
the template's, the same fields in the same places (symbolic execution; what
was asked is the path condition). So a template is run once on symbols
(:mod:`~retok_dask.templates.symbols`); what it asked becomes the conditions,
and what it printed the text, of a small function. The spans are those that
were proved for the first such row, at the same places between the fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.templates.context import template_context, template_messages
from retok_dask.templates.known import outside
from retok_dask.templates.limits import LimitReached, Raised, RenderFailed
from retok_dask.templates.marks import Runs
from retok_dask.templates.symbolic import SymbolicEngine
from retok_dask.templates.symbols import Atom, Steps, Symbol, Untraced, joined, parts_of
from retok_dask.types import Rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import jinja2.nodes as n

    from retok_dask.templates.prove import Form, Setting
    from retok_dask.templates.scan import Scan, Tools

    Place = Callable[[list["Message"], int], tuple[str, list[int]] | None]

Message = dict[str, Any]

OFTEN = 4
"""How often a shape comes before its path is followed: that takes some milliseconds, which many rows have to save."""

_TRIES, _FAILURES = 256, 16
"""How many paths are followed in all, and how many of them, one after the other, may come to nothing."""

_SHAPES, _MESSAGES = 4096, 64
"""Of how many shapes it is remembered how often they came, and the most messages that one may have."""

_CHARACTERS = 1 << 16
"""Most characters of the template's own in a path."""

_SURE = 3
"""So many rows of a path are rendered by the template too."""

_REASONED = "reasoning_chars"
_TEXTS = frozenset({"content", "reasoning_content"})
_SYSTEM = frozenset({"system", "developer"})


class _Path:
    """One path.

    Args:
        place: gives text and span starts of a conversation; None for one that takes another path, or would be longer
            than is said.
        rendered: the row that it was learned from.
        messages: of that row.
    """

    __slots__ = ("_counts", "_kinds", "_owners", "_reasoned", "place", "seen")

    def __init__(self, place: Place, rendered: Rendered, messages: list[Message]) -> None:
        self.place = place
        self.seen = 0
        self._kinds, self._owners = [*rendered.kinds], [*rendered.messages]
        # what else was noticed is so of all rows of the path
        self._counts = {name: number for name, number in rendered.counts.items() if name != _REASONED}
        self._reasoned = [number for number, message in enumerate(messages) if message.get("reasoning_content")]

    def render(self, messages: list[Message], limit: int) -> Rendered | None:
        """A row, if it takes this path and has no more than `limit` characters."""
        found = self.place(messages, limit)
        if found is None:
            return None
        rendered = Rendered(found[0], found[1], [*self._kinds], [*self._owners])
        if self._counts:
            rendered.counts = {**self._counts}
        if self._reasoned:
            chars = sum(len(messages[number]["reasoning_content"]) for number in self._reasoned)
            rendered.counts[_REASONED] = chars
        return rendered


class Paths:
    """The paths through one template that rows took before.

    Args:
        tree: the template.
        setting: its variables, date and limits.
        form: how it wants to be called.
    """

    def __init__(self, tree: n.Template, setting: Setting, form: Form) -> None:
        self._tree, self._setting, self._form = tree, setting, form
        self._engine: SymbolicEngine | None = None
        self._paths: dict[Hashable, list[_Path]] = {}
        self._came: dict[int, int] = {}
        self._tries, self._failures = _TRIES, 0

    def shape(self, messages: list[Message], scan: Scan) -> Hashable:
        """What rows on one path have in common before anything is asked; None for a row that the template renders."""
        if scan.nested != b"" or not scan.safe or self._failures >= _FAILURES or len(messages) > _MESSAGES:
            return None
        # beside tools, where a system message's text lies is searched for: it is part of the shape then
        whole = _SYSTEM if scan.tools else frozenset()
        shape: list[Hashable] = [scan.tools]
        for message in messages:
            role, content = message["role"], message.get("content")
            if type(content) is not str:
                return None
            shape += (len(message), *message, role)
            if role in whole:
                shape.append(content)
            elif role == "assistant" or role in _SYSTEM:
                shape.append(outside(content, content.strip()))
            else:
                shape.append(not content)
            if len(message) > 2:
                shape += [outside(text, text.strip()) if name in _TEXTS else text for name, text in message.items()]
        return tuple(shape)

    def render(self, shape: Hashable, messages: list[Message], limit: int) -> Rendered | None:
        """A row by a path that is known for sure; None if there is none, or it writes more than `limit` characters."""
        for path in self._paths.get(shape, ()):
            rendered = path.render(messages, limit) if path.seen >= _SURE else None
            if rendered is not None:
                return rendered
        return None

    def learn(
        self, shape: Hashable, messages: list[Message], limit: int, tools: Tools, rendered: Rendered | Runs
    ) -> bool:
        """Compare a row with its path, or follow it if its shape comes often; False if a path was wrong.

        No path is followed any more then. Spans that are still to be found are not compared.
        """
        for path in self._paths.get(shape, ()):
            found = path.render(messages, limit)
            if found is not None:
                path.seen += isinstance(rendered, Rendered)
                if found == rendered or (isinstance(rendered, Runs) and found.text == rendered.text):
                    return True
                self._paths.clear()
                self._failures = _FAILURES
                return False
        if isinstance(rendered, Rendered) and self._is_due(shape):
            learned = self._follow(messages, tools, rendered)
            self._tries -= 1
            self._failures = 0 if learned else self._failures + 1
            if learned:
                self._paths.setdefault(shape, []).append(learned)
        return True

    def _is_due(self, shape: Hashable) -> bool:
        """Whether a shape came often enough to follow its path; a power of two that often, so that few are tried again."""
        key = hash(shape)  # the shapes themselves may be large
        times = self._came.get(key, 0) + 1
        if times == 1 and len(self._came) >= _SHAPES:
            self._came.clear()
        self._came[key] = times
        return self._tries > 0 and times >= OFTEN and times & (times - 1) == 0

    def _follow(self, messages: list[Message], tools: Tools, rendered: Rendered) -> _Path | None:
        """The path of a row; None if it cannot be followed."""
        steps = Steps()
        whole = _SYSTEM if tools else frozenset()
        fields: list[Atom] = []
        shown = [
            message if message["role"] in whole else _symbolic(message, number, steps, fields)
            for number, message in enumerate(messages)
        ]
        if self._form.parts:
            shown = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in shown]
        context = template_context(template_messages(shown), tools, self._setting.variables)
        limits = self._setting.limits
        try:
            if self._engine is None:
                self._engine = SymbolicEngine(self._tree, date=self._setting.date, limits=limits)
            parts = parts_of(joined(steps, self._engine.printed(context, limits.floor)))
        except (Untraced, Raised, RenderFailed, LimitReached):
            return None
        printed = {part.field for part in parts if isinstance(part, Atom)}
        if any(field.value.strip() and field.name not in printed for field in fields):
            return None  # what a template leaves out is noticed, and counted
        place = _function(steps.lines, parts, rendered.starts)
        if place is None or place(messages, len(rendered.text)) != (rendered.text, rendered.starts):
            return None
        return _Path(place, rendered, messages)


def _symbolic(message: Message, number: int, steps: Steps, fields: list[Atom]) -> Message:
    """A message with symbols for its texts; their atoms are added to `fields`."""
    shown = dict(message)
    for name in _TEXTS & message.keys():
        fields.append(steps.atom(f"m[{number}][{name!r}]", message[name]))
        shown[name] = Symbol(steps, fields[-1:])
    return shown


def _function(lines: list[str], parts: tuple[str | Atom, ...], starts: list[int]) -> Place | None:
    """A path as a function of messages; None if a span begins within a field, or a field is empty."""
    texts = [part for part in parts if isinstance(part, str)]
    if sum(map(len, texts)) > _CHARACTERS:
        return None
    todo = iter([*starts, -1])
    start, position, own, lengths = next(todo), 0, 0, 0
    code, found = [*lines], []
    for part in parts:
        size = len(part.value if isinstance(part, Atom) else part)
        while position <= start < position + (size if isinstance(part, str) else min(size, 1)):
            found.append(f"n{lengths} + {own + start - position}" if lengths else str(own + start - position))
            start = next(todo)
        position += size
        if isinstance(part, str):
            own += size
        else:
            lengths += 1
            code.append(f"n{lengths} = {f'n{lengths - 1} + ' if lengths > 1 else ''}len({part.name})")
            if not size:
                return None
    if start >= 0:
        return None
    printed = ", ".join(part.name if isinstance(part, Atom) else repr(part) for part in parts)
    code.append(f"if {f'n{lengths} + ' if lengths else ''}{own} > limit: return None")  # before it is made
    code.append(f"return ''.join(({printed},)), [{', '.join(found)}]")
    names: dict[str, Any] = {"__builtins__": {"len": len}}
    body = "\n    ".join(code)
    exec(f"def place(m, limit):\n    {body}", names)  # noqa: S102  lines of this module and of `symbols`, texts in them by repr
    place: Place = names["place"]
    return place
