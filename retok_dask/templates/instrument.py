"""Making a template say which message it is working on.

The parsed template is changed, not the conversation: at the start of each
loop over messages, after each assignment of a message, and in each macro that
is given one, it prints a mark with the message's number; around such loops
and macros it prints a mark that remembers the message before and one that
returns to it. :mod:`~retok_dask.templates.marks` cuts them out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

from retok_dask.templates.charloops import without_character_loops
from retok_dask.templates.engines import IDENTIFY
from retok_dask.templates.marks import BACK, GENERATED, NO_MESSAGE, NOT_GENERATED, REMEMBER, Marks
from retok_dask.templates.syntax import is_generation

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Method:
    """Where a template is marked, and how an object is known to be a message.

    Attributes:
        carry: True if messages carry their mark under a key of their own,
            False if a function compares identity.
        sets: names whose assignment opens a message (``*`` for all).
        macros: whether macro arguments open a message.
        texts: whether the marks are put into a text that the template builds
            up by ``set out = out ~ ...`` and prints in the end.
    """

    carry: bool = True
    sets: frozenset[str] = frozenset()
    macros: bool = True
    texts: bool = False

    def describe(self) -> str:
        how = "a key in each message" if self.carry else "identity"
        where = (
            "loops"
            + (", macros" if self.macros else "")
            + (f", set {', '.join(sorted(self.sets))}" if self.sets else "")
        )
        return f"{how}; {where}"


def _text(value: str) -> n.Output:
    return n.Output([n.TemplateData(value)])


class _Instrument:
    def __init__(self, method: Method, marks: Marks, holders: _Holders) -> None:
        self.method = method
        self.marks = marks
        self.holders = holders
        self.opened = False
        self.current: n.Expr | None = None

    def open(self, name: n.Expr, line: int) -> n.Output:
        """A statement that prints the mark of what a name holds, if it is a message."""
        return n.Output([self.shown(name)]).set_lineno(line, override=True)  # type: ignore[return-value]

    def shown(self, name: n.Expr) -> n.Expr:
        """An expression that is the mark of what a name holds, or an empty text."""
        mapping = n.Test(name, "mapping", [], [], None, None)
        if self.method.carry:
            mark: n.Expr = n.Getitem(name, n.Const(self.marks.begin), "load")
        else:
            mark = n.Call(n.Name(IDENTIFY, "load"), [name], [], None, None)
        return n.CondExpr(mapping, mark, n.Const(""))

    def build_up(self, nodes: Sequence[n.Node]) -> None:
        """Put marks into texts that assignments build up, each with the message bound last before it."""
        for node in nodes:
            if isinstance(node, n.Assign):
                if self.holders.is_message(node.node):
                    self.current = _load(_names(node.target)[0])
                elif _appends(node):
                    self._mark_append(node)
                continue
            before = self.current
            if isinstance(node, n.For) and self.holders.is_list(node.iter):
                self.current = _load(_names(node.target)[0])
            for name in ("body", "elif_", "else_"):
                if isinstance(getattr(node, name, None), list):
                    self.build_up(getattr(node, name))
            if isinstance(node, n.For):
                self.current = before

    def _mark_append(self, node: n.Assign) -> None:
        mark = self.shown(self.current) if self.current is not None else n.Const(self.marks.make(NO_MESSAGE))
        chain = _operands(node.node)
        node.node = n.Concat([chain[0], mark, *chain[1:]])

    def body(self, nodes: Sequence[n.Node]) -> list[Any]:
        done: list[Any] = []
        for node in nodes:
            marked_inside = self.inside(node)
            if isinstance(node, n.For):
                # a loop that prints nothing owns no text
                if self.holders.is_list(node.iter) and next(node.find_all((n.Output, n.CallBlock)), None) is not None:
                    node.body[:0] = [self.open(_load(name), node.lineno) for name in _names(node.target)]
                    marked_inside = True
                wrapped = [_text(self.marks.make(REMEMBER)), node, _text(self.marks.make(BACK))]
                done += wrapped if marked_inside else [node]
                self.opened |= marked_inside
            elif isinstance(node, n.Assign):
                message = self._opens(node)
                # the mark comes first, because the assignment may replace `messages` itself
                done += [self.open(message, node.lineno), node] if message is not None else [node]
                self.opened |= message is not None
            else:
                done.append(node)
        return done

    def _opens(self, node: n.Assign) -> n.Expr | None:
        names = {_label(name) for name in _names(node.target)}
        if "*" not in self.method.sets and not names & self.method.sets:
            return None
        return self.holders.message_in(node.node)

    def inside(self, node: n.Node) -> bool:
        """Mark what lies within a statement; True if a mark was put there."""
        before, self.opened = self.opened, False
        for name in ("body", "else_"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                setattr(node, name, self.body(inner))
        for branch in getattr(node, "elif_", None) or []:
            self.opened |= self.inside(branch)
        marked, self.opened = self.opened, before
        if isinstance(node, n.CallBlock) and is_generation(node):
            node.body = [_text(self.marks.make(GENERATED)), *node.body, _text(self.marks.make(NOT_GENERATED))]
        if isinstance(node, n.Macro):
            self._macro(node)
            return False
        if not isinstance(node, n.For):
            self.opened |= marked
        return marked

    def _macro(self, node: n.Macro) -> None:
        names = [arg.name for arg in node.args if arg.name in self.holders.messages]
        if names and self.method.macros:
            given = [self.open(n.Name(name, "load"), node.lineno) for name in names]
            node.body = [_text(self.marks.make(REMEMBER)), *given, *node.body, _text(self.marks.make(BACK))]


def _operands(node: Any) -> list[Any]:
    """Operands of a chain of ``~`` or ``+``, from the left."""
    if isinstance(node, n.Concat):
        return [*_operands(node.nodes[0]), *node.nodes[1:]]
    if isinstance(node, n.Add):
        return [*_operands(node.left), node.right]
    return [node]


def _appends(node: n.Assign) -> bool:
    """Whether an assignment puts something to the end of what its target holds."""
    chain = _operands(node.node)
    names = _names(node.target)
    return len(chain) > 1 and len(names) == 1 and _load(names[0]) == chain[0]


def _names(target: n.Node) -> list[n.Expr]:
    if isinstance(target, n.Tuple):
        return [name for item in target.items for name in _names(item)]
    return [target] if isinstance(target, n.Name | n.NSRef) else []


def _load(name: n.Expr) -> n.Expr:
    if isinstance(name, n.NSRef):
        return n.Getattr(n.Name(name.name, "load"), name.attr, "load")
    return n.Name(name.name, "load")  # type: ignore[attr-defined]


def _label(name: n.Expr) -> str:
    return f"{name.name}.{name.attr}" if isinstance(name, n.NSRef) else str(name.name)  # type: ignore[attr-defined]


class _Holders:
    """Names in a template that may hold a message, or a list of messages.

    Found by following assignments from ``messages`` until nothing is added.
    It only says where a mark is worth trying; the proof is made by rendering.
    """

    def __init__(self, tree: n.Template) -> None:
        self.lists = {"messages"}
        self.messages: set[str] = set()
        macros = {macro.name: macro for macro in tree.find_all(n.Macro)}
        nodes = list(tree.find_all((n.For, n.Assign, n.Call, n.Keyword)))
        before = -1
        while before != len(self.lists) + len(self.messages):
            before = len(self.lists) + len(self.messages)
            for node in nodes:
                self._learn(node, macros)

    def _learn(self, node: Any, macros: dict[str, n.Macro]) -> None:
        if isinstance(node, n.For):
            if self.is_list(node.iter):
                self.messages |= {_label(name) for name in _names(node.target)}
        elif isinstance(node, n.Assign):
            labels = {_label(name) for name in _names(node.target)}
            self.lists |= labels if self.is_list(node.node) else set()
            self.messages |= labels if self.is_message(node.node) else set()
            self._namespace(node)
        elif isinstance(node, n.Call) and isinstance(node.node, n.Name) and node.node.name in macros:
            self._call(node, macros[node.node.name])

    def _namespace(self, node: n.Assign) -> None:
        call = node.node
        if isinstance(call, n.Call) and isinstance(call.node, n.Name) and call.node.name == "namespace":
            for pair in call.kwargs:
                label = f"{node.target.name}.{pair.key}"  # type: ignore[attr-defined]
                self.lists |= {label} if self.is_list(pair.value) else set()
                self.messages |= {label} if self.is_message(pair.value) else set()

    def _call(self, call: n.Call, macro: n.Macro) -> None:
        given = list(zip((arg.name for arg in macro.args), call.args, strict=False))
        given += [(pair.key, pair.value) for pair in call.kwargs]
        for name, value in given:
            self.messages |= {name} if self.is_message(value) else set()
            self.lists |= {name} if self.is_list(value) else set()

    def is_list(self, node: n.Node | None) -> bool:
        if isinstance(node, n.Name):
            return node.name in self.lists
        if isinstance(node, n.Getattr) and isinstance(node.node, n.Name):
            return f"{node.node.name}.{node.attr}" in self.lists
        if isinstance(node, n.Getitem) and isinstance(node.arg, n.Slice):
            return self.is_list(node.node)
        return self._wrapped(node, self.is_list) or _adds(node, self)

    def is_message(self, node: n.Node | None) -> bool:
        if isinstance(node, n.Name):
            return node.name in self.messages
        if isinstance(node, n.Getattr):
            label = f"{node.node.name}.{node.attr}" if isinstance(node.node, n.Name) else ""
            return label in self.messages or (
                self.is_list(node.node) is False
                and isinstance(node.node, n.Name)
                and node.node.name == "loop"
                and node.attr in {"previtem", "nextitem"}
            )
        if isinstance(node, n.Getitem) and not isinstance(node.arg, n.Slice):
            return self.is_list(node.node)
        if isinstance(node, n.Filter) and node.name in {"first", "last"}:
            return self.is_list(node.node)
        return self._wrapped(node, self.is_message)

    def message_in(self, node: n.Node | None) -> n.Expr | None:
        """The message that an expression is, or whose field it is; None if there is none."""
        if self.is_message(node):
            return node  # type: ignore[return-value]
        if isinstance(node, n.Getattr | n.Getitem | n.Filter | n.Test):
            return self.message_in(node.node)
        if isinstance(node, n.Call):
            return self.message_in(node.node) or next(filter(None, map(self.message_in, node.args)), None)
        if isinstance(node, n.CondExpr):
            return self.message_in(node.expr1) or self.message_in(node.expr2)
        if isinstance(node, n.Or | n.And | n.Add):
            return self.message_in(node.left) or self.message_in(node.right)
        return None

    def _wrapped(self, node: Any, test: Any) -> bool:
        if isinstance(node, n.CondExpr):
            return bool(test(node.expr1) or test(node.expr2))
        if isinstance(node, n.Or | n.And):
            return bool(test(node.left) or test(node.right))
        if isinstance(node, n.Filter) and node.name not in {"first", "last", "length", "tojson", "string"}:
            return bool(test(node.node))
        return False


def _adds(node: Any, holders: _Holders) -> bool:
    if isinstance(node, n.Add):
        return holders.is_list(node.left) or holders.is_list(node.right)
    if isinstance(node, n.List):
        return any(holders.is_message(item) for item in node.items)
    return False


def instrument(tree: n.Template, method: Method, marks: Marks) -> n.Template:
    """A marked copy of a template's tree."""
    marked = without_character_loops(tree)
    worker = _Instrument(method, marks, _Holders(tree))
    if method.texts:
        worker.build_up(marked.body)
    else:
        marked.body = worker.body(marked.body)
    return marked


def assigned_messages(tree: n.Template) -> list[str]:
    """Names to which the template assigns what may be a message or a field of one, in order."""
    holders = _Holders(tree)
    found: dict[str, None] = {}
    for node in tree.find_all(n.Assign):
        if holders.message_in(node.node) is not None:
            found |= dict.fromkeys(_label(name) for name in _names(node.target))
    return list(found)
