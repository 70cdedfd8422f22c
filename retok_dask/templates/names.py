"""What the names of a template hold, as far as its assignments tell."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


def bound_names(target: n.Node) -> list[Any]:
    """The names that an assignment or a loop binds."""
    return [item for part in target.items for item in bound_names(part)] if isinstance(target, n.Tuple) else [target]


def label_of(node: Any) -> str:
    """A name, or an attribute with a dot before it: attributes of all namespaces are one."""
    if isinstance(node, n.Getattr | n.NSRef):
        return f".{node.attr}"
    if isinstance(node, n.Keyword):  # of a namespace
        return f".{node.key}"
    return str(node.name) if isinstance(node, n.Name) else ""


def is_namespace(call: Any) -> bool:
    """Whether a call makes a namespace."""
    return isinstance(call.node, n.Name) and call.node.name == "namespace"


def constant(node: Any) -> float | None:
    """A number that stands in the template, without its sign."""
    if not isinstance(node, n.Const) or not isinstance(node.value, int | float):
        return None
    return abs(float(node.value)) if abs(node.value) < 1 << 64 else inf


def constant_numbers(tree: n.Template) -> dict[str, float]:
    """Names that are assigned once in the template, and in any case: a number or a product of such."""
    stored = Counter(name.name for name in tree.find_all(n.Name) if name.ctx != "load")
    found: dict[str, float] = {}

    def value(node: Any) -> float | None:
        if isinstance(node, n.Mul):
            left, right = value(node.left), value(node.right)
            return None if left is None or right is None else left * right
        return found.get(node.name) if isinstance(node, n.Name) else constant(node)

    for node in tree.body:
        if isinstance(node, n.Assign) and isinstance(node.target, n.Name) and stored[node.target.name] == 1:
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


def carried_names(nodes: Iterable[Any]) -> set[str]:
    """What is assigned in a loop, and what minijinja still has when the loop goes round."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, n.Assign | n.AssignBlock):
            found |= {name.name for name in bound_names(node.target) if isinstance(name, n.Name)}
        inner: list[Any] = []
        if isinstance(node, n.If):
            inner = [*node.body, *node.elif_, *node.else_]
        elif isinstance(node, n.AssignBlock | n.FilterBlock):
            inner = node.body
        elif isinstance(node, n.For):
            inner = node.else_
        found |= carried_names(inner)
    return found


def stored_attributes(nodes: Iterable[Any]) -> set[str]:
    """Attributes of namespaces, by the namespace's name, that are assigned somewhere within."""
    found: set[str] = set()
    for node in nodes:
        for part in (node, *node.find_all((n.NSRef, n.Assign))):
            if isinstance(part, n.NSRef):
                found.add(f"{part.name}.{part.attr}")
            elif isinstance(part, n.Assign) and isinstance(part.node, n.Call) and is_namespace(part.node):
                found |= {f"{label_of(part.target)}.{pair.key}" for pair in part.node.kwargs}
    return found


def namespaces(tree: n.Template) -> set[str]:
    """Names that are never anything but a namespace."""
    stored = Counter(name.name for name in tree.find_all(n.Name) if name.ctx != "load")
    made = Counter(
        label_of(node.target)
        for node in tree.find_all(n.Assign)
        if isinstance(node.target, n.Name) and isinstance(node.node, n.Call) and is_namespace(node.node)
    )
    return {name for name, number in made.items() if stored[name] == number}


def separated(node: Any, names: Mapping[str, float]) -> float:
    """How many characters a text has at least for each of the parts that it is split into, the first aside."""
    if isinstance(node, n.Name):
        return names.get(node.name, 1.0)
    if isinstance(node, n.Call) and isinstance(node.node, n.Getattr) and node.node.attr == "split" and node.args:
        between = node.args[0]
        if isinstance(between, n.Const) and isinstance(between.value, str):
            return float(max(1, len(between.value)))
    return 1.0


def separated_names(tree: n.Template) -> dict[str, float]:
    """The same of names that are nothing but split texts."""
    stored = Counter(name.name for name in tree.find_all(n.Name) if name.ctx != "load")
    found: dict[str, list[float]] = {}
    for node in tree.find_all(n.Assign):
        found.setdefault(label_of(node.target), []).append(separated(node.node, {}))
    return {name: min(lengths) for name, lengths in found.items() if stored[name] == len(lengths)}


def local_namespaces(tree: n.Template) -> set[str]:
    """Namespaces whose attributes are as good as variables: each made and used in one place, and handed to nobody."""
    used: Counter[tuple[str, int]] = Counter()
    made: Counter[tuple[str, int]] = Counter()
    within = {id(node.node) for node in tree.find_all(n.Getattr)}
    names = namespaces(tree)
    names -= {name.name for name in tree.find_all(n.Name) if name.ctx == "load" and id(name) not in within}
    todo: list[tuple[n.Node, int]] = [(tree, 0)]
    while todo:
        node, place = todo.pop()
        if isinstance(node, n.Name | n.NSRef):
            used[node.name, place] += 1
        if isinstance(node, n.Assign) and isinstance(node.node, n.Call) and is_namespace(node.node):
            made[label_of(node.target), place] += 1
        inner = id(node) if isinstance(node, n.Macro) else place
        todo += [(child, inner) for child in node.iter_child_nodes()]
    return {name for name in names if all(made[key] == 1 for key in used if key[0] == name)}


def recursive_macros(tree: n.Template) -> set[str]:
    """Names of macros that call themselves, or others that do."""
    called: dict[str, set[str]] = {}
    for macro in tree.find_all(n.Macro):
        within = {call.node.name for call in macro.find_all(n.Call) if isinstance(call.node, n.Name)}
        called[macro.name] = called.get(macro.name, set()) | within
    return {name for name in called if _calls_itself(name, called)}


def _calls_itself(name: str, called: Mapping[str, set[str]]) -> bool:
    seen: set[str] = set()
    todo = [name]
    while todo:
        for other in called[todo.pop()]:
            if other == name:
                return True
            if other in called and other not in seen:
                seen.add(other)
                todo.append(other)
    return False


def misused_names(tree: n.Template, reserved: Collection[str]) -> set[str]:
    """Names with a meaning that a template gives another one."""
    bound = {name.name for name in tree.find_all(n.Name) if name.ctx != "load"}
    return (bound | {macro.name for macro in tree.find_all(n.Macro)}) & set(reserved)


def key_of(node: Any, assigned: Collection[str]) -> str:
    """Under what name something is found in an argument or an element, filters aside; an empty text where it is not.

    Nor is it where `assigned` names hold what is looked at: they may be a part of a part.
    """
    while isinstance(node, n.Filter):
        node = node.node
    within = getattr(node, "node", None)
    if not isinstance(within, n.Name) or within.name in assigned:
        return ""
    if isinstance(node, n.Getattr):
        return str(node.attr)
    constant_key = isinstance(node, n.Getitem) and isinstance(node.arg, n.Const) and isinstance(node.arg.value, str)
    return node.arg.value if constant_key else ""


def set_names(tree: n.Template) -> set[str]:
    """Names that are ever assigned by a statement of their own."""
    nodes = [*tree.find_all((n.Assign, n.AssignBlock)), *tree.find_all(n.With)]
    targets = [target for node in nodes for target in (node.targets if isinstance(node, n.With) else [node.target])]  # type: ignore[attr-defined]
    return {name.name for target in targets for name in bound_names(target) if isinstance(name, n.Name)}


def tested(node: n.If, assigned: set[str], stored: set[str]) -> tuple[str, list[str]]:
    """What an `if` compares with constant texts, and with which; none where it does anything else.

    Of several such that stand beside each other, and compare the same, one has its
    way, unless what is compared is among what is assigned or stored there.
    """
    compared, values = set(), []
    for branch in (node, *node.elif_):
        test = branch.test
        if not isinstance(test, n.Compare) or [operand.op for operand in test.ops] != ["eq"] or node.else_:
            return "", []
        operand = test.ops[0].expr
        if not isinstance(operand, n.Const) or not isinstance(operand.value, str):
            return "", []
        compared.add(repr(test.expr))
        values.append(operand.value)
    within = [node.test.expr, *node.test.expr.find_all(n.Node)]  # type: ignore[attr-defined]
    changed = {part.attr for part in within if isinstance(part, n.Getattr)} & {
        label.rpartition(".")[2] for label in stored
    }
    changed |= {part.name for part in within if isinstance(part, n.Name)} & assigned
    fixed = all(isinstance(part, n.Name | n.Getattr | n.Getitem | n.Filter | n.Const) for part in within)
    return (compared.pop(), values) if len(compared) == 1 and fixed and not changed else ("", [])
