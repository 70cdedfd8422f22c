"""What the names of a template hold, as far as its assignments tell."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jinja2.nodes as n


def bound_names(target: n.Node) -> list[Any]:
    """The names that an assignment or a loop binds."""
    return [item for part in target.items for item in bound_names(part)] if isinstance(target, n.Tuple) else [target]


def label_of(node: Any) -> str:
    """A name, or an attribute with a dot before it: attributes of all namespaces are one."""
    if isinstance(node, n.Getattr | n.NSRef):
        return f".{node.attr}"
    return str(node.name) if isinstance(node, n.Name) else ""


def is_namespace(call: Any) -> bool:
    """Whether a call makes a namespace."""
    return isinstance(call.node, n.Name) and call.node.name == "namespace"


def constant_numbers(tree: n.Template) -> dict[str, float]:
    """Names that are assigned once in the template, a number or a product of such."""
    stored = Counter(name.name for name in tree.find_all(n.Name) if name.ctx != "load")
    found: dict[str, float] = {}

    def value(node: Any) -> float | None:
        if isinstance(node, n.Mul):
            left, right = value(node.left), value(node.right)
            return None if left is None or right is None else left * right
        if isinstance(node, n.Const) and isinstance(node.value, int | float):
            return abs(float(node.value))
        return found.get(node.name) if isinstance(node, n.Name) else None

    for node in tree.find_all(n.Assign):
        if isinstance(node.target, n.Name) and stored[node.target.name] == 1:
            number = value(node.node)
            if number is not None:
                found[node.target.name] = number
    return found


def built_lists(tree: n.Template) -> set[str]:
    """What is only ever a list of the template's own, or itself with such a list put to it, and never printed as one."""
    found: dict[str, bool] = {}
    plain: set[int] = set()
    others = {name.name for node in tree.find_all((n.For, n.Macro)) for name in _bound_otherwise(node)}
    others |= {label_of(node.target) for node in tree.find_all(n.AssignBlock)}

    def note(label: str, node: Any) -> None:
        own = isinstance(node, n.Add) and label_of(node.left) == label and isinstance(node.right, n.List)
        if own:
            plain.add(id(node.left))
        found[label] = found.get(label, True) and (own or isinstance(node, n.List))

    for node in tree.find_all(n.Assign):
        note(label_of(node.target), node.node)
        if isinstance(node.node, n.Call) and is_namespace(node.node):
            for pair in node.node.kwargs:
                note(f".{pair.key}", pair.value)
    nodes: list[Any] = list(tree.find_all((n.Filter, n.For, n.If, n.CondExpr, n.Compare, n.Name, n.Getattr)))
    plain |= {
        id(node.node) for node in nodes if isinstance(node, n.Filter) and node.name in {"join", "length", "count"}
    }
    plain |= {id(node.iter) for node in nodes if isinstance(node, n.For)}
    plain |= {id(node.test) for node in nodes if isinstance(node, n.If | n.CondExpr)}
    plain |= {
        id(part) for node in nodes if isinstance(node, n.Compare) for part in (node.expr, *(op.expr for op in node.ops))
    }
    uses = [node for node in nodes if isinstance(node, n.Name | n.Getattr) and node.ctx == "load"]
    others |= {label_of(node) for node in uses if id(node) not in plain}
    return {label for label, built in found.items() if built and label not in others}


def _bound_otherwise(node: Any) -> list[Any]:
    return bound_names(node.target) if isinstance(node, n.For) else node.args


def namespace_holders(tree: n.Template) -> set[str] | None:
    """Names that may be a namespace; None where one may be anywhere, since a template does more with it than usual."""
    macros = {macro.name: macro for macro in tree.find_all(n.Macro)}
    calls = [call for call in tree.find_all(n.Call) if getattr(call.node, "name", "") in macros]
    made = [node for node in tree.find_all(n.Assign) if isinstance(node.node, n.Call) and is_namespace(node.node)]
    if len(made) < sum(map(is_namespace, tree.find_all(n.Call))):
        return None
    names = {label_of(node.target) for node in made}
    usual = {id(node.node) for node in tree.find_all(n.Getattr)}
    before = -1
    while before != len(names):
        before = len(names)
        for call in calls:
            given = list(zip((arg.name for arg in macros[call.node.name].args), call.args, strict=False))  # type: ignore[attr-defined]
            for name, value in [*given, *((pair.key, pair.value) for pair in call.kwargs)]:
                if isinstance(value, n.Name) and value.name in names:
                    names.add(name)
                    usual.add(id(value))
    used = [name for name in tree.find_all(n.Name) if name.ctx == "load" and name.name in names]
    return names if all(id(name) in usual for name in used) else None
