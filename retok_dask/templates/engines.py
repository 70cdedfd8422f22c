"""Two engines that render a parsed template: Jinja, as transformers runs it, and minijinja.

Templates are code from strangers. Jinja runs in the sandbox that transformers
uses, with the growth of strings and the time watched; minijinja holds no
Python objects and counts its steps. Both are cut off at the same output size.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
import jinja2.nodes as n
from jinja2.utils import Namespace

from retok_dask.templates.limits import LimitReached, Limits, Raised, RenderFailed
from retok_dask.templates.sandbox import CONCAT, SIZED, TICK, GuardedSandbox, guarded
from retok_dask.templates.syntax import (
    GENERATION_CALL,
    MUTATING_CALL,
    UNDEFINED_CALL,
    CannotWrite,
    syntax_environment,
    write,
)
from retok_dask.templates.tojson import tojson

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from jinja2.runtime import Macro

IDENTIFY = "retok_message"


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


def _no_random_text(*_: Any, **__: Any) -> str:
    msg = "the template asks for random text; its renderings would differ from worker to worker"
    raise RenderFailed(msg)


class JinjaEngine:
    """Jinja in the sandbox; the reference."""

    name = "jinja"
    sandbox = GuardedSandbox

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        environment = syntax_environment(self.sandbox)
        environment.filters |= {"tojson": tojson, "random": _no_random_text}
        environment.guard_filters()
        environment.guard_printing()
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(date),
            "dict": _Dict(),
            "namespace": _Namespace,
            "lipsum": _no_random_text,
            GENERATION_CALL: _run_caller,
            TICK: self._tick,
            CONCAT: environment.concat_guarded,
            SIZED: environment.sized,
        }
        self._environment = environment
        self._limits = limits
        self._deadline = 0.0
        try:
            code = environment.compile(guarded(tree))
            self._template = jinja2.Template.from_code(environment, code, environment.globals)
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, TypeError) as error:
            raise RenderFailed(str(error)) from error

    def _tick(self) -> str:
        if time.monotonic() > self._deadline:
            msg = f"the template ran longer than {self._limits.seconds:g} s"
            raise LimitReached(msg)
        return ""

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`Engine`."""
        return "".join(self.printed(context, limit))

    def printed(self, context: Mapping[str, Any], limit: int) -> list[Any]:
        """The pieces that are printed: texts, where the sandbox makes texts of all.

        Raises:
            Raised, RenderFailed, LimitReached: see :class:`Engine`.
        """
        self._deadline = time.monotonic() + self._limits.seconds
        self._environment.most, self._environment.printed = limit, 0
        pieces: list[Any] = []
        size = 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                size += len(piece) if isinstance(piece, str) else 1
                _check_output(size, limit)
        except (Raised, LimitReached):
            raise
        except (MemoryError, OverflowError) as error:
            msg = f"{type(error).__name__} while rendering"
            raise LimitReached(msg) from error
        except Exception as error:
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        return pieces


def _check_output(size: int, limit: int) -> None:
    if size > limit:
        msg = f"the template wrote more than {limit} characters"
        raise LimitReached(msg)


def _run_caller(caller: Macro) -> str:
    return str(caller())


def _refuse_undefined() -> None:
    msg = "something undefined as JSON"
    raise RenderFailed(msg)


def _refuse_mutation() -> None:
    msg = "a call that changes what the template was given"
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
        environment.add_global(MUTATING_CALL, _refuse_mutation)
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
