"""Symbolic texts: a template is run on them to see what it prints of which field, and what that depends on.

A symbol is no text. What a template asks of it and this module knows is noted
as a line of Python (a step); whatever else touches it ends the run, so that
nothing can depend on a text unseen.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import partialmethod
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable


_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


_MOST_PARTS, _MOST_ASKED, _MOST_CHARACTERS = 4096, 2048, 1 << 16
"""Parts of a text, questions in all, and characters of the template's own in one of them: more would save no time."""

_MOST_ADDED = 16
"""Parts of a text that is asked about: with many it could be larger than any text that a template may build."""


class Untraced(BaseException):
    """A template did something with a symbol that cannot be noted; no :class:`Exception`, since Jinja catches those."""


@dataclass(slots=True)
class Steps:
    """What a run asked and made so far, as lines of Python, in order.

    Attributes:
        lines: assignments, and conditions under which another row goes another way.
    """

    lines: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    def atom(self, code: str, value: str, field: str = "") -> Atom:
        """The text that some code gives, made of a field or a field itself."""
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = f"t{len(self._names)}"
            self.lines.append(f"{name} = {code}")
        return Atom(name, value, field or name)

    def ask(self, code: str, answer: bool) -> bool:
        """Note what was asked, and that this run goes on with that answer."""
        if code not in self._asked:
            if len(self._asked) >= _MOST_ASKED:
                raise Untraced
            self._asked.add(code)
            self.lines.append(f"if {'not ' if answer else ''}({code}): return None")
        return answer


@dataclass(frozen=True, slots=True)
class Atom:
    """A text that differs from row to row.

    Attributes:
        name: the variable that holds it.
        value: what it is in this run.
        field: the variable of the field that it is made of.
    """

    name: str
    value: str
    field: str


def refuse(*_: Any, **__: Any) -> NoReturn:
    """End a run."""
    raise Untraced


class Symbol:
    """Texts and atoms, one after the other, that a template takes for one text.

    Args:
        steps: where what is asked of it is noted.
        parts: none of the texts empty.

    All its names but those of texts' own methods begin with an underscore: a
    template that asks for another attribute must find none, as on a text.
    """

    __slots__ = ("_parts", "_steps")

    def __init__(self, steps: Steps, parts: Iterable[str | Atom]) -> None:
        self._steps = steps
        self._parts = tuple(part for part in parts if part != "")
        if len(self._parts) > _MOST_PARTS:  # a text that is empty now may be doubled again and again
            raise Untraced

    @property
    def _code(self) -> str:
        own = sum(len(part) for part in self._parts if isinstance(part, str))
        if len(self._parts) > _MOST_ADDED or own > _MOST_CHARACTERS:
            raise Untraced
        return " + ".join(part.name if isinstance(part, Atom) else repr(part) for part in self._parts) or "''"

    @property
    def _value(self) -> str:
        return "".join(part.value if isinstance(part, Atom) else part for part in self._parts)

    def _of(self, parts: Iterable[str | Atom]) -> Symbol:
        return Symbol(self._steps, parts)

    def _ask(self, code: str, answer: bool) -> bool:
        return self._steps.ask(code, answer)

    def __bool__(self) -> bool:
        if any(isinstance(part, str) for part in self._parts):
            return True
        return self._ask(self._code, bool(self._value))

    def __contains__(self, other: object) -> bool:
        return self._ask(f"{_text(other)!r} in {self._code}", _text(other) in self._value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Symbol):
            raise Untraced
        if not isinstance(other, str):
            return False
        return self._ask(f"{self._code} == {_text(other)!r}", self._value == other)

    def __add__(self, other: object) -> Symbol:
        return joined(self._steps, (self, other)) if isinstance(other, str | Symbol) else refuse()

    def __radd__(self, other: object) -> Symbol:
        return joined(self._steps, (other, self)) if isinstance(other, str) else refuse()

    def __getitem__(self, item: object) -> NoReturn:
        if isinstance(item, str):
            msg = "string indices must be integers"
            raise TypeError(msg)
        raise Untraced

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(str, name):
            raise Untraced
        raise AttributeError(name)

    # none may raise what Jinja catches: a text can be a key, or a number
    def __hash__(self) -> NoReturn:
        raise Untraced

    __index__ = __int__ = __float__ = refuse
    __str__ = __repr__ = __format__ = __len__ = __iter__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __mul__ = __rmul__ = __mod__ = __rmod__ = refuse

    def startswith(self, prefix: object) -> bool:
        """As of texts."""
        return self._ask(f"({self._code}).startswith({_text(prefix)!r})", self._value.startswith(_text(prefix)))

    def endswith(self, suffix: object) -> bool:
        """As of texts."""
        return self._ask(f"({self._code}).endswith({_text(suffix)!r})", self._value.endswith(_text(suffix)))

    def split(self, separator: object = None) -> list[Symbol]:
        """As of texts whose separators are all the template's own; others are not followed."""
        between = _text(separator)
        pieces: list[list[str | Atom]] = [[]]
        for part in self._parts:
            first, *rest = part.split(between) if isinstance(part, str) and between else (part,)
            pieces[-1].append(first)
            pieces += [[piece] for piece in rest]
        if len(pieces) == 1:
            return [self._without(between)]
        found = [self._of(piece) for piece in pieces]
        code = f"({self._code}).split({between!r}) == [{', '.join(piece._code for piece in found)}]"
        if not self._ask(code, self._value.split(between) == [piece._value for piece in found]):
            raise Untraced
        return found

    def replace(self, old: object, new: object) -> Symbol:
        """As of texts in which there is nothing to replace."""
        _text(new)
        return self._without(old)

    def _compared(self, sign: str, number: int) -> bool:
        """What a comparison of the length with a number says."""
        return self._ask(f"len({self._code}) {sign} {number}", _COMPARED[sign](len(self._value), number))

    def _without(self, text: object) -> Symbol:
        if not _text(text) or text in self:
            raise Untraced
        return self

    def strip(self, characters: str | None = None) -> Symbol:
        """As of texts."""
        if len(self._parts) == 1:  # a few steps less, and nearly always so
            return self._of(self._stripped([*self._parts], "strip", characters))
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None) -> Symbol:
        """As of texts."""
        return self._of(self._stripped([*self._parts], "lstrip", characters))

    def rstrip(self, characters: str | None = None) -> Symbol:
        """As of texts."""
        return self._of(reversed(self._stripped([*reversed(self._parts)], "rstrip", characters)))

    def _stripped(self, parts: list[str | Atom], method: str, characters: str | None) -> list[str | Atom]:
        """The parts without what a method takes off the first that has anything left."""
        if characters is not None and _text(characters).strip():
            raise Untraced  # it would lose more than white space, which is noticed and counted elsewhere
        given = "" if characters is None else repr(_text(characters))
        while parts:
            first = parts[0]
            if isinstance(first, Atom):
                left = self._steps.atom(
                    f"{first.name}.{method}({given})", getattr(first.value, method)(characters), first.field
                )
                parts[0] = left
                if len(parts) == 1 or self._ask(left.name, bool(left.value)):
                    break
            else:
                parts[0] = getattr(first, method)(characters)
                if parts[0]:
                    break
            del parts[0]
        return parts


class Length:
    """The length of a symbol, to compare with numbers."""

    __slots__ = ("_of",)

    def __init__(self, symbol: Symbol) -> None:
        self._of = symbol

    def _compare(self, sign: str, other: object) -> bool:
        if type(other) is not int:
            raise Untraced
        return self._of._compared(sign, other)

    __lt__ = partialmethod(_compare, "<")
    __le__ = partialmethod(_compare, "<=")
    __gt__ = partialmethod(_compare, ">")
    __ge__ = partialmethod(_compare, ">=")
    __eq__ = partialmethod(_compare, "==")
    __ne__ = partialmethod(_compare, "!=")

    def __hash__(self) -> NoReturn:
        raise Untraced

    __bool__ = __str__ = __repr__ = __format__ = __index__ = __int__ = __float__ = __add__ = __radd__ = __getattr__ = (
        refuse
    )


def parts_of(symbol: Symbol) -> tuple[str | Atom, ...]:
    """The texts and atoms that a symbol consists of."""
    return symbol._parts


def printed(values: list[Any]) -> Any:
    """Values one after the other, as they are printed: a text, or a symbol if there is one among them."""
    found = next((value for value in values if isinstance(value, Symbol)), None)
    return "".join(map(str, values)) if found is None else joined(found._steps, values)


def joined(steps: Steps, values: Iterable[Any]) -> Symbol:
    """Values one after the other, as a symbol."""
    parts: list[str | Atom] = []
    for value in values:
        parts += value._parts if isinstance(value, Symbol) else [str(value)]
    return Symbol(steps, parts)


def _text(value: object) -> str:
    """A text of the template's own."""
    if not isinstance(value, str):
        raise Untraced
    return str(value)
