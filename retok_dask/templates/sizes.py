"""How many times a text of the input may be in what an expression of a template gives.

A size says for some sources (the input, what goes round in a loop) how often
the text of each may be in a text, at most, and how many characters of the
template's own texts. What a template prints at once is not counted: that costs
a step each time, and steps are counted elsewhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import jinja2.nodes as n

from retok_dask.templates.names import built_lists, constant_numbers, is_namespace, label_of, namespace_holders

Size = dict[str, float]

INPUT, OWN, NAMESPACE = "input", "own", "namespace"
"""Sources: all of the input once, a character of the template, all that is in namespaces."""

LOOP = 10.0
"""What a loop over data prints again each time is counted so many times; over a range, as often as that is long."""

LONGEST = 10_000
"""Longest range."""

_STEPS = 40_000
"""Nodes and names that are looked at, macros again at each call; public templates take up to 4,000."""

_PADDING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format_map", "wordwrap", "lipsum", "batch", "slice"}
)
_ESCAPING = {"tojson": 6.0, "escape": 5.0, "e": 5.0, "forceescape": 5.0, "urlencode": 9.0, "xmlattr": 5.0}
_ESCAPING |= {"pprint": 4.0, "string": 4.0}
"""Filters that write a character as several, and how many."""

_LISTED = 2.0
"""A list that becomes a text has quotes and backslashes in its texts escaped."""


class Growing(Exception):
    """Something in a template can multiply text; says what."""


def plus(*sizes: Size) -> Size:
    """The size of texts one after the other."""
    total: Counter[str] = Counter()
    for size in sizes:
        total.update(size)
    return dict(total)


def times(size: Size, factor: float) -> Size:
    """The size of a text that is there several times."""
    return {label: number * factor for label, number in size.items()} if factor else {}


def larger(one: Size, two: Size) -> Size:
    """A size that neither of two exceeds."""
    return {label: max(one.get(label, 0.0), two.get(label, 0.0)) for label in one.keys() | two.keys()}


class Sizes:
    """Sizes of expressions; what a macro prints is left to who walks through the statements.

    Args:
        tree: the template.
    """

    def __init__(self, tree: n.Template) -> None:
        self._steps = 0
        self._numbers = constant_numbers(tree)
        self._macro_names = {macro.name for macro in tree.find_all(n.Macro)}
        self._lists = built_lists(tree)
        self._holders = namespace_holders(tree)
        self._attributes = {name.attr for name in tree.find_all(n.NSRef)}
        self._attributes |= {pair.key for call in tree.find_all(n.Call) if is_namespace(call) for pair in call.kwargs}

    def spend(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            Growing: there are too many.
        """
        self._steps += steps
        if self._steps > _STEPS:
            msg = "more than can be followed"
            raise Growing(msg)

    def macro(self, call: n.Call, env: dict[str, Size]) -> Size:
        """What a call of one of the template's macros prints."""
        raise NotImplementedError

    def size(self, node: Any, env: dict[str, Size]) -> Size:
        """The size of an expression's value, printed.

        Raises:
            Growing: no bound is known.
        """
        self.spend()
        if isinstance(node, n.Const | n.TemplateData):
            text = node.value if isinstance(node, n.Const) else node.data
            return {OWN: float(len(text))} if isinstance(text, str) else {}
        if isinstance(node, n.Name):
            return self._name(node.name, env)
        if isinstance(node, n.Getattr):
            return self._attribute(node, env)
        if isinstance(node, n.CondExpr):
            self.size(node.test, env)
            return larger(self.size(node.expr1, env), self.size(node.expr2, env) if node.expr2 else {})
        if isinstance(node, n.Or | n.And):
            return larger(self.size(node.left, env), self.size(node.right, env))
        if isinstance(node, n.Filter):
            return self.filtered(node, {}, env)
        if isinstance(node, n.Call):
            return self._call(node, env) if _replacement(node) is None else self._replaced(node, {}, env)
        if isinstance(node, n.Mul | n.Pow | n.Mod):
            return self._product(node, env)
        parts = [self.size(child, env) for child in node.iter_child_nodes()]
        if isinstance(node, n.Getitem):
            return parts[0]
        if isinstance(node, n.Compare | n.Test | n.Not):
            return {}
        return times(plus(*parts), _LISTED if isinstance(node, n.List | n.Tuple | n.Dict) else 1.0)

    def _name(self, name: str, env: dict[str, Size]) -> Size:
        if name == "self" or (name in self._macro_names and name not in env):
            msg = f"the use of {name} as a value"
            raise Growing(msg)
        return env.get(name, {INPUT: 1.0})

    def _attribute(self, node: n.Getattr, env: dict[str, Size]) -> Size:
        """A part of something, or an attribute of a namespace, whichever."""
        own = self.size(node.node, env)
        held = self._holders is None or (isinstance(node.node, n.Name) and node.node.name in self._holders)
        if node.attr not in self._attributes or not held:
            return own
        return plus({label: number for label, number in own.items() if label != NAMESPACE}, {f".{node.attr}": 1.0})

    def given(self, target: Any, node: Any, env: dict[str, Size]) -> Size:
        """The size of what is assigned; a list that is built up is no text before it is joined."""
        if label_of(target) in self._lists:
            lists = [part for part in (node, getattr(node, "right", None)) if isinstance(part, n.List)]
            rest = [node.left] if isinstance(node, n.Add) else []
            return plus(*(self.size(item, env) for item in (*rest, *(item for part in lists for item in part.items))))
        return self.size(node, env)

    def filtered(self, node: n.Filter | None, inside: Size, env: dict[str, Size]) -> Size:
        """The size of what a filter makes, of what stands inside of its block where it has no value of its own."""
        if node is None:
            return inside
        self.spend()
        value: Any = node.node
        own = (
            self.filtered(value, inside, env) if value is None or isinstance(value, n.Filter) else self.size(value, env)
        )
        given = plus(*(self.size(child, env) for child in (*node.args, *node.kwargs)))
        name, args = node.name, node.args
        if name == "map" and args and isinstance(args[0], n.Const):
            name, args = args[0].value, args[1:]
        if name in _PADDING or name == "format":
            msg = f"the filter {name}"
            raise Growing(msg)
        if name == "indent":
            return times(own, 1.0 + _width(node))
        if name == "replace":
            return self._replaced(node, inside, env)
        if name == "join":  # elements of a list that is built here were put there one by one
            return times(own, 1.0 if label_of(value) in self._lists else _joined("the filter join", args))
        return plus(times(own, _ESCAPING.get(name, 1.0)), given)

    def _call(self, node: n.Call, env: dict[str, Size]) -> Size:
        called = node.node
        if isinstance(called, n.Name):
            if called.name in self._macro_names:
                return self.macro(node, env)
            if called.name == "caller":
                return env.get("caller", {})
        given = plus(*(self.size(child, env) for child in node.iter_child_nodes() if child is not called))
        if isinstance(called, n.Name):
            if called.name == "range" and any(isinstance(a, n.Const) and a.value > LONGEST for a in node.args):
                msg = "a long range"
                raise Growing(msg)
            return {NAMESPACE: 1.0} if called.name == "namespace" else given
        if not isinstance(called, n.Getattr):
            msg = "the call of what has no name"
            raise Growing(msg)
        return self._method(called, node.args, given, env)

    def _method(self, called: n.Getattr, args: list[Any], given: Size, env: dict[str, Size]) -> Size:
        name, own = called.attr, self.size(called.node, env)
        if name in _PADDING or (name == "format" and not _is_plain_format(called.node, args)):
            msg = f"the method {name}"
            raise Growing(msg)
        if name == "join":
            return times(given, _joined("the method join", [called.node]))
        return plus(own, given)

    def _replaced(self, node: Any, inside: Size, env: dict[str, Size]) -> Size:
        """The size of a text in which one thing or several, one after the other, were replaced."""
        steps: list[tuple[str, str]] = []
        while (args := _replacement(node)) is not None:
            texts = [str(arg.value) for arg in args if isinstance(arg, n.Const)]
            if len(texts) != 2:
                msg = "a replacement with what is not constant"
                raise Growing(msg)
            steps.insert(0, (texts[0], texts[1]))
            called: Any = node.node
            node = called.node if isinstance(node, n.Call) else called
        own = inside if node is None else self.size(node, env)
        return times(own, _longest(steps))

    def _product(self, node: Any, env: dict[str, Size]) -> Size:
        left, right = self.size(node.left, env), self.size(node.right, env)
        formats = isinstance(node.left, n.Const) and isinstance(node.left.value, str)
        if isinstance(node, n.Pow) or (isinstance(node, n.Mod) and (formats or not self._is_number(node.right))):
            msg = "the operator ** or %"
            raise Growing(msg)
        if isinstance(node, n.Mod) or (self._is_number(node.left) and self._is_number(node.right)):
            return plus(left, right)
        for text, number in ((left, node.right), (right, node.left)):
            most = self._number(number)
            if most is not None:
                return times(text or {OWN: 1.0}, most)
        msg = "a repetition by *"
        raise Growing(msg)

    def _number(self, node: Any) -> float | None:
        """The value of an expression that is always the same number."""
        if isinstance(node, n.Const) and isinstance(node.value, int | float):
            return abs(float(node.value))
        return self._numbers.get(node.name) if isinstance(node, n.Name) else None

    def _is_number(self, node: Any) -> bool:
        """Whether an expression is a number for certain."""
        if self._number(node) is not None:
            return True
        if isinstance(node, n.Getattr):
            counts = ("index", "revindex", "length")
            return isinstance(node.node, n.Name) and node.node.name == "loop" and node.attr.startswith(counts)
        if isinstance(node, n.Filter):
            return node.name in {"length", "int", "count", "abs", "float", "round"}
        if isinstance(node, n.Add | n.Mul | n.Mod):
            return self._is_number(node.left) and self._is_number(node.right)
        return isinstance(node, n.Sub | n.Div | n.FloorDiv | n.Neg)


def _width(node: n.Filter) -> float:
    """The width of an indentation.

    Raises:
        Growing: it is not small, or not constant.
    """
    widths = [arg.value if isinstance(arg, n.Const) else None for arg in (*node.args, *(p.value for p in node.kwargs))]
    if any(width is None or (isinstance(width, int) and width >= 100) for width in widths):
        msg = "the filter indent"
        raise Growing(msg)
    return max((width for width in widths if isinstance(width, int)), default=4)


def _joined(what: str, between: list[Any]) -> float:
    """How many characters stand for one after a joining.

    Raises:
        Growing: that depends on more than the template.
    """
    if not all(isinstance(text, n.Const) for text in between[:1]):
        msg = f"{what} with what is not constant"
        raise Growing(msg)
    return 1.0 + sum(len(str(text.value)) for text in between[:1])


def _replacement(node: Any) -> list[Any] | None:
    """The arguments of a filter or method that replaces; None for everything else."""
    if isinstance(node, n.Filter):
        return list(node.args) if node.name == "replace" else None
    if isinstance(node, n.Call) and isinstance(node.node, n.Getattr):
        return list(node.args) if node.node.attr == "replace" else None
    return None


def _longest(steps: list[tuple[str, str]]) -> float:
    """How many characters may stand for one after all replacements."""
    if any(len(old) != 1 for old, _ in steps):
        factors = [max(1.0, len(new) / len(old)) if old else 1.0 + len(new) for old, new in steps]
        return math.prod(factors)
    most = 1
    for character, _ in steps:
        text = character
        for old, new in steps:
            text = text.replace(old, new)
            if len(text) > _STEPS:
                return float("inf")
        most = max(most, len(text))
    return float(most)


_FIELD = re.compile(r"\{[^{}]*\}")


def _is_plain_format(text: Any, args: list[Any]) -> bool:
    """Whether a format's text is constant, and prints each argument once, as it is."""
    return isinstance(text, n.Const) and _FIELD.findall(str(text.value)) == ["{}"] * len(args)
