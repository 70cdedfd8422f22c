"""Whether a template can make giants out of small texts.

minijinja runs fast, but cannot be stopped in the middle of an operation, and a
process that runs out of memory in it is gone. So it is given only templates
that cannot multiply text. Found without running them: each statement is
walked through once, and for each variable it is known how many times a text
of the input may be in it (:mod:`~retok_dask.templates.sizes`). What goes round
in a loop (an attribute of a namespace, an argument of a macro that calls
itself) must not come back larger than by what is put to it. Other templates
run in the guarded Jinja, which watches each operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

from retok_dask.templates.names import bound_names, is_namespace
from retok_dask.templates.sizes import (
    INPUT,
    LOOP,
    NAMESPACE,
    OWN,
    Growing,
    Size,
    Sizes,
    larger,
    plus,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_GROWTH = 10_000
"""How many times a text may enter another."""

MOST_OWN = 1e7
"""How many characters of the template's own a text may have."""


def growing(tree: n.Template) -> str:
    """What in a template can multiply text; an empty text if nothing can."""
    try:
        flow = _Flow(tree)
        flow.body(tree.body, flow.top)
        flow.check()
    except Growing as found:
        return str(found)
    except RecursionError:
        return "its depth"
    return ""


class _Flow(Sizes):
    """Walks through a template, statement by statement.

    Attributes:
        top: sizes of the variables of the template's outermost scope, as of now.
        round: what may enter a size that goes round: an attribute of a
            namespace, an argument of a macro that calls itself.
        ends: every size that some variable or text has, with what has it.
    """

    def __init__(self, tree: n.Template) -> None:
        super().__init__(tree)
        self.top: dict[str, Size] = {}
        self.round: dict[str, list[Size]] = {
            NAMESPACE: [times(plus(*({f".{name}": 1.0} for name in self._attributes)), 2.0)]
        }
        self.ends: list[tuple[str, Size]] = []
        macros = {macro.name: macro for macro in tree.find_all(n.Macro)}
        self._recursive = {name for name in macros if _calls_itself(name, macros)}
        self._macros: dict[str, list[tuple[n.Macro, dict[str, Size]]]] = {}
        self._running: dict[str, dict[str, str]] = {}
        self._calls = 0
        self._parts: set[str] = set()

    # statements

    def body(self, nodes: Iterable[Any], env: dict[str, Size]) -> Size:
        """What statements print; the variables in `env` are changed as they go."""
        printed: Size = {}
        for node in nodes:
            self.spend()
            printed = plus(printed, self._statement(node, env))
        return printed

    def _statement(self, node: Any, env: dict[str, Size]) -> Size:
        if isinstance(node, n.Output):
            sizes = [self.size(child, env) for child in node.nodes if not isinstance(child, n.Const | n.TemplateData)]
            self.ends += [("what is printed", size) for size in sizes]
            return plus(*sizes)
        if isinstance(node, n.Assign):
            self._assign(node.target, node.node, self.given(node.target, node.node, env), env)
        elif isinstance(node, n.AssignBlock):
            inside = self.body(node.body, dict(env))
            self._assign(node.target, None, self.filtered(node.filter, inside, env), env)
        elif isinstance(node, n.If):
            return self._branches(node, env)
        elif isinstance(node, n.For):
            return self._loop(node, env)
        elif isinstance(node, n.Macro):
            self._macros.setdefault(node.name, []).append((node, env))
        elif isinstance(node, n.CallBlock):
            caller = self.body(node.body, dict(env))
            return self.size(node.call, {**env, "caller": caller})
        elif isinstance(node, n.FilterBlock):
            return self.filtered(node.filter, self.body(node.body, dict(env)), env)
        elif isinstance(node, n.With):
            given = [self.size(value, env) for value in node.values]
            inner = dict(env)
            for target, size in zip(node.targets, given, strict=True):
                self._assign(target, None, size, inner)
            return self.body(node.body, inner)
        elif isinstance(node, n.Block | n.Scope | n.ScopedEvalContextModifier):
            return self.body(node.body, dict(env))
        elif isinstance(node, n.ExprStmt):
            self.size(node.node, env)
        elif not isinstance(node, n.Continue | n.Break):
            msg = f"the statement {type(node).__name__.lower()}"
            raise Growing(msg)
        return {}

    def _assign(self, target: Any, value: Any, size: Size, env: dict[str, Size]) -> None:
        for name in bound_names(target):
            if isinstance(name, n.NSRef):
                self.round.setdefault(f".{name.attr}", []).append(size)
            else:
                env[name.name] = size
                if size != {NAMESPACE: 1.0}:
                    self.ends.append((f"the assignments to {name.name}", size))
        if isinstance(value, n.Call) and is_namespace(value):
            for pair in value.kwargs:
                self.round.setdefault(f".{pair.key}", []).append(self.size(pair.value, env))

    def _branches(self, node: n.If, env: dict[str, Size]) -> Size:
        """One of them is taken: the largest of each."""
        self.spend(len(env) * (1 + len(node.elif_)) // 8)
        printed: Size = {}
        after = [dict(env)] if not node.else_ else []
        for branch in (node, *node.elif_):
            self.size(branch.test, env)
            inner = dict(env)
            printed = larger(printed, self.body(branch.body, inner))
            after.append(inner)
        if node.else_:
            inner = dict(env)
            printed = larger(printed, self.body(node.else_, inner))
            after.append(inner)
        for inner in after:
            for name, size in inner.items():
                env[name] = larger(env.get(name, {}), size)
        return printed

    def _loop(self, node: n.For, env: dict[str, Size]) -> Size:
        """Parts of what is gone through are printed once in all, everything else again and again."""
        if node.recursive:
            msg = "a recursive loop"
            raise Growing(msg)
        self.spend(len(env) // 8)
        whole, again = self.size(node.iter, env), _repetitions(node.iter)
        part = f"loop {len(self._parts)}"
        self._parts.add(part)
        self.round[part] = [whole]
        inner = dict(env) | {"loop": {part: 1.0}}
        for name in bound_names(node.target):
            inner[name.name] = {part: 1.0}
        if node.test is not None:
            self.size(node.test, inner)
        printed = self.body(node.body, inner)
        once = times(whole, printed.pop(part, 0.0))
        return plus(once, times(printed, again), self.body(node.else_, dict(env)))

    # macros

    def macro(self, call: n.Call, env: dict[str, Size]) -> Size:
        """What a call of one of the template's macros prints."""
        given = [self.size(value, env) for value in call.args]
        named = {pair.key: self.size(pair.value, env) for pair in call.kwargs}
        rest = plus(*(self.size(value, env) for value in (call.dyn_args, call.dyn_kwargs) if value is not None))
        printed: Size = {}
        for macro, scope in self._macros.get(call.node.name, ()):  # type: ignore[attr-defined]
            bound = self._arguments(macro, given, named, rest, env)
            if "caller" in env:
                bound["caller"] = env["caller"]
            printed = larger(printed, self._run(macro, {**self.top, **scope, **bound}, bound))
        return printed

    def _arguments(
        self, macro: n.Macro, given: Sequence[Size], named: dict[str, Size], rest: Size, env: dict[str, Size]
    ) -> dict[str, Size]:
        names = [argument.name for argument in macro.args]
        bound: dict[str, Size] = {}
        for argument, default in zip(names[len(names) - len(macro.defaults) :], macro.defaults, strict=True):
            bound[argument] = self.size(default, env)
        for argument, size in [*zip(names, given, strict=False), *named.items()]:
            bound[argument] = plus(size, rest)
        for argument in names:
            bound.setdefault(argument, rest)
        return bound

    def _run(self, macro: n.Macro, env: dict[str, Size], bound: dict[str, Size]) -> Size:
        if macro.name not in self._recursive:
            return self.body(macro.body, env)
        labels = self._running.get(macro.name)
        if labels is not None:
            for argument, label in labels.items():
                self.round[label].append(bound.get(argument, {}))
            return {}
        self._calls += 1
        labels = {argument: f"{macro.name}({argument}) {self._calls}" for argument in bound}
        env |= {argument: {label: 1.0} for argument, label in labels.items()}
        self.round |= {label: [] for label in labels.values()}
        self._running[macro.name] = labels
        printed = times(self.body(macro.body, env), LOOP)
        del self._running[macro.name]
        for argument, label in labels.items():
            # where it hands itself no more than parts of an argument, all it prints of that is the argument's
            if all(self._is_part(size, label) for size in self.round[label]):
                printed = plus(times(bound[argument], printed.pop(label, 0.0)), printed)
            self.round[label].append(bound[argument])
        return printed

    def _is_part(self, size: Size, label: str) -> bool:
        """Whether something is a part of what has a label, or of nothing."""
        return sum(size.values()) <= 1 and all(
            source == label or (source in self._parts and self._is_part(self.round[source][0], label))
            for source in size
        )

    # what goes round

    def check(self) -> None:
        """Refuse what is too large.

        Raises:
            Growing: names it.
        """
        for source, most in ((INPUT, MOST_GROWTH), (OWN, MOST_OWN)):
            weights = {INPUT: 0.0, OWN: 0.0, source: 1.0}
            for label in self.round:
                if label != NAMESPACE and self._weight(label, weights, ()) > most:
                    msg = f"the assignments to {label.lstrip('.')}"
                    raise Growing(msg)
            for what, size in self.ends:
                if sum(number * self._weight(label, weights, ()) for label, number in size.items()) > most:
                    raise Growing(what)

    def _weight(self, label: str, weights: dict[str, float], path: tuple[str, ...]) -> float:
        """How often a text may enter a size that goes round; without bound if it comes back larger than it was."""
        if label in weights:
            return weights[label]
        path = (*path, label)
        grown = 0.0
        for size in self.round.get(label, ()):
            own = {other: number for other, number in size.items() if self._reaches(other, path, set())}
            if sum(own.values()) > 1:
                return float("inf")
            added = sum(n * self._weight(other, weights, path) for other, n in size.items() if other not in own)
            grown = max(grown, added * (LOOP if own else 1))
        weights[label] = grown
        return grown

    def _reaches(self, label: str, goals: tuple[str, ...], seen: set[str]) -> bool:
        if label in goals:
            return True
        if label in seen:
            return False
        seen.add(label)
        self.spend()
        return any(self._reaches(other, goals, seen) for size in self.round.get(label, ()) for other in size)


def _repetitions(iterated: Any) -> float:
    """How often a loop is counted."""
    if isinstance(iterated, n.Call) and getattr(iterated.node, "name", "") == "range":
        return max((float(arg.value) for arg in iterated.args if isinstance(arg, n.Const)), default=LOOP * LOOP)
    return LOOP


def _calls_itself(name: str, macros: dict[str, n.Macro]) -> bool:
    seen: set[str] = set()
    todo = [name]
    while todo:
        for call in macros[todo.pop()].find_all(n.Call):
            called = getattr(call.node, "name", "")
            if called == name:
                return True
            if called in macros and called not in seen:
                seen.add(called)
                todo.append(called)
    return False
