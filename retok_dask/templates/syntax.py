"""The grammar of chat templates: Jinja's parsed tree, and the tree as text again.

A template is parsed once, exactly as transformers does it (blocks trimmed,
``{% generation %}`` known), changed as a tree, and then either compiled by
Jinja or written out again for ``minijinja``. In the text written out all
white space is explicit, so that marks can be added without a thought for
``{%-`` and its kin.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.nodes as n
from jinja2.sandbox import ImmutableSandboxedEnvironment

from retok_dask.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jinja2.parser import Parser

GENERATION_CALL = "retok_generation"
"""Name of the call block that a ``{% generation %}`` tag is parsed to."""

UNDEFINED_CALL = "retok_undefined"
"""Name of a function that refuses, for what minijinja would take for null."""

MUTATING_CALL = "retok_mutation"
"""Name of a function that refuses, for calls that change what the template was given; Jinja's sandbox refuses them."""

MUTATORS = frozenset(
    {
        *("append", "extend", "insert", "remove", "reverse", "sort"),
        *("clear", "pop", "popitem", "setdefault", "update"),
    }
)
"""Methods of Python's lists and objects that change them."""


class GenerationTag(jinja2.ext.Extension):
    """Parses ``{% generation %}...{% endgeneration %}`` as a call block that returns its body."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own interface

    def parse(self, parser: Parser) -> n.Node:
        """Jinja calls this at each tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = n.Call(n.Name(GENERATION_CALL, "load"), [], [], None, None)
        return n.CallBlock(call, [], [], body).set_lineno(line)


def syntax_environment(base: type[ImmutableSandboxedEnvironment] = ImmutableSandboxedEnvironment) -> Any:
    """A sandboxed environment with the grammar that transformers gives to chat templates."""
    return base(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols])


_PARSER = syntax_environment()


def parse(text: str) -> n.Template:
    """Parse a template.

    Raises:
        TemplateError: it is no valid Jinja; names the line.
    """
    try:
        tree: n.Template = _PARSER.parse(text)
    except jinja2.TemplateSyntaxError as error:
        lines = text.splitlines()
        shown = lines[error.lineno - 1].strip()[:120] if 0 < error.lineno <= len(lines) else ""
        msg = (
            f"the chat template does not compile: line {error.lineno}: {error.message} (at {shown!r}); "
            "correct that line, or name another template with `template: {path: FILE}`"
        )
        raise TemplateError(msg) from error
    except RecursionError as error:
        msg = "the chat template is nested too deeply to compile; name another one with `template: {path: FILE}`"
        raise TemplateError(msg) from error
    return tree


def copied(node: Any) -> Any:
    """A tree, a node or a list of nodes, copied down to what is never changed: `copy.deepcopy` takes ten times as long."""
    if isinstance(node, list):
        return [copied(item) for item in node]
    if not isinstance(node, n.Node):
        return node
    made = object.__new__(type(node))
    for name, value in vars(node).items():
        setattr(made, name, copied(value))
    return made


class CannotWrite(Exception):
    """The tree holds a construct that has no counterpart in minijinja."""


_BINARY = {n.Add: "+", n.Sub: "-", n.Mul: "*", n.Div: "/", n.FloorDiv: "//", n.Mod: "%", n.Pow: "**"}
_COMPARE = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}


def write(tree: n.Template) -> str:
    """The tree as minijinja source without any white-space control.

    Raises:
        CannotWrite: the template uses something minijinja does not have.
    """
    return "".join(_statement(node) for node in tree.body)


def _body(nodes: Iterable[n.Node]) -> str:
    return "".join(_statement(node) for node in nodes)


def _statement(node: n.Node) -> str:
    writer = _STATEMENTS.get(type(node))
    if writer is None:
        raise CannotWrite(type(node).__name__)
    return writer(node)


def _expression(node: n.Node | None) -> str:
    if node is None:
        return ""
    operator = _BINARY.get(type(node))  # type: ignore[arg-type]
    if operator is not None:
        return f"({_expression(node.left)} {operator} {_expression(node.right)})"  # type: ignore[attr-defined]
    writer = _EXPRESSIONS.get(type(node))
    if writer is None:
        raise CannotWrite(type(node).__name__)
    return writer(node)


def _output(node: Any) -> str:
    pieces = []
    for child in node.nodes:
        if isinstance(child, n.TemplateData) and "{" not in child.data:
            pieces.append(child.data)
        elif isinstance(child, n.TemplateData):
            pieces.append("{{ " + json.dumps(child.data, ensure_ascii=False) + " }}")
        else:
            pieces.append("{{ " + _expression(child) + " }}")
    return "".join(pieces)


def _for(node: Any) -> str:
    test = f" if {_expression(node.test)}" if node.test is not None else ""
    recursive = " recursive" if node.recursive else ""
    head = "{% for " + _target(node.target) + " in " + _expression(node.iter) + test + recursive + " %}"
    other = "{% else %}" + _body(node.else_) if node.else_ else ""
    return head + _body(node.body) + other + "{% endfor %}"


def _if(node: Any) -> str:
    text = "{% if " + _expression(node.test) + " %}" + _body(node.body)
    for branch in node.elif_:
        text += "{% elif " + _expression(branch.test) + " %}" + _body(branch.body)
    if node.else_:
        text += "{% else %}" + _body(node.else_)
    return text + "{% endif %}"


def _signature(node: Any) -> str:
    free = len(node.args) - len(node.defaults)
    parts = [arg.name for arg in node.args[:free]]
    parts += [f"{arg.name}={_expression(value)}" for arg, value in zip(node.args[free:], node.defaults, strict=True)]
    return "(" + ", ".join(parts) + ")"


def _macro(node: Any) -> str:
    return "{% macro " + str(node.name) + _signature(node) + " %}" + _body(node.body) + "{% endmacro %}"


def is_generation(node: n.Node) -> bool:
    """Whether a node is a ``{% generation %}`` block."""
    return (
        isinstance(node, n.CallBlock) and isinstance(node.call.node, n.Name) and node.call.node.name == GENERATION_CALL
    )


def _call_block(node: Any) -> str:
    if is_generation(node):
        # its body prints in place and has a scope of its own, as the caller of a macro has
        return "{% with %}" + _body(node.body) + "{% endwith %}"
    head = _signature(node) if node.args else ""
    return "{% call" + head + " " + _expression(node.call) + " %}" + _body(node.body) + "{% endcall %}"


def _assign_block(node: Any) -> str:
    chain = _filter_chain(node.filter) if node.filter is not None else ""
    return "{% set " + _target(node.target) + chain + " %}" + _body(node.body) + "{% endset %}"


def _filter_block(node: Any) -> str:
    chain = _filter_chain(node.filter).lstrip("| ")
    return "{% filter " + chain + " %}" + _body(node.body) + "{% endfilter %}"


def _with(node: Any) -> str:
    pairs = ", ".join(
        f"{_target(target)} = {_expression(value)}" for target, value in zip(node.targets, node.values, strict=True)
    )
    return "{% with " + pairs + " %}" + _body(node.body) + "{% endwith %}"


def _filter_chain(node: Any) -> str:
    if node is None:
        return ""
    return f"{_filter_chain(node.node)} | {node.name}{_optional_arguments(node)}"


def _target(node: Any) -> str:
    if isinstance(node, n.Tuple):
        return "(" + ", ".join(_target(item) for item in node.items) + ")"
    if isinstance(node, n.NSRef):
        return f"{node.name}.{node.attr}"
    if isinstance(node, n.Name):
        return str(node.name)
    raise CannotWrite(type(node).__name__)


def _arguments(node: Any) -> str:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        what = "*args"
        raise CannotWrite(what)
    parts = [_expression(arg) for arg in node.args]
    parts += [f"{pair.key}={_expression(pair.value)}" for pair in node.kwargs]
    return "(" + ", ".join(parts) + ")"


def _call(node: Any) -> str:
    if isinstance(node.node, n.Getattr) and node.node.attr in MUTATORS:
        return f"{MUTATING_CALL}()"
    return _expression(node.node) + _arguments(node)


def _optional_arguments(node: Any) -> str:
    text = _arguments(node)
    return "" if text == "()" else text


def _constant(node: Any) -> str:
    value = node.value
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    raise CannotWrite(type(value).__name__)


def _compare(node: Any) -> str:
    left, parts = node.expr, []
    for operand in node.ops:
        parts.append(f"({_expression(left)} {_COMPARE[operand.op]} {_expression(operand.expr)})")
        left = operand.expr
    return "(" + " and ".join(parts) + ")"


def _test(node: Any) -> str:
    text = f"({_expression(node.node)} is {node.name}{_optional_arguments(node)})"
    if node.name in {"iterable", "sequence"}:
        # minijinja takes nothing for an empty sequence, Jinja does not
        return f"({_expression(node.node)} is not none and {text})"
    return text


def _slice(node: Any) -> str:
    step = ":" + _expression(node.step) if node.step is not None else ""
    return _expression(node.start) + ":" + _expression(node.stop) + step


def _conditional(node: Any) -> str:
    other = f" else {_expression(node.expr2)}" if node.expr2 is not None else ""
    return f"({_expression(node.expr1)} if {_expression(node.test)}{other})"


def _getattr(node: Any) -> str:
    return f"{_expression(node.node)}.{node.attr}"


def _tuple(node: Any) -> str:
    inner = ", ".join(_expression(item) for item in node.items)
    return f"({inner},)" if len(node.items) == 1 else f"({inner})"


def _filter(node: Any) -> str:
    value = _defined(node.node) if node.name == "tojson" else _expression(node.node)
    return f"({value} | {node.name}{_optional_arguments(node)})"


def _defined(node: Any) -> str:
    """A value that may become JSON: our filter is given None for what is undefined, and Jinja makes no JSON of that."""
    value = _expression(node)
    if not isinstance(node, n.Getattr | n.Getitem | n.Name) or next(node.find_all(n.Call), None) is not None:
        return value
    return f"({value} if ({value} is defined) else {UNDEFINED_CALL}())"


_STATEMENTS: dict[type[n.Node], Callable[[Any], str]] = {
    n.Output: _output,
    n.For: _for,
    n.If: _if,
    n.Macro: _macro,
    n.CallBlock: _call_block,
    n.FilterBlock: _filter_block,
    n.With: _with,
    n.Scope: lambda node: "{% with %}" + _body(node.body) + "{% endwith %}",
    n.Assign: lambda node: "{% set " + _target(node.target) + " = " + _expression(node.node) + " %}",
    n.AssignBlock: _assign_block,
    n.ExprStmt: lambda node: "{% do " + _expression(node.node) + " %}",
    n.Break: lambda _: "{% break %}",
    n.Continue: lambda _: "{% continue %}",
}

_EXPRESSIONS: dict[type[n.Node], Callable[[Any], str]] = {
    n.Name: lambda node: str(node.name),
    n.NSRef: lambda node: f"{node.name}.{node.attr}",
    n.Const: _constant,
    n.TemplateData: lambda node: json.dumps(node.data, ensure_ascii=False),
    n.Tuple: _tuple,
    n.List: lambda node: "[" + ", ".join(_defined(item) for item in node.items) + "]",
    n.Dict: lambda node: (
        "{" + ", ".join(f"{_expression(pair.key)}: {_defined(pair.value)}" for pair in node.items) + "}"
    ),
    n.CondExpr: _conditional,
    n.Filter: _filter,
    n.Test: _test,
    n.Call: _call,
    n.Getitem: lambda node: f"{_expression(node.node)}[{_expression(node.arg)}]",
    n.Getattr: _getattr,
    n.Slice: _slice,
    n.Concat: lambda node: "(" + " ~ ".join(_expression(item) for item in node.nodes) + ")",
    n.Compare: _compare,
    n.And: lambda node: f"({_expression(node.left)} and {_expression(node.right)})",
    n.Or: lambda node: f"({_expression(node.left)} or {_expression(node.right)})",
    n.Not: lambda node: f"(not {_expression(node.node)})",
    n.Neg: lambda node: f"(-{_expression(node.node)})",
    n.Pos: lambda node: f"(+{_expression(node.node)})",
}
