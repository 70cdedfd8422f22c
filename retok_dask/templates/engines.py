"""Two engines that render a parsed template: Jinja, as transformers runs it, and minijinja.

Templates are code from strangers. Jinja runs in the sandbox that transformers
uses, with the growth of strings and the time watched; minijinja holds no
Python objects and counts its steps. Both are cut off at the same output size.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
import jinja2.nodes as n
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from retok_dask.templates.syntax import GENERATION_CALL, CannotWrite, syntax_environment, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2.runtime import Macro

TICK = "retok_tick"
IDENTIFY = "retok_message"


class Raised(Exception):
    """The template refused this input by ``raise_exception``."""


class RenderFailed(Exception):
    """The engine stumbled: a type error, an undefined value, an operation it does not know."""


class LimitReached(Exception):
    """The template ran too long or wrote too much."""


class Limits:
    """How long and how much a render may take.

    Attributes:
        seconds: a render's time.
        growth: characters a render may write for each character of its input, beyond `floor`.
        floor: characters any render may write.
        fuel: steps of minijinja.
    """

    seconds = 5.0
    growth = 16
    floor = 4_000_000
    fuel = 200_000_000

    def __init__(self, *, seconds: float | None = None) -> None:
        if seconds is not None:
            self.seconds = seconds

    def size(self, characters: int) -> int:
        """Characters that may be written for an input of so many."""
        return self.floor + self.growth * characters


class Engine(Protocol):
    """Renders one template, again and again."""

    name: str

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """The text, at most `limit` characters long.

        Raises:
            Raised: by ``raise_exception`` in the template.
            RenderFailed: the engine could not go on.
            LimitReached: too long or too much.
        """


def _raise_exception(message: object) -> None:
    raise Raised(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    separators = tuple(separators) if separators is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _clock(date: dt.date) -> Callable[[str], str]:
    moment = dt.datetime(date.year, date.month, date.day)  # noqa: DTZ001  the date as written, in no zone
    return moment.strftime


class _Dict:
    """``dict`` for templates, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's namespace that refuses names with an underscore in front, as transformers' does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        msg = f"a chat template may not store {name!r} on a namespace"
        raise jinja2.exceptions.SecurityError(msg)


_MAX_STRING = 64_000_000
_SIZED = {"center", "ljust", "rjust", "zfill", "expandtabs"}


class GuardedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with the operations refused that make giants out of small strings."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Jinja calls this for the operators above."""
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    _check_size(len(value) * times)
        elif operator == "**" and isinstance(right, int | float):
            _check_size(int(abs(right)) * 1000)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  Jinja's own way
        """Jinja calls this for every call in a template."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name in _SIZED:
                _check_size(max([len(owner), *(arg for arg in [*args, *kwargs.values()] if isinstance(arg, int))]))
            elif name == "replace" and len(args) >= 2 and all(isinstance(arg, str) for arg in args[:2]):
                _check_size(len(owner) + owner.count(args[0]) * len(args[1]))
            elif name in {"format", "format_map"}:
                _check_format(owner)
        return super().call(__context, __obj, *args, **kwargs)


def _check_size(characters: int) -> None:
    if characters > _MAX_STRING:
        msg = f"the template builds a text of {characters} characters"
        raise LimitReached(msg)


def _check_format(text: str) -> None:
    digits = 0
    for character in text:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 6:
            msg = "the template formats with a width of millions"
            raise LimitReached(msg)


class JinjaEngine:
    """Jinja in the sandbox; the reference."""

    name = "jinja"

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        environment = syntax_environment(GuardedSandbox)
        environment.filters["tojson"] = _tojson
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(date),
            "dict": _Dict(),
            "namespace": _Namespace,
            GENERATION_CALL: _run_caller,
            TICK: self._tick,
        }
        self._limits = limits
        self._deadline = 0.0
        try:
            code = environment.compile(with_ticks(tree))
            self._template = jinja2.Template.from_code(environment, code, environment.globals)
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise RenderFailed(str(error)) from error

    def _tick(self) -> str:
        if time.monotonic() > self._deadline:
            msg = f"the template ran longer than {self._limits.seconds:g} s"
            raise LimitReached(msg)
        return ""

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`Engine`."""
        self._deadline = time.monotonic() + self._limits.seconds
        pieces, size = [], 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    msg = f"the template wrote more than {limit} characters"
                    raise LimitReached(msg)
        except (Raised, LimitReached):
            raise
        except (MemoryError, RecursionError, OverflowError) as error:
            raise LimitReached(f"{type(error).__name__} while rendering") from error
        except Exception as error:
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        return "".join(pieces)


def _run_caller(caller: Macro) -> str:
    return str(caller())


def with_ticks(tree: n.Template) -> n.Template:
    """The tree with a look at the clock in each loop body and macro."""
    for node in tree.find_all((n.For, n.Macro)):
        call = n.Call(n.Name(TICK, "load"), [], [], None, None)
        first = node.body[0] if node.body else None
        if not (isinstance(first, n.ExprStmt) and isinstance(first.node, n.Call) and _calls(first.node, TICK)):
            node.body.insert(0, n.ExprStmt(call).set_lineno(node.lineno, override=True))
    return tree


def _calls(call: n.Call, name: str) -> bool:
    return isinstance(call.node, n.Name) and call.node.name == name


class MiniEngine:
    """minijinja: the same template language in Rust, without Python objects."""

    name = "minijinja"

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        import minijinja  # noqa: PLC0415  optional: the other engine does the work without it

        self._error = minijinja.TemplateError
        try:
            self.source = write(tree)
        except CannotWrite as error:
            msg = f"minijinja has no {error}"
            raise RenderFailed(msg) from error
        environment = minijinja.Environment(
            debug=False, keep_trailing_newline=True, auto_escape_callback=lambda _: False, fuel=limits.fuel
        )
        environment.add_filter("tojson", _tojson)
        environment.add_global("raise_exception", _raise_exception)
        environment.add_global("strftime_now", _clock(date))
        try:
            environment.add_template("chat", self.source)
        except self._error as error:
            raise RenderFailed(str(error)) from error
        self._render = environment.render_template

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`Engine`."""
        try:
            text: str = self._render("chat", **context)
        except (Raised, LimitReached):
            raise
        except Exception as error:
            if getattr(error, "kind", "") == "OutOfFuel":
                raise LimitReached("the template took too many steps") from error
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        if len(text) > limit:
            msg = f"the template wrote more than {limit} characters"
            raise LimitReached(msg)
        return text
