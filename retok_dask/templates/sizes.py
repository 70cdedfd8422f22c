"""How many times a text of the input may be in what an expression of a template gives.

A size says for some sources (the input, what goes round in a loop) how often
the text of each may be in a text, at most, and how many characters of the
template's own texts. What a template prints at once is not counted: that costs
a step each time, and steps are counted elsewhere.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

from retok_dask.templates.lengths import Growing, is_plain_format, joined, lists, longest, pairs, replacement, width
from retok_dask.templates.names import (
    built_lists,
    constant,
    constant_numbers,
    is_namespace,
    label_of,
    local_namespaces,
    namespace_holders,
)
from retok_dask.templates.rounds import INPUT, LOOP, NAMESPACE, OWN, Size, larger, plus, times
from retok_dask.templates.syntax import MUTATORS
from retok_dask.templates.vocabulary import (
    ESCAPING,
    FACTS,
    FILTERS,
    FUNCTIONS,
    LIST_WISE,
    METHODS,
    NUMBERS,
    RESERVED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 10_000
"""Longest range."""

_STEPS = 16_000
"""Nodes and names that are looked at, macros again at each call; public templates take up to 3,100."""

_LISTED = 2.0
"""A list that becomes a text has quotes and backslashes in its texts escaped."""

SPLIT = 8.0
"""A text that becomes a list, and that a text again, may have so many characters for each, quotes and commas included."""

_DIGITS: Size = {OWN: 10.0}
"""A number, or whether something is so."""

_PLAIN: tuple[type[n.Node], ...]
_PLAIN = (n.Concat, n.Add, n.Sub, n.Div, n.FloorDiv, n.Neg, n.Pos, n.Compare, n.Operand, n.Test, n.Not)
_PLAIN += (n.Pair, n.Keyword, n.Slice)
"""Expressions whose texts are those of their operands."""


class Sizes:
    """Sizes of expressions; what a macro prints is left to who walks through the statements.

    Args:
        tree: the template.
    """

    def __init__(self, tree: n.Template) -> None:
        self._steps = 0
        self._numbers = constant_numbers(tree)
        self._macro_names = {macro.name for macro in tree.find_all(n.Macro)}
        self.local = local_namespaces(tree)
        self._lists = built_lists(tree)
        self._holders = namespace_holders(tree)
        self.round: dict[str, list[tuple[Size, Size]]] = {}
        self._own_keys: set[str] = set()
        self._largest = max((constant(node) or 0.0 for node in tree.find_all(n.Const)), default=0.0)
        self._called: set[str] = set()
        self._read: set[str] = set()
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

    def put(self, name: str, attribute: str, size: Size, env: dict[str, Size]) -> None:
        """Something is put to an attribute of a namespace."""
        raise NotImplementedError

    def size(self, node: Any, env: dict[str, Size]) -> Size:
        """The size of an expression's value, printed.

        Raises:
            Growing: no bound is known.
        """
        self.spend()
        if isinstance(node, n.Const | n.TemplateData):
            return _own(node.value if isinstance(node, n.Const) else node.data)
        if isinstance(node, n.Name):
            return self._name(node.name, env)
        if isinstance(node, n.Getattr):
            return self._attribute(node, env)
        if isinstance(node, n.CondExpr):
            self.size(node.test, env)
            return larger(self.size(node.expr1, env), self.size(node.expr2, env) if node.expr2 else {})
        if isinstance(node, n.Or | n.And):
            return larger(self.size(node.left, env), self.size(node.right, env))
        if isinstance(node, n.Mul | n.Pow | n.Mod):
            return self._product(node, env)
        if isinstance(node, n.Getitem):
            return self._item(node, env)
        if isinstance(node, n.Test) and isinstance(node.node, n.Name):
            self._all(node.args, env)
            return _DIGITS
        parts = self.pieces(node, env)
        if isinstance(node, n.Add) and (self._is_number(node.left, env) or self._is_number(node.right, env)):
            return _DIGITS
        if isinstance(node, n.Compare | n.Test | n.Not):
            return _DIGITS
        if isinstance(node, n.Div | n.FloorDiv | n.Sub):
            return plus(parts, _DIGITS)
        return times(parts, _LISTED if isinstance(node, n.List | n.Tuple | n.Dict) else SPLIT if lists(node) else 1.0)

    def pieces(self, node: Any, env: dict[str, Size]) -> Size:
        """The size of what is in a list, one by one; of what is no list, its size."""
        if isinstance(node, n.Filter):
            return self.filtered(node, {}, env)
        if isinstance(node, n.Call):
            return self._call(node, env) if replacement(node) is None else self._replaced(node, {}, env)
        if isinstance(node, n.List | n.Tuple | n.Dict):
            if isinstance(node, n.Dict):
                self._own_keys |= {str(pair.key.value) if isinstance(pair.key, n.Const) else "*" for pair in node.items}
            return plus(self._all(node.iter_child_nodes(), env), {OWN: float(len(node.items))})
        if isinstance(node, n.Name) and f"{node.name}[]" in env:
            self._read.update(env[f"{node.name}[]"])
            return env[f"{node.name}[]"]
        if isinstance(node, _PLAIN):
            return self._all(node.iter_child_nodes(), env)
        return self.size(node, env)

    def _all(self, nodes: Iterable[Any], env: dict[str, Size]) -> Size:
        return plus(*(self.size(node, env) for node in nodes))

    def _name(self, name: str, env: dict[str, Size]) -> Size:
        if name in env:
            self.spend(len(env[name]) // 8)
            self._read.update(env[name])
            return env[name]
        if name in RESERVED or name in self._macro_names:
            msg = f"the use of {name} as a value"
            raise Growing(msg)
        return {INPUT: 1.0}

    def _item(self, node: n.Getitem, env: dict[str, Size]) -> Size:
        self.size(node.arg, env)
        if isinstance(node.arg, n.Const) and node.arg.value in MUTATORS:
            msg = f"the use of {node.arg.value} as a value"
            raise Growing(msg)
        if isinstance(node.arg, n.Slice):
            return self.size(node.node, env)
        return times(self.pieces(node.node, env), SPLIT if pairs(node.node) else 1.0)

    def _attribute(self, node: n.Getattr, env: dict[str, Size]) -> Size:
        """A part of something, or an attribute of a namespace, whichever."""
        if node.attr in MUTATORS:
            msg = f"the use of {node.attr} as a value"
            raise Growing(msg)
        if isinstance(node.node, n.Name) and node.node.name in self.local:
            return self._name(f"{node.node.name}.{node.attr}", env)
        own = self.pieces(node.node, env)
        held = self._holders is None or (isinstance(node.node, n.Name) and node.node.name in self._holders)
        if node.attr not in self._attributes or not held:
            return own
        return plus({label: number for label, number in own.items() if label != NAMESPACE}, {f".{node.attr}": 1.0})

    def given(self, target: Any, node: Any, env: dict[str, Size]) -> Size:
        """The size of what is assigned; a list that is built up is no text before it is joined."""
        if label_of(target) not in self._lists:
            return self.size(node, env)
        put = node.right if isinstance(node, n.Add) else node
        own = self.size(node.left, env) if isinstance(node, n.Add) else {}
        return plus(own, self.pieces(put, env))

    def filtered(self, node: n.Filter | None, inside: Size, env: dict[str, Size]) -> Size:
        """The size of what a filter makes, of what stands inside of its block where it has no value of its own.

        Of a list that it makes, the size of what is in it.
        """
        if node is None:
            return inside
        self.spend()
        if node.name == "replace":
            return self._replaced(node, inside, env)
        return self._by_filter(node, self._value(node, inside, env), env)

    def _value(self, node: n.Filter, inside: Size, env: dict[str, Size]) -> Size:
        """The size of what a filter is given: of a list as a text, unless the filter looks at what is in it."""
        value: Any = node.node
        if value is None:
            return inside
        whole = node.name not in LIST_WISE
        own = self.filtered(value, inside, env) if isinstance(value, n.Filter) else self.pieces(value, env)
        if isinstance(value, n.List | n.Tuple | n.Dict):
            return times(own, _LISTED) if whole else own
        return times(own, SPLIT) if pairs(value) or (whole and lists(value)) else own

    def _by_filter(self, node: n.Filter, own: Size, env: dict[str, Size]) -> Size:
        """The size of what a filter makes of something that has a size."""
        name, args = node.name, node.args
        if name not in FILTERS:
            msg = f"the filter {name}"
            raise Growing(msg)
        if name == "map":
            return self._mapped(node, own, env)
        if name == "replace":
            msg = "a replacement in a map"
            raise Growing(msg)
        if name in {"indent", "tojson"}:
            return times(own, ESCAPING.get(name, 1.0) + width(node))
        if name == "join" and label_of(node.node) in self._lists:
            # its elements were put there one by one
            return plus(own, {OWN: LOOP * (joined("the filter join", args) - 1)})
        if name == "join":
            return times(own, joined("the filter join", args))
        given = self._all((*args, *node.kwargs), env)
        if name in {"default", "d"}:
            return plus(own, given)
        return _DIGITS if name in NUMBERS else times(own, ESCAPING.get(name, 1.0))

    def _mapped(self, node: n.Filter, own: Size, env: dict[str, Size]) -> Size:
        """The size of what another filter makes of each element, or of an attribute of each."""
        given: list[Any] = [*node.args, *(pair.value for pair in node.kwargs)]
        if not all(isinstance(arg, n.Const) for arg in given):
            msg = "the filter map with what is not constant"
            raise Growing(msg)
        texts = [str(arg.value) for arg in given]
        if node.args:
            name, rest = texts[0], node.args[1:]
            made = n.Filter(None, name, rest, node.kwargs, None, None)
            own = times(self._by_filter(made, own, env), SPLIT if lists(made) else 1.0)
            texts = texts[1:]
        if any(part in MUTATORS for text in texts for part in text.split(".")):
            msg = "the filter map with a method"
            raise Growing(msg)
        return times(own, 1.0 + sum(map(len, texts)))

    def _call(self, node: n.Call, env: dict[str, Size]) -> Size:
        called = node.node
        if isinstance(called, n.Getattr):
            return self._method(called, node, env)
        if not isinstance(called, n.Name):
            msg = "the call of what has no name"
            raise Growing(msg)
        if called.name in self._macro_names:
            return self.macro(node, env)
        if called.name not in FUNCTIONS:
            msg = f"the call of {called.name}"
            raise Growing(msg)
        given = self._all((child for child in node.iter_child_nodes() if child is not called), env)
        if called.name == "range":
            return {OWN: 8.0 * (self.repetitions(node, env) or 0.0)}
        if called.name == "strftime_now":
            return {OWN: 256.0 * sum(len(str(arg.value)) if isinstance(arg, n.Const) else inf for arg in node.args)}
        if called.name != "namespace":
            return given
        if node.args:
            msg = "a namespace of what is not named"
            raise Growing(msg)
        for pair in node.kwargs:
            self.put("", pair.key, self.given(pair, pair.value, env), env)
        return {NAMESPACE: 1.0}

    def repetitions(self, iterated: Any, env: dict[str, Size]) -> float | None:
        """How often a loop goes round; None if that is as often as there are things.

        Raises:
            Growing: it is a range that is too long.
        """
        if isinstance(iterated, n.List | n.Tuple):
            return float(len(iterated.items))
        if not (isinstance(iterated, n.Call) and getattr(iterated.node, "name", "") == "range"):
            return None
        bounds = [self._range_bound(arg, env) for arg in iterated.args[:2]]
        if any(bound > LONGEST for bound in bounds):
            msg = "a long range"
            raise Growing(msg)
        return sum(bounds)

    def _range_bound(self, node: Any, env: dict[str, Size]) -> float:
        """The most that a bound of a range may be, whatever its sign; a number of things counts as a loop over them."""
        number = self._number(node, env)
        if number is not None:
            return number
        if isinstance(node, n.Add | n.Sub):
            return self._range_bound(node.left, env) + self._range_bound(node.right, env)
        if isinstance(node, n.Name | n.Getattr | n.Getitem):
            return max(LOOP, self._largest)
        return LOOP if isinstance(node, n.Filter) and node.name in {"length", "count"} else inf

    def _method(self, called: n.Getattr, node: n.Call, env: dict[str, Size]) -> Size:
        name, own = called.attr, self.pieces(called.node, env)
        given = self._all((child for child in node.iter_child_nodes() if child is not called), env)
        if name not in METHODS or (name == "format" and not is_plain_format(called.node, node.args)):
            msg = f"the method {name}"
            raise Growing(msg)
        self._called.add(name)
        if name in MUTATORS or name in FACTS:
            return _DIGITS
        if name == "join":
            return times(given, joined("the method join", [called.node]))
        if name == "format":
            return plus(own, given)
        return plus(own, self._all(node.args[1:], env)) if name == "get" else own

    def _replaced(self, node: Any, inside: Size, env: dict[str, Size]) -> Size:
        """The size of a text in which one thing or several, one after the other, were replaced."""
        steps: list[tuple[str, str]] = []
        while (args := replacement(node)) is not None:
            texts = [str(arg.value) for arg in args if isinstance(arg, n.Const)]
            if len(texts) != 2:
                msg = "a replacement with what is not constant"
                raise Growing(msg)
            steps.insert(0, (texts[0], texts[1]))
            called: Any = node.node
            node = called.node if isinstance(node, n.Call) else called
        if node is None or isinstance(node, n.Filter):
            own = times(self.filtered(node, inside, env), SPLIT if lists(node) else 1.0)
        else:
            own = self.size(node, env)
        self.spend(len(steps) ** 2 // 8)
        # something may be put into an empty text as well
        return times(plus(own, {OWN: 1.0}), longest(steps))

    def _product(self, node: Any, env: dict[str, Size]) -> Size:
        left, right = self.size(node.left, env), self.size(node.right, env)
        formats = isinstance(node.left, n.Const) and isinstance(node.left.value, str)
        if isinstance(node, n.Pow) or (isinstance(node, n.Mod) and (formats or not self._is_number(node.right, env))):
            msg = "the operator ** or %"
            raise Growing(msg)
        if isinstance(node, n.Mod) or (self._is_number(node.left, env) and self._is_number(node.right, env)):
            return plus(left, right, _DIGITS)
        for text, number in ((left, node.right), (right, node.left)):
            most = self._number(number, env)
            if most is not None:
                return times(text or {OWN: 1.0}, most)
        msg = "a repetition by *"
        raise Growing(msg)

    def _number(self, node: Any, env: dict[str, Size]) -> float | None:
        """The most that an expression can be which is always the same number."""
        if isinstance(node, n.Name) and node.name in env:
            return self._numbers.get(node.name)
        return constant(node.node if isinstance(node, n.Neg) else node)

    def _is_number(self, node: Any, env: dict[str, Size]) -> bool:
        """Whether an expression is a number for certain."""
        self.spend()
        if self._number(node, env) is not None:
            return True
        if isinstance(node, n.Getattr):
            counts = ("index", "revindex", "length")
            counted = isinstance(node.node, n.Name) and node.node.name == "loop" and "loop" in env
            return counted and node.attr.startswith(counts)
        if isinstance(node, n.Filter):
            return node.name in NUMBERS
        if isinstance(node, n.Add | n.Mul | n.Mod):
            return self._is_number(node.left, env) and self._is_number(node.right, env)
        return isinstance(node, n.Sub | n.Div | n.FloorDiv | n.Neg)


def _own(value: Any) -> Size:
    """The size of a constant: its characters."""
    if isinstance(value, str):
        return {OWN: float(len(value))} if value else {}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {OWN: 5.0}
    return {OWN: 1.0 + value.bit_length() // 3 if isinstance(value, int) else float(len(f"{value:f}"))}
