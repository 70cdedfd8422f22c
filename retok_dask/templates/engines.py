"""Two engines that render a parsed template: Jinja, as transformers runs it, and minijinja.

Templates are code from strangers. Jinja runs in the sandbox that transformers
uses, with the growth of strings and the time watched; minijinja holds no
Python objects and counts its steps. Both are cut off at the same output size.
"""

from __future__ import annotations

import copy
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
import jinja2.nodes as n
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from retok_dask.templates.syntax import GENERATION_CALL, UNDEFINED_CALL, CannotWrite, syntax_environment, write
from retok_dask.templates.tojson import tojson

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from jinja2.runtime import Macro

TICK = "retok_tick"
IDENTIFY = "retok_message"
CONCAT = "retok_concat"


class Raised(Exception):
    """The template refused this input by ``raise_exception``."""


class RenderFailed(Exception):
    """The engine stumbled: a type error, an undefined value, an operation it does not know."""


class LimitReached(Exception):
    """The template ran too long or wrote too much."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much a render may take.

    Attributes:
        seconds: a render's time.
        growth: characters a render may write for each character of its input, beyond `floor`.
        floor: characters any render may write.
        fuel: steps of minijinja; a render that needs more is left to Jinja.
    """

    seconds: float = 5.0
    growth: int = 16
    floor: int = 4_000_000
    fuel: int = 2_000_000

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


def _clock(date: dt.date) -> Callable[[str], str]:
    moment = datetime(date.year, date.month, date.day)  # noqa: DTZ001  the date as written, in no zone
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


_FORMATS = frozenset({"format", "format_map"})
_PADS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_PLENTY = 1_000_000
"""Widths, counts and exponents beyond this are refused."""


class GuardedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with the operations refused that make giants out of small texts.

    Attributes:
        most: characters that any one text may have.
    """

    intercepted_binops = frozenset(["*", "**", "%", "+"])
    most = 0

    def check(self, characters: int) -> None:
        """Refuse a text of so many characters.

        Raises:
            LimitReached: it is too large.
        """
        if characters > self.most:
            msg = f"the template builds a text of {characters} characters"
            raise LimitReached(msg)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Jinja calls this for the operators above."""
        if operator == "+":
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                self.check(len(left) + len(right))
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    self.check(len(value) * times)
            if isinstance(left, int) and isinstance(right, int):
                self.check((left.bit_length() + right.bit_length()) // 3)
        elif operator == "**":
            _refuse_plenty([right])
            if isinstance(left, int) and isinstance(right, int):
                self.check(left.bit_length() * abs(right) // 3)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063  Jinja's own way
        """Jinja calls this for every call in a template."""
        bound = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(bound, "__self__", None), getattr(bound, "__name__", "")
        if isinstance(owner, str):
            if name in _PADS:
                _refuse_plenty([*args, *kwargs.values()])
            elif name in _FORMATS:
                _check_format(owner, [*args, *kwargs.values()])
            elif name == "replace" and len(args) > 1:
                __self.check(_replaced(owner, args[0], args[1]))
            elif name == "join" and args:
                args = (__self.joinable(args[0], owner), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    def joinable(self, values: Any, separator: Any) -> list[Any]:
        """The values as a list, if together they make no giant."""
        listed = list(values)
        self.check(sum(len(str(value)) for value in listed) + len(str(separator)) * len(listed))
        return listed

    def guard_filters(self) -> None:
        """Put guards before the filters that can make a text much longer."""
        filters = self.filters
        own = {name: filters[name] for name in ("center", "indent", "wordwrap", "format", "replace", "join")}

        def widths(name: str) -> Any:
            def guarded(value: Any, *args: Any, **kwargs: Any) -> Any:
                _refuse_plenty([*args, *kwargs.values()])
                lines = str(value).count("\n") + 1 if name == "indent" else 1
                self.check(sum(arg * lines for arg in [*args, *kwargs.values()] if isinstance(arg, int)))
                return own[name](value, *args, **kwargs)

            return guarded

        def format_(value: Any, *args: Any, **kwargs: Any) -> Any:
            _check_format(str(value), [*args, *kwargs.values()])
            return own["format"](value, *args, **kwargs)

        @jinja2.pass_eval_context
        def replace(context: Any, value: Any, old: Any, new: Any, count: int | None = None) -> Any:
            self.check(_replaced(str(value), old, new))
            return own["replace"](context, value, old, new, count)

        @jinja2.pass_eval_context
        def join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
            listed = list(value) if attribute is not None else self.joinable(value, d)
            return own["join"](context, listed, d, attribute)

        filters |= {"center": widths("center"), "indent": widths("indent"), "format": format_}
        filters |= {"replace": replace, "join": join}


def _refuse_plenty(numbers: Iterable[Any]) -> None:
    for number in numbers:
        if isinstance(number, int | float) and abs(number) > _PLENTY:
            msg = f"the template asks for a width or power of {number:g}"
            raise LimitReached(msg)


def _replaced(text: str, old: Any, new: Any) -> int:
    return len(text) + (text.count(str(old)) + 1) * len(str(new))


def _check_format(text: str, values: Iterable[Any]) -> None:
    if re.search(r"\d{7}", text):
        msg = "the template formats with a width of millions"
        raise LimitReached(msg)
    if "*" in text or re.search(r"\{[^{}]*:[^{}]*\{", text):
        _refuse_plenty(values)


def _no_random_text(*_: Any, **__: Any) -> str:
    msg = "the template asks for random text; its renderings would differ from worker to worker"
    raise RenderFailed(msg)


class JinjaEngine:
    """Jinja in the sandbox; the reference."""

    name = "jinja"

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        environment = syntax_environment(GuardedSandbox)
        environment.filters["tojson"] = tojson
        environment.guard_filters()
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(date),
            "dict": _Dict(),
            "namespace": _Namespace,
            "lipsum": _no_random_text,
            GENERATION_CALL: _run_caller,
            TICK: self._tick,
            CONCAT: self._concat,
        }
        self._environment = environment
        self._limits = limits
        self._deadline = 0.0
        try:
            code = environment.compile(guarded(tree))
            self._template = jinja2.Template.from_code(environment, code, environment.globals)
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, TypeError) as error:
            raise RenderFailed(str(error)) from error

    def _concat(self, *values: Any) -> str:
        texts = [str(value) for value in values]
        self._environment.check(sum(map(len, texts)))
        return "".join(texts)

    def _tick(self) -> str:
        if time.monotonic() > self._deadline:
            msg = f"the template ran longer than {self._limits.seconds:g} s"
            raise LimitReached(msg)
        return ""

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`Engine`."""
        self._deadline = time.monotonic() + self._limits.seconds
        self._environment.most = limit
        pieces, size = [], 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                size += len(piece)
                _check_output(size, limit)
        except (Raised, LimitReached):
            raise
        except (MemoryError, OverflowError) as error:
            msg = f"{type(error).__name__} while rendering"
            raise LimitReached(msg) from error
        except Exception as error:
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        return "".join(pieces)


def _check_output(size: int, limit: int) -> None:
    if size > limit:
        msg = f"the template wrote more than {limit} characters"
        raise LimitReached(msg)


def _run_caller(caller: Macro) -> str:
    return str(caller())


def guarded(tree: n.Template) -> n.Template:
    """A copy of the tree that looks at the clock in each loop and macro, and at the size of what ``~`` makes."""
    tree = copy.deepcopy(tree)
    for node in tree.find_all((n.For, n.Macro)):
        call = n.Call(n.Name(TICK, "load"), [], [], None, None)
        node.body.insert(0, n.ExprStmt(call).set_lineno(node.lineno, override=True))  # type: ignore[attr-defined]
    tree = _Concatenations().visit(tree)
    tree.set_environment(syntax_environment())
    return tree


class _Concatenations(NodeTransformer):
    def visit_Concat(self, node: n.Concat) -> n.Call:  # noqa: N802  Jinja's naming
        self.generic_visit(node)
        call = n.Call(n.Name(CONCAT, "load"), node.nodes, [], None, None)
        call.set_lineno(node.lineno)
        return call


def _refuse_undefined() -> None:
    msg = "something undefined as JSON"
    raise RenderFailed(msg)


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
        self._limits = limits
        self._environment = environment = minijinja.Environment(
            debug=False, keep_trailing_newline=True, auto_escape_callback=lambda _: False, fuel=limits.fuel
        )
        environment.add_filter("tojson", tojson)
        environment.add_global("raise_exception", _raise_exception)
        environment.add_global("strftime_now", _clock(date))
        environment.add_global(UNDEFINED_CALL, _refuse_undefined)
        try:
            environment.add_template("chat", self.source)
        except self._error as error:
            raise RenderFailed(str(error)) from error
        self._render = environment.render_template

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`Engine`."""
        return self._rendered("chat", context, limit)

    def _rendered(self, name: str, context: Mapping[str, Any], limit: int) -> str:
        try:
            text: str = self._render(name, **context)
        except (Raised, LimitReached):
            raise
        except Exception as error:
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        _check_output(len(text), limit)
        return text

    def set_fuel(self, steps: int) -> None:
        """Steps that each further render may take."""
        if steps != self._environment.fuel:
            self._environment.fuel = steps
