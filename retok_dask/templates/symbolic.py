"""Jinja that runs a template on symbols: the guarded sandbox, with texts that stay symbols until they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2.nativetypes import NativeEnvironment

from retok_dask.templates.engines import JinjaEngine
from retok_dask.templates.sandbox import GuardedSandbox
from retok_dask.templates.symbols import Length, Symbol, joined
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
        listed = list(values)
        found = next((value for value in listed if isinstance(value, Symbol)), None)
        return "".join(map(str, listed)) if found is None else joined(found.steps, listed)

    def concat_guarded(self, *values: Any) -> Any:
        """See :class:`GuardedSandbox`."""
        return self.concat(values) if any(isinstance(v, Symbol) for v in values) else super().concat_guarded(*values)

    def know_symbols(self) -> None:
        """Symbols are texts to tests and filters that ask."""
        for name in ("string", "sequence", "iterable"):
            self.tests[name] = _or_symbol(self.tests[name], _yes)
        for name in ("length", "count"):
            self.filters[name] = _or_symbol(self.filters[name], Length)
        self.filters["trim"] = _or_symbol(self.filters["trim"], Symbol.strip)
        self.filters["replace"] = _or_symbol(self.filters["replace"], Symbol.replace)
        self.filters["string"] = _or_symbol(self.filters["string"], _itself)


def _yes(_: Symbol) -> bool:
    return True


def _itself(symbol: Symbol) -> Symbol:
    return symbol


def _or_symbol(other: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    def either(value: Any, *args: Any, **kwargs: Any) -> Any:
        return own(value, *args, **kwargs) if isinstance(value, Symbol) else other(value, *args, **kwargs)

    return either


class SymbolicEngine(JinjaEngine):
    """Renders to pieces: texts of the template, and symbols."""

    name = "symbolic"
    sandbox = _SymbolicSandbox

    def __init__(self, tree: n.Template, *, date: dt.date, limits: Limits) -> None:
        super().__init__(tree, date=date, limits=limits)
        self._environment.know_symbols()
        self._environment.globals[GENERATION_CALL] = lambda caller: caller()
