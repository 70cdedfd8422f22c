"""Loops that look for pictures and the like among a content's parts, where the content is a text.

Some templates (Llama 3.2 Vision's is one) go over the parts of each content
without asking whether it is a text, and so look at each of its characters, in
vain: a character has no ``type``. A loop of which that can be read off its
tree is given nothing in place of a text; it prints the same.
"""

from __future__ import annotations

from typing import Any

import jinja2.nodes as n

from retok_dask.templates.syntax import copied

_TO_TEXT = frozenset({"lower", "upper", "trim", "string"})
"""Filters that make an empty text of what is not there."""


def without_character_loops(tree: n.Template) -> n.Template:
    """A copy of a template in which such loops skip texts."""
    tree = copied(tree)
    for loop in tree.find_all(n.For):
        plain = isinstance(loop.target, n.Name) and loop.test is None and not loop.else_ and not loop.recursive
        if plain and _is_place(loop.iter) and all(_is_idle(node, loop.target.name) for node in loop.body):  # type: ignore[attr-defined]
            is_text = n.Test(copied(loop.iter), "string", [], [], None, None)
            loop.iter = n.CondExpr(is_text, n.List([]), loop.iter)
    return tree


def _is_place(node: n.Node) -> bool:
    """Whether an expression is a name, or a field of one: looking it up again changes nothing."""
    while isinstance(node, n.Getattr) or (isinstance(node, n.Getitem) and isinstance(node.arg, n.Const)):
        node = node.node
    return isinstance(node, n.Name)


def _is_idle(node: n.Node, name: str) -> bool:
    """Whether a statement does nothing where `name` is a character."""
    if isinstance(node, n.If):
        branches = (node, *node.elif_)
        return all(_is_never(branch.test, name) for branch in branches) and all(_is_idle(e, name) for e in node.else_)
    return isinstance(node, n.Output) and all(isinstance(e, n.TemplateData) and not e.data for e in node.nodes)


def _is_never(test: n.Node, name: str) -> bool:
    """Whether a test is never true, and never fails, where `name` is a character."""
    if isinstance(test, n.And):
        return _is_never(test.left, name)  # what follows is not looked at
    if isinstance(test, n.Or):
        return _is_never(test.left, name) and _is_never(test.right, name)
    if isinstance(test, n.Test):
        is_it = test.name == "mapping" and _is_name(test.node, name)
        return is_it or (test.name == "defined" and _is_field(test.node, name))
    if isinstance(test, n.Compare) and len(test.ops) == 1:
        return _is_unequal(test.expr, test.ops[0].op, test.ops[0].expr, name)
    return False


def _is_unequal(left: n.Node, operator: str, right: n.Node, name: str) -> bool:
    if operator == "in" and _is_name(right, name):
        return isinstance(left, n.Const) and isinstance(left.value, str) and len(left.value) > 1
    if operator == "in" and isinstance(right, n.List | n.Tuple):
        wanted = right.items
    elif operator == "eq":
        wanted = [right]  # type: ignore[list-item]
    else:
        return False
    while isinstance(left, n.Filter) and left.name in _TO_TEXT and not (left.args or left.kwargs):
        left = left.node  # type: ignore[assignment]
    return _is_field(left, name) and all(
        isinstance(one, n.Const) and isinstance(one.value, str) and one.value for one in wanted
    )


def _is_name(node: Any, name: str) -> bool:
    return isinstance(node, n.Name) and node.name == name


def _is_field(node: Any, name: str) -> bool:
    """Whether an expression is a field of `name` that no text has."""
    if isinstance(node, n.Getitem) and isinstance(node.arg, n.Const):
        field = node.arg.value
    else:
        field = node.attr if isinstance(node, n.Getattr) else None
    return isinstance(field, str) and not hasattr(str, field) and _is_name(node.node, name)
