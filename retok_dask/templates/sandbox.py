"""The guarded Jinja: the sandbox that transformers uses, with each operation watched that can make a giant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.nodes as n
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from retok_dask.errors import count_of
from retok_dask.templates.limits import LimitReached
from retok_dask.templates.syntax import copied, syntax_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

TICK, CONCAT, SIZED = "retok_tick", "retok_concat", "retok_sized"
"""Names of the functions that a guarded tree calls."""

_FORMATS = frozenset({"format", "format_map"})
_PADS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_PLENTY = 1_000_000
"""Widths, counts and exponents beyond this are refused."""

_PRINTED_AGAIN = 8
"""How deep macros and blocks may print one another's texts on average."""

_LONGER = frozenset({"tojson", "escape", "e", "forceescape", "urlencode", "pprint", "string", "xmlattr", "list"})
"""Filters that write one character as several, or what is nested as one text."""


class GuardedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with the operations refused that make giants out of small texts.

    Attributes:
        most: characters that any one text may have.
        printed: characters that were printed so far, into a text of the template's own or not.
    """

    intercepted_binops = frozenset(["*", "**", "%", "+"])
    most = 0
    printed = 0

    def check(self, characters: int) -> None:
        """Refuse a text of so many characters.

        Raises:
            LimitReached: it is too large.
        """
        if characters > self.most:
            msg = f"the template builds a text of {count_of(characters, 'character')}"
            raise LimitReached(msg)

    def sized(self, value: Any) -> Any:
        """The same value, if it is no giant, however it is nested."""
        if isinstance(value, str):
            self.check(len(value))
        elif isinstance(value, list | tuple | dict):
            self.check(_extent(value, {}))
        return value

    def concat_guarded(self, *values: Any) -> str:
        """What ``~`` makes of its operands."""
        texts = [str(self.sized(value)) for value in values]
        self.check(sum(map(len, texts)))
        return "".join(texts)

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
        if getattr(__obj, "__self__", None) is __self:
            return __obj(*args)
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
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def joinable(self, values: Any, separator: Any) -> list[Any]:
        """The values as a list, if together they make no giant."""
        listed = list(values)
        self.check(sum(len(str(value)) for value in listed) + len(str(separator)) * len(listed))
        return listed

    def guard_printing(self) -> None:
        """Count what is printed; what a macro prints is printed again where it is called, and counts again."""

        @jinja2.pass_context
        def counted(_: Any, value: Any) -> Any:
            self.printed += len(value) if isinstance(value, str) else _extent(value, {})
            self.check(self.printed // _PRINTED_AGAIN)
            return value

        self.finalize = counted

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


def _extent(value: Any, known: dict[int, int]) -> int:
    """About how many characters a nested value has, printed; each object in it is looked at once, however often it is there."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        items = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        known[id(value)] = 2 + sum(_extent(item, known) for item in items)
    return known[id(value)]


def _replaced(text: str, old: Any, new: Any) -> int:
    return len(text) + (text.count(str(old)) + 1) * len(str(new))


def _check_format(text: str, values: Iterable[Any]) -> None:
    if re.search(r"\d{7}", text):
        msg = "the template formats with a width of millions"
        raise LimitReached(msg)
    if "*" in text or re.search(r"\{[^{}]*:[^{}]*\{", text):
        _refuse_plenty(values)


def guarded(tree: n.Template) -> n.Template:
    """A copy of the tree that looks at the clock in each loop and macro, and at the size of what it builds and prints."""
    tree = copied(tree)
    for node in tree.find_all((n.For, n.Macro)):
        call = n.Call(n.Name(TICK, "load"), [], [], None, None)
        node.body.insert(0, n.ExprStmt(call).set_lineno(node.lineno, override=True))  # type: ignore[attr-defined]
    tree = _Guards().visit(tree)
    tree.set_environment(syntax_environment())
    return tree


class _Guards(NodeTransformer):
    def visit_Concat(self, node: n.Concat) -> n.Call:  # noqa: N802  Jinja's naming
        self.generic_visit(node)
        return _call(CONCAT, *node.nodes)

    def visit_List(self, node: n.List) -> n.Expr:  # noqa: N802
        return self._nested(node)

    def visit_Dict(self, node: n.Dict) -> n.Expr:  # noqa: N802
        return self._nested(node)

    def visit_Tuple(self, node: n.Tuple) -> n.Expr:  # noqa: N802
        return self._nested(node) if node.ctx == "load" else node

    def _nested(self, node: Any) -> n.Expr:
        """What holds something twice, and is itself held twice, is soon a giant that no operation may go through."""
        self.generic_visit(node)
        return node if all(isinstance(item, n.Const) for item in node.items) else _call(SIZED, node)

    def visit_Filter(self, node: n.Filter) -> n.Expr:  # noqa: N802
        self.generic_visit(node)
        if node.name not in _LONGER or node.node is None:
            return node
        node.node = _call(SIZED, node.node)
        return _call(SIZED, node)


def _call(name: str, *args: n.Expr) -> n.Call:
    call = n.Call(n.Name(name, "load"), list(args), [], None, None)
    return call.set_lineno(args[0].lineno)  # type: ignore[return-value]
