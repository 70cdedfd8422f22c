"""Jinja that runs a template on symbols: the guarded sandbox, with texts that stay symbols until they are printed."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from jinja2.nativetypes import NativeEnvironment

from retok_dask.templates.engines import JinjaEngine
from retok_dask.templates.sandbox import GuardedSandbox
from retok_dask.templates.symbols import Length, Symbol, printed, refuse
from retok_dask.templates.syntax import GENERATION_CALL

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    import jinja2.nodes as n

    from retok_dask.templates.limits import Limits


class _SymbolicSandbox(GuardedSandbox):
    """The guarded sandbox that makes texts of what is printed only where there is no symbol among it."""

    code_generator_class = NativeEnvironment.code_generator_class

    @staticmethod
    def concat(values: Iterable[Any]) -> Any:
        """What a macro or a block prints."""
        return printed([*values])

    def concat_guarded(self, *values: Any) -> Any:
        """See :class:`GuardedSandbox`."""
        return printed([*values]) if any(isinstance(v, Symbol) for v in values) else super().concat_guarded(*values)

    def know_symbols(self) -> None:
        """Let filters and tests take symbols for texts; those that are not known to be right end the run."""
        for name, filter_ in self.filters.items():
            self.filters[name] = _knowing(filter_, _FILTERS.get(name, filter_ if name in _DEFAULTS else refuse))
        for name, test in self.tests.items():
            self.tests[name] = _knowing(test, test if name in _COMPARING else _TESTS.get(name, refuse))


_DEFAULTS = frozenset({"default", "d"})
_COMPARING = frozenset(
    {"eq", "equalto", "==", "ne", "!=", "in", "gt", "greaterthan", ">", "lt", "lessthan", "<", "ge", ">=", "le", "<="}
)
"""Filters and tests that do what symbols and lengths say themselves."""

_FILTERS: dict[str, Callable[..., Any]] = {
    "trim": Symbol.strip,
    "replace": Symbol.replace,
    "string": lambda value: value if isinstance(value, Symbol) else refuse(),
    "length": Length,
    "count": Length,
}


def _always(answer: bool) -> Callable[..., bool]:
    return lambda value: answer if isinstance(value, Symbol) else refuse()


_TESTS = {name: _always(True) for name in ("string", "sequence", "iterable", "defined")} | {
    name: _always(False)
    for name in ("undefined", "none", "mapping", "number", "integer", "float", "boolean", "true", "false", "callable")
}


def _knowing(function: Any, own: Any) -> Callable[..., Any]:
    """A filter or test that leaves symbols and lengths, whichever argument they are, to another function."""
    first = int(hasattr(function, "jinja_pass_arg"))  # those that want their context get it before the value

    @wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, Symbol | Length) for value in (*args, *kwargs.values())):
            return own(*args[first:], **kwargs)
        return function(*args, **kwargs)

    return either


class SymbolicEngine(JinjaEngine):
    """Renders to pieces: texts of the template, and symbols."""

    name = "symbolic"
    sandbox = _SymbolicSandbox

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        super().__init__(tree, date=date, limits=limits)
        self._environment.know_symbols()
        self._environment.globals[GENERATION_CALL] = lambda caller: caller()
