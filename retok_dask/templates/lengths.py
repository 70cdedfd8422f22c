"""How much longer a filter or a method makes a text, as far as the template alone tells."""

from __future__ import annotations

import math
import re
from math import inf
from typing import Any

import jinja2.nodes as n

from retok_dask.templates.names import constant
from retok_dask.templates.vocabulary import LIST_FILTERS, LISTS

_WIDEST = 100
"""Widest indentation."""

_LONGEST_PIECE = 16_000
"""What one character may become."""


class Growing(Exception):
    """Something in a template can multiply text; says what."""


def lists(node: Any) -> bool:
    """Whether a filter or a method makes a list of what is a text perhaps."""
    if isinstance(node, n.Filter):
        return node.name in LIST_FILTERS or node.name == "map"
    return isinstance(node, n.Call) and isinstance(node.node, n.Getattr) and node.node.attr in LISTS


def pairs(node: Any) -> bool:
    """Whether a filter or a method makes a list of pairs."""
    if isinstance(node, n.Filter):
        return node.name in {"items", "dictsort"}
    return isinstance(node, n.Call) and isinstance(node.node, n.Getattr) and node.node.attr == "items"


def width(node: n.Filter) -> float:
    """The most characters that an indentation, or JSON's separators, put to each character.

    Raises:
        Growing: that is not small, or not constant.
    """
    widths = [4.0 if node.name == "indent" else 0.0]
    for value in (*node.args, *(pair.value for pair in node.kwargs)):
        for part in value.items if isinstance(value, n.Tuple | n.List) else (value,):
            number = constant(part)
            if isinstance(part, n.Const) and not isinstance(part.value, int | float):
                number = float(len(str(part.value or "")))
            if number is None or number > _WIDEST:
                msg = f"the filter {node.name}"
                raise Growing(msg)
            widths.append(number)
    return max(widths)


def joined(what: str, between: list[Any]) -> float:
    """How many characters stand for one after a joining.

    Raises:
        Growing: that depends on more than the template.
    """
    if not all(isinstance(text, n.Const) for text in between[:1]):
        msg = f"{what} with what is not constant"
        raise Growing(msg)
    return 1.0 + sum(len(str(text.value)) for text in between[:1])


def replacement(node: Any) -> list[Any] | None:
    """The arguments of a filter or method that replaces; None for everything else."""
    if isinstance(node, n.Filter):
        return list(node.args) if node.name == "replace" else None
    if isinstance(node, n.Call) and isinstance(node.node, n.Getattr):
        return list(node.args) if node.node.attr == "replace" else None
    return None


def longest(steps: list[tuple[str, str]]) -> float:
    """How many characters may stand for one after all replacements."""
    if any(len(old) != 1 for old, _ in steps):
        factors = [max(1.0, len(new) / len(old)) if old else 1.0 + len(new) for old, new in steps]
        return math.prod(factors)
    most = 1
    for character, _ in steps:
        text = character
        for old, new in steps:
            if len(text) + text.count(old) * len(new) > _LONGEST_PIECE:
                return inf
            text = text.replace(old, new)
        most = max(most, len(text))
    return float(most)


_FIELD = re.compile(r"\{[^{}]*\}")


def is_plain_format(text: Any, args: list[Any]) -> bool:
    """Whether a format's text is constant, and prints each argument once, as it is."""
    return isinstance(text, n.Const) and _FIELD.findall(str(text.value)) == ["{}"] * len(args)
