"""Whether a template can make giants out of small texts.

minijinja runs fast, but cannot be stopped in the middle of an operation, and a
process that runs out of memory in it is gone. So it is given only templates
that cannot multiply text: no repetition, no padding, no replacing by what is
not constant, and no assignment that puts a text twice into what it becomes.
Other templates run in the guarded Jinja, which watches each operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_GROWTH = 10_000
"""How many times a text may enter another through assignments."""

_PADDING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "wordwrap", "lipsum", "batch", "slice"}
)


def growing(tree: n.Template) -> str:
    """What in a template can multiply text; an empty text if nothing can."""
    return _operations(tree) or _assignments(tree)


def _operations(tree: n.Template) -> str:
    for node in tree.find_all((n.Mul, n.Pow, n.Mod)):
        if isinstance(node, n.Pow) or (isinstance(node, n.Mod) and not _numeric(node.right)):
            return "the operator ** or %"
        if isinstance(node, n.Mul) and not (_numeric(node.left) and _numeric(node.right)):
            return "a repetition by *"
    for filtered in tree.find_all(n.Filter):
        if filtered.name in _PADDING or (filtered.name == "indent" and not _small(filtered)):
            return f"the filter {filtered.name}"
        if filtered.name in ("replace", "join") and not all(isinstance(arg, n.Const) for arg in filtered.args):
            return f"the filter {filtered.name} with what is not constant"
    for call in tree.find_all(n.Call):
        name = call.node.attr if isinstance(call.node, n.Getattr) else getattr(call.node, "name", "")
        if name in _PADDING:
            return f"the method {name}"
        if name == "replace" and not all(isinstance(arg, n.Const) for arg in call.args):
            return "the method replace with what is not constant"
        if name == "join" and isinstance(call.node, n.Getattr) and not isinstance(call.node.node, n.Const):
            return "the method join with what is not constant"
        if name == "range" and any(isinstance(arg, n.Const) and arg.value > MOST_GROWTH for arg in call.args):
            return "a long range"
    return ""


def _small(node: n.Filter) -> bool:
    return all(
        not isinstance(arg, n.Const) or not isinstance(arg.value, int) or arg.value < 100 for arg in node.args
    ) and all(isinstance(arg, n.Const) for arg in node.args)


def _numeric(node: Any) -> bool:
    """Whether an expression is a number for certain."""
    if isinstance(node, n.Const):
        return isinstance(node.value, int | float)
    if isinstance(node, n.Getattr):
        return (
            isinstance(node.node, n.Name)
            and node.node.name == "loop"
            and node.attr.startswith(("index", "revindex", "length"))
        )
    if isinstance(node, n.Filter):
        return node.name in {"length", "int", "count", "abs", "float", "round"}
    if isinstance(node, n.Sub | n.Div | n.FloorDiv | n.Neg):
        return True
    if isinstance(node, n.Add | n.Mul | n.Mod):
        return _numeric(node.left) and _numeric(node.right)
    return False


def _assignments(tree: n.Template) -> str:
    """A name whose text grows by more than what is put to it, from assignments and macro calls."""
    uses: dict[str, list[list[str]]] = {}
    for name, node in _bindings(tree):
        uses.setdefault(name, []).append(list(_names(node)))
    weights: dict[str, float] = {}
    for name in uses:
        grown = _weight(name, uses, weights, ())
        if grown > MOST_GROWTH:
            return f"the assignments to {name}"
    return ""


def _weight(name: str, uses: dict[str, list[list[str]]], weights: dict[str, float], path: tuple[str, ...]) -> float:
    """How often a text may enter a name; without bound if the name enters itself more than once."""
    if name in weights:
        return weights[name]
    if name not in uses or name in path:
        return 1.0
    path = (*path, name)
    grown = 1.0
    for used in uses[name]:
        own = [other for other in used if other in path or _reaches(other, path, uses, set())]
        if len(own) > 1:
            return float("inf")
        grown = max(grown, sum(_weight(other, uses, weights, path) for other in used))
    weights[name] = grown
    return grown


def _reaches(name: str, goals: tuple[str, ...], uses: dict[str, list[list[str]]], seen: set[str]) -> bool:
    if name in seen:
        return False
    seen.add(name)
    return any(other in goals or _reaches(other, goals, uses, seen) for used in uses.get(name, ()) for other in used)


def _bindings(tree: n.Template) -> Iterator[tuple[str, n.Node]]:
    macros = {macro.name: macro for macro in tree.find_all(n.Macro)}
    for node in tree.find_all(n.Assign):
        if isinstance(node.target, n.Name | n.NSRef):
            yield _label(node.target), node.node
    for loop in tree.find_all(n.For):
        for name in loop.target.find_all(n.Name) if isinstance(loop.target, n.Tuple) else [loop.target]:
            yield _label(name), loop.iter
    for block in tree.find_all(n.AssignBlock):
        if isinstance(block.target, n.Name | n.NSRef):
            for output in block.find_all(n.Output):
                yield _label(block.target), output
    for call in tree.find_all(n.Call):
        macro = macros.get(getattr(call.node, "name", ""))
        if macro is not None:
            for argument, value in zip(macro.args, call.args, strict=False):
                yield argument.name, value


def _label(node: Any) -> str:
    return f"{node.name}.{node.attr}" if isinstance(node, n.NSRef) else str(node.name)


def _names(node: Any) -> Iterator[str]:
    """Names whose text may become part of an expression's text."""
    if isinstance(node, n.Name):
        yield node.name
    elif isinstance(node, n.Getattr) and isinstance(node.node, n.Name):
        yield f"{node.node.name}.{node.attr}"
    elif isinstance(node, n.CondExpr):
        yield from max((list(_names(node.expr1)), list(_names(node.expr2) if node.expr2 else ())), key=len)
    elif isinstance(node, n.Or | n.And):
        yield from max((list(_names(node.left)), list(_names(node.right))), key=len)
    elif isinstance(node, n.Getitem):
        yield from _names(node.node)
    elif isinstance(node, n.Compare | n.Test | n.Not):
        return
    else:
        for child in node.iter_child_nodes():
            yield from _names(child)
