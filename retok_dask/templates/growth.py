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

from retok_dask.templates.lengths import Growing, lists, pairs
from retok_dask.templates.names import (
    bound_names,
    carried_names,
    key_of,
    label_of,
    misused_names,
    namespaces,
    recursive_macros,
    separated,
    separated_names,
    set_names,
    stored_attributes,
    tested,
)
from retok_dask.templates.rounds import (
    LOOP,
    NAMESPACE,
    Loop,
    Loops,
    Rounds,
    Size,
    larger,
    plus,
    times,
    weigh,
)
from retok_dask.templates.shares import Shares
from retok_dask.templates.sizes import SPLIT, Sizes
from retok_dask.templates.syntax import is_generation
from retok_dask.templates.vocabulary import RESERVED

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_GROWTH = 10_000
"""How many times a text may enter another."""

MOST_OWN = 2e7
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
        ends: every size that some variable or text has, with what has it.
    """

    def __init__(self, tree: n.Template) -> None:
        super().__init__(tree)
        self.top: dict[str, Size] = {}
        every = times(plus(*({f".{name}": 1.0} for name in self._attributes)), 2.0)
        self.round |= {f".{name}": [] for name in self._attributes} | {NAMESPACE: [(every, every)]}
        self.ends: list[tuple[str, Size]] = []
        self._recursive = recursive_macros(tree)
        self._macros: dict[str, list[tuple[n.Macro, dict[str, Size]]]] = {}
        self._running: dict[str, tuple[str, dict[str, str]]] = {}
        self._wholes: dict[str, Size] = {}
        self._loops = Loops(self.round)
        self._namespaces = namespaces(tree)
        self._separated = separated_names(tree)
        self._idle: set[str] = set()
        self._changed: dict[int, tuple[set[str], set[str]]] = {}
        self._tested: dict[int, tuple[str, list[str]]] = {}
        self._shrinking: dict[str, set[str]] = {}
        self._shares = Shares(self.round)
        self._set = set_names(tree)
        for name in misused_names(tree, RESERVED):
            msg = f"another meaning of {name}"
            raise Growing(msg)

    # statements

    def body(self, nodes: Sequence[Any], env: dict[str, Size]) -> Size:
        """What statements print; the variables in `env` are changed as they go."""
        printed: Size = {}
        cases: dict[str, dict[str, Size]] = {}
        for node in nodes:
            self.spend()
            if not isinstance(node, n.If):
                printed = plus(printed, self._statement(node, env))
                continue
            if id(node) not in self._tested:
                self._tested[id(node)] = tested(node, *self._changes(nodes))
            what, values = self._tested[id(node)]
            sizes = self._branches(node, env)
            if not values:
                printed = plus(printed, self._shares.either(sizes))
            for value, size in zip(values, sizes, strict=False):
                known = cases.setdefault(what, {})
                known[value] = plus(known.get(value, {}), size)
        return plus(printed, *(self._shares.either(sizes.values()) for sizes in cases.values()))

    def _changes(self, nodes: Sequence[Any]) -> tuple[set[str], set[str]]:
        """Variables and attributes that statements assign; looked for once."""
        if id(nodes) not in self._changed:
            self._changed[id(nodes)] = carried_names(nodes), stored_attributes(nodes)
        return self._changed[id(nodes)]

    def _statement(self, node: Any, env: dict[str, Size]) -> Size:
        if isinstance(node, n.Output):
            sizes = [(child, self.size(child, env)) for child in node.nodes]
            self.ends += [("what is printed", size) for child, size in sizes if not isinstance(child, n.TemplateData)]
            return plus(*(size for _, size in sizes))
        if isinstance(node, n.Assign):
            name = label_of(node.target)
            if name in self.local:
                for pair in node.node.kwargs:  # type: ignore[attr-defined]
                    self.put(name, pair.key, self.given(pair, pair.value, env), env)
            else:
                self._assign(node.target, self.given(node.target, node.node, env), env)
                if name in env and lists(node.node):
                    env[f"{name}[]"] = self.pieces(node.node, env)
        elif isinstance(node, n.AssignBlock):
            # what is assigned within is assigned for what follows, in minijinja
            inside = self.body(node.body, env)
            self._assign(node.target, self.filtered(node.filter, inside, env), env)
        elif isinstance(node, n.For):
            return self._loop(node, env)
        elif isinstance(node, n.Macro):
            self._macros.setdefault(node.name, []).append((node, env))
        elif is_generation(node):
            return self._inside(node.body, env, dict(env))
        elif isinstance(node, n.FilterBlock):
            return self.filtered(node.filter, self.body(node.body, env), env)
        elif isinstance(node, n.With):
            inner = dict(env)
            for target, value in zip(node.targets, node.values, strict=True):
                self._assign(target, larger(self.size(value, env), self.size(value, inner)), inner)
            return self._inside(node.body, env, inner)
        elif isinstance(node, n.Scope):
            return self._inside(node.body, env, dict(env))
        elif isinstance(node, n.ExprStmt):
            self.size(node.node, env)
        elif not isinstance(node, n.Continue | n.Break):
            msg = f"the statement {type(node).__name__.lower()}"
            raise Growing(msg)
        return {}

    def _assign(self, target: Any, size: Size, env: dict[str, Size]) -> None:
        for name in bound_names(target):
            if isinstance(name, n.NSRef):
                self.put(name.name, name.attr, size, env)
            else:
                env[name.name] = size
                env.pop(f"{name.name}[]", None)
                if size != {NAMESPACE: 1.0}:
                    self.ends.append((f"the assignments to {name.name}", size))

    def put(self, name: str, attribute: str, size: Size, env: dict[str, Size]) -> None:
        """See :class:`Sizes`."""
        if name in self.local:
            env[f"{name}.{attribute}"] = size
            self.ends.append((f"the assignments to {attribute}", size))
        else:
            self.round.setdefault(f".{attribute}", []).append((size, self._loops.all_rounds(size)))

    def _inside(self, nodes: Sequence[Any], env: dict[str, Size], inner: dict[str, Size]) -> Size:
        """What is printed in a scope of its own, from which attributes of namespaces come back."""
        printed = self.body(nodes, inner)
        env |= {name: size for name, size in inner.items() if "." in name}
        return printed

    def _branches(self, node: n.If, env: dict[str, Size]) -> list[Size]:
        """What each branch prints; of the variables, the largest of each."""
        self.spend(len(env) * (1 + len(node.elif_)) // 8)
        printed = []
        after = [dict(env)] if not node.else_ else []
        for branch in (node, *node.elif_):
            self.size(branch.test, env)
            after.append(dict(env))
            printed.append(self.body(branch.body, after[-1]))
        if node.else_:
            after.append(dict(env))
            printed.append(self.body(node.else_, after[-1]))
        _merge(env, after)
        return printed

    def _loop(self, node: n.For, env: dict[str, Size]) -> Size:
        """Parts of what is gone through are printed once in all, everything else again and again."""
        if node.recursive:
            msg = "a recursive loop"
            raise Growing(msg)
        self.spend(len(env) // 8)
        whole, again = self.pieces(node.iter, env), self.repetitions(node.iter, env)
        if pairs(node.iter) and not isinstance(node.target, n.Tuple):
            whole = times(whole, SPLIT)
        part = self._label("loop", whole)
        self._wholes[part] = whole
        assigned, stored = self._changes(node.body)
        names = assigned - self._namespaces
        names |= {label for label in stored if label.partition(".")[0] in self.local}
        carried = {name: self._label(name, env.get(name, {})) for name in names}
        self._idle.update(carried.values())
        bound = {"loop": {part: 1.0}} | {name: {label: 1.0} for name, label in carried.items()}
        inner = _bound(env, bound | {name.name: {part: 1.0} for name in bound_names(node.target)})
        if node.test is not None:
            self.size(node.test, inner)
        loop = Loop({part: whole}, again, separated=separated(node.iter, self._separated))
        self._loops.around.append(loop)
        printed = self.body(node.body, inner)
        self._loops.around.pop()
        for name, label in carried.items():
            self.spend(len(inner[name]) // 4)
            after = self._carried(label, inner[name], loop)
            if "." in name:
                env[name] = plus(env.get(name, {}), after) if after is not None else {label: 1.0}
        outer = next((label for label in whole if self._loops.is_part(label)), "")
        shares = self._shares.of_loop(part, outer, key_of(node.iter, self._set), printed)
        return plus(shares, self._loops.rounds(printed, loop), self._otherwise(node, env))

    def _carried(self, label: str, size: Size, loop: Loop) -> Size | None:
        """What all rounds of a loop put to what goes round in it; None if it comes back larger than it was."""
        added = {other: number for other, number in size.items() if other != label}
        back = size.get(label, 0.0)
        total = self._loops.rounds(added, loop)
        self.round[label].append((size, total))
        if back > 1:
            return None
        return total if back else self._loops.rounds(added, loop._replace(again=1.0))

    def _otherwise(self, node: n.For, env: dict[str, Size]) -> Size:
        """What a loop prints where it has nothing to go through."""
        after = dict(env)
        printed = self.body(node.else_, after)
        _merge(env, [dict(env), after])
        return printed

    def _label(self, name: str, size: Size) -> str:
        """A new label for what goes round, with the first size of it."""
        label = f"{name} {len(self.round)}"
        self.round[label] = [(size, size)]
        return label

    # macros

    def macro(self, call: n.Call, env: dict[str, Size]) -> Size:
        """What a call of one of the template's macros prints."""
        given = [self.size(value, env) for value in call.args]
        named = {pair.key: self.size(pair.value, env) for pair in call.kwargs}
        rest = plus(*(self.size(value, env) for value in (call.dyn_args, call.dyn_kwargs) if value is not None))
        printed: Size = {}
        name = call.node.name  # type: ignore[attr-defined]
        if name not in self._macros:
            msg = f"the call of {name} before it is there"
            raise Growing(msg)
        for macro, scope in self._macros[name]:
            self.spend(len(self.top) // 8 + (len(scope) // 2 if scope is not self.top else 0))
            known = (
                self.top
                if scope is self.top
                else self.top | {k: larger(self.top.get(k, {}), v) for k, v in scope.items()}
            )
            bound = self._arguments(macro, given, named, rest, known)
            printed = larger(printed, self._run(call, macro, _bound(known, bound), bound))
        return printed

    def _arguments(
        self, macro: n.Macro, given: Sequence[Size], named: dict[str, Size], rest: Size, env: dict[str, Size]
    ) -> dict[str, Size]:
        names = [argument.name for argument in macro.args]
        bound: dict[str, Size] = {}
        for argument, size in [*zip(names, given, strict=False), *named.items()]:
            bound[argument] = plus(size, rest)
        for argument, default in zip(names[len(names) - len(macro.defaults) :], macro.defaults, strict=True):
            if argument not in bound:
                bound[argument] = self.size(default, env | bound)
        for argument in names:
            bound.setdefault(argument, rest)
        return bound

    def _run(self, call: n.Call, macro: n.Macro, env: dict[str, Size], bound: dict[str, Size]) -> Size:
        if macro.name not in self._recursive:
            return self.body(macro.body, env)
        if macro.name in self._running:
            return self._run_again(call, macro, *self._running[macro.name], bound)
        result = self._label(f"{macro.name}()", {})
        labels = {argument: self._label(f"{macro.name}({argument})", size) for argument, size in bound.items()}
        self._running[macro.name] = result, labels
        loop = Loop({label: bound[argument] for argument, label in labels.items()}, None, recursive=True)
        self._loops.around.append(loop)
        printed = self.body(macro.body, env | {argument: {label: 1.0} for argument, label in labels.items()})
        self._loops.around.pop()
        del self._running[macro.name]
        if printed.pop(result, 0.0) + self._shares.of_macro(result, loop.parts, printed) > 1:
            msg = f"{macro.name}, which prints again what it prints,"
            raise Growing(msg)
        parts = {
            label: whole
            for label, whole in loop.parts.items()
            if all(self._is_part(size, label) for size, _ in self.round[label][1:])
        }
        shrinking = self._shrinking.get(result, {""})
        only = next(iter(shrinking)) if len(shrinking) == 1 else ""
        printed = self._loops.rounds(printed, loop._replace(parts=parts, shrinking=only))
        self.round[result].append((printed, printed))
        return printed

    def _run_again(
        self, call: n.Call, macro: n.Macro, result: str, labels: dict[str, str], bound: dict[str, Size]
    ) -> Size:
        """What a macro prints that calls itself: for each part of an argument, or as it comes."""
        printed, shrinking = {result: 1.0}, ""
        given = dict(zip((argument.name for argument in macro.args), call.args, strict=False))
        given |= {pair.key: pair.value for pair in call.kwargs}
        for argument, label in labels.items():
            size = bound.get(argument, {})
            self.round[label].append((size, times(size, LOOP)))
            part, key = next(iter(size), ""), key_of(given.get(argument), self._set)
            if self._is_part(size, label) and (key or part != label):
                printed, shrinking = {self._shares.label(result, part, key): 1.0}, label
        self._shrinking.setdefault(result, set()).add(shrinking)
        return printed

    def _is_part(self, size: Size, label: str) -> bool:
        """Whether something is a part of what has a label, and of nothing else."""
        return len(size) == 1 and all(
            number <= 1 and (source == label or (source in self._wholes and self._is_part(self._wholes[source], label)))
            for source, number in size.items()
        )

    def check(self) -> None:
        """Refuse what is too large.

        Raises:
            Growing: names it.
        """
        for name in self._called & (self._own_keys | self._attributes) or (
            self._called if "*" in self._own_keys else ()
        ):
            msg = f"a value of its own that is called as {name}"
            raise Growing(msg)
        weights = Rounds(self.round, self._loops.each).weights()
        unseen = (self._idle - self._read) | self._loops.each.keys() | {NAMESPACE}
        ends = [(what, weigh(size, weights)) for what, size in self.ends]
        ends += [
            (f"the assignments to {_spoken(label)}", weights[label]) for label in self.round if label not in unseen
        ]
        for what, (of_input, own) in ends:
            if not (of_input <= MOST_GROWTH and own <= MOST_OWN):
                raise Growing(what)


def _spoken(label: str) -> str:
    """The name that a label was made of."""
    return label.partition(" ")[0].rpartition(".")[2]


def _bound(env: dict[str, Size], names: dict[str, Size]) -> dict[str, Size]:
    """The variables in a scope in which some have another value."""
    return {name: size for name, size in env.items() if name.removesuffix("[]") not in names} | names


def _merge(env: dict[str, Size], after: Sequence[dict[str, Size]]) -> None:
    """Change variables to what they may be after one of several ways."""
    for inner in list(after):
        for name, size in inner.items():
            if env.get(name) is not size:
                env[name] = larger(env.get(name, {}), size)
    for name in [name for name in env if name.endswith("[]") and not all(name in inner for inner in after)]:
        del env[name]
