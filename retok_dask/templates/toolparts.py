"""What a template prints of the tools alone: rendered once a tool set, not once a record.

Most of what a template says of tools (the loop over them, a macro that lists
them) depends on nothing else, and the same few tool sets come with most
records. Such a part is a piece of the template whose every name is `tools`, a
constant of the template's setting, or bound within it, and which changes
nothing outside itself. So it prints the same wherever it stands, and may be
rendered by itself, by the same engine.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import jinja2.nodes as n

from retok_dask.templates.engines import MiniEngine
from retok_dask.templates.limits import LimitReached, Raised, RenderFailed
from retok_dask.templates.schemas import ToolList, json_of
from retok_dask.templates.syntax import write

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from retok_dask.templates.limits import Limits

_TOOLS, _PART, _SHORT = "tools", "retok_tools_", "short"

_KNOWN, _LONGEST = 256, 1 << 18
"""How many tool sets are remembered, and of how many characters."""

_EXPRESSIONS = (
    *(n.Const, n.TemplateData, n.Tuple, n.List, n.Dict, n.Pair, n.Keyword, n.CondExpr, n.Filter, n.Test, n.Compare),
    *(n.Operand, n.Getattr, n.Getitem, n.Slice, n.Concat, n.And, n.Or, n.Not, n.Neg, n.Pos, n.Add, n.Sub, n.Mul),
    *(n.Div, n.FloorDiv, n.Mod, n.Pow),
)
"""What depends on its operands alone and changes none of them."""

_METHODS = frozenset({"items", "keys", "values", "get", "lower", "upper", "strip", "split", "replace", "startswith"})
"""Likewise, of methods."""


class PartsEngine(MiniEngine):
    """minijinja that renders what depends on tools alone once a tool set.

    Args:
        tree: the template; it is changed.
        constant: names of variables that are the same in each render.
        date, limits: as for every engine.
    """

    def __init__(self, tree: n.Template, constant: Collection[str], *, date: dt.date, limits: Limits) -> None:
        super().__init__(tree, date=date, limits=limits)
        finder = _Finder(tree, constant)
        tree.body = finder.take(tree.body)
        self._parts = [f"{_PART}{number}" for number in range(len(finder.parts))]
        self._texts: dict[int, tuple[ToolList, dict[str, str] | None]] = {}
        if self._parts:
            for name, source in zip((*self._parts, _SHORT), (*finder.parts, write(tree)), strict=True):
                self._environment.add_template(name, source)

    def render(self, context: Mapping[str, Any], limit: int) -> str:
        """See :class:`~retok_dask.templates.engines.Engine`."""
        tools = context[_TOOLS]
        if not self._parts or type(tools) is not ToolList:
            return super().render(context, limit)
        known = self._texts.get(id(tools))
        if known is None:
            if len(self._texts) >= _KNOWN:
                self._texts.clear()
            known = self._texts[id(tools)] = tools, self._render_parts(tools, context)
        if known[1] is None:
            return super().render(context, limit)
        return self._rendered(_SHORT, {**context, **known[1]}, limit)

    def _render_parts(self, tools: ToolList, context: Mapping[str, Any]) -> dict[str, str] | None:
        """The text of each part; None where one fails, which a record's render need not come to, or is long."""
        if len(json_of(tools)) > _LONGEST:
            return None
        steps = self._environment.fuel
        self._environment.fuel = self._limits.fuel  # not the record's: what comes of it depends on the tools alone
        try:
            return {name: self._rendered(name, context, _LONGEST) for name in self._parts}
        except (Raised, RenderFailed, LimitReached):
            return None
        finally:
            self._environment.fuel = steps


class _Finder:
    """Finds the parts of a template, the largest first.

    Attributes:
        parts: what was found, as sources of templates.

    Args:
        tree: the template.
        constant: names of variables that are the same in each render.
    """

    def __init__(self, tree: n.Template, constant: Collection[str]) -> None:
        self.parts: list[str] = []
        self._top = frozenset(map(id, tree.body))
        stored = [name.name for name in tree.find_all(n.Name) if name.ctx != "load"]
        stored += [
            *(target.name for target in tree.find_all(n.NSRef)),
            *(macro.name for macro in tree.find_all(n.Macro)),
        ]
        self._stored = Counter(stored)
        self._free = frozenset({_TOOLS, *constant}).difference(stored)
        self._macros: dict[str, bool] = {}
        self._definitions = ""

    def take(self, nodes: Sequence[Any]) -> list[n.Node]:
        """Statements with their parts taken out: each is a variable in its place."""
        left: list[n.Node] = []
        for node in nodes:
            if isinstance(node, n.Output):
                node.nodes = [self._part(n.Output([child])) or child for child in node.nodes]
            elif isinstance(node, n.If | n.For) and (part := self._part(node)):
                left.append(n.Output([part]))
                continue
            elif isinstance(node, n.Macro) and id(node) in self._top and self._define(node):
                pass
            else:
                self._take_inside(node)
            left.append(node)
        return left

    def _take_inside(self, node: Any) -> None:
        for name in ("body", "else_"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, self.take(getattr(node, name)))
        for branch in getattr(node, "elif_", None) or ():
            self._take_inside(branch)

    def _define(self, macro: n.Macro) -> bool:
        """Note a macro that parts may call from here on: it is there before them, and depends on no more than they."""
        names = {arg.name for arg in macro.args}
        if self._stored[macro.name] > 1 or not self._all(macro.defaults, frozenset()):
            return False
        self._macros[macro.name] = False
        if not self._statements(macro.body, frozenset(names), inside=True):
            del self._macros[macro.name]
            return False
        self._macros[macro.name] = self._sees_tools(*macro.body)
        self._definitions += write(n.Template([macro]))
        return True

    def _part(self, node: n.Stmt) -> n.Name | None:
        """The variable that stands for a statement, if it is a part, and more than a look at the tools."""
        works = isinstance(node, n.For) or next(node.find_all((n.For, n.Filter, n.Call)), None) is not None
        if not (works and self._sees_tools(node) and self._statements([node], frozenset())):
            return None
        self.parts.append(self._definitions + write(n.Template([node])))
        return n.Name(f"{_PART}{len(self.parts) - 1}", "load")

    def _sees_tools(self, *nodes: n.Node) -> bool:
        names = {name.name for node in nodes for name in node.find_all(n.Name)}
        return _TOOLS in names or any(map(self._macros.get, names))

    def _statements(
        self, nodes: Iterable[Any], bound: frozenset[str], *, inside: bool = False, loop: bool = False
    ) -> bool:
        """Whether statements print by what is `bound` and free alone; `inside` a scope of their own they may assign."""
        for node in nodes:
            if isinstance(node, n.Output):
                fits = self._all(node.nodes, bound)
            elif isinstance(node, n.Assign):
                fits = inside and self._expression(node.node, bound)
                bound |= _bound_by(node.target)
            elif isinstance(node, n.If):
                branches = (node, *node.elif_)
                fits = self._all([branch.test for branch in branches], bound) and all(
                    self._statements(body, bound, inside=inside, loop=loop)
                    for body in (*[branch.body for branch in branches], node.else_)
                )
            elif isinstance(node, n.For):
                fits = self._loop(node, bound, inside=inside)
            else:
                fits = loop and isinstance(node, n.Break | n.Continue)
            if not fits:
                return False
        return True

    def _loop(self, node: n.For, bound: frozenset[str], *, inside: bool) -> bool:
        names = _bound_by(node.target)
        return (
            self._expression(node.iter, bound)
            and (node.test is None or self._expression(node.test, bound | names))
            and self._statements(node.body, bound | names | {"loop"}, inside=True, loop=True)
            and self._statements(node.else_, bound, inside=inside)
        )

    def _expression(self, node: Any, bound: frozenset[str]) -> bool:
        if isinstance(node, n.Name):
            return node.name in bound or node.name in self._free
        if isinstance(node, n.Call):
            called = node.node
            if isinstance(called, n.Getattr):
                fits = called.attr in _METHODS and self._expression(called.node, bound)
            else:
                fits = isinstance(called, n.Name) and called.name in self._macros
            return fits and self._all([*node.args, *node.kwargs], bound)
        return isinstance(node, _EXPRESSIONS) and self._all(node.iter_child_nodes(), bound)

    def _all(self, nodes: Iterable[n.Node], bound: frozenset[str]) -> bool:
        return all(self._expression(node, bound) for node in nodes)


def _bound_by(target: n.Node) -> set[str]:
    return {name.name for name in n.Output([target]).find_all(n.Name)}
