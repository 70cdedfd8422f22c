"""Sizes, and how large what goes round in a loop may become.

A size says for some sources (the input, what goes round in a loop) how often
the text of each may be in a text, at most, and how many characters of the
template's own texts.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Size = dict[str, float]

INPUT, OWN, NAMESPACE = "input", "own", "namespace"
"""Sources: all of the input once, a character of the template, all that is in namespaces."""

LOOP = 1000.0
"""What a loop over data prints again each time is counted so many times; over a range, as often as that is long."""

DEPTH = 32.0
"""What a macro prints of its argument at each level, when it calls itself for parts of that."""


def plus(*sizes: Size) -> Size:
    """The size of texts one after the other."""
    total: Counter[str] = Counter()
    for size in sizes:
        total.update(size)
    return {label: number for label, number in total.items() if number}


def times(size: Size, factor: float) -> Size:
    """The size of a text that is there several times."""
    return {label: number * factor for label, number in size.items()} if factor else {}


def larger(one: Size, two: Size) -> Size:
    """A size that neither of two exceeds."""
    return {label: max(one.get(label, 0.0), two.get(label, 0.0)) for label in one | two}


def largest(sizes: Iterable[Size]) -> Size:
    """A size that none of several exceeds."""
    return reduce(larger, sizes, {})


Weight = tuple[float, float]
"""How often the input may be in something, and how many characters of the template's own."""


def weigh(size: Size, weights: Mapping[str, Weight]) -> Weight:
    """The weight of something, by the weights of what it is made of."""
    return (
        sum(number * weights[label][0] for label, number in size.items()),
        sum(number * weights[label][1] for label, number in size.items()),
    )


_DONE = 1 << 60


class Rounds:
    """What is made of what, where that may go round in a circle.

    Args:
        made: for each label what may be put to it: its size, and the size of all
            that is put there in all loops around it.
        each: for some labels, of what they are and for each thing in what.
    """

    def __init__(self, made: Mapping[str, Sequence[tuple[Size, Size]]], each: Mapping[str, tuple[str, str]]) -> None:
        self._made = made
        self._each = each
        self._found: dict[str, Weight] = {}
        self._circles: list[list[str]] = []
        self._low: dict[str, int] = {}
        self._open: list[str] = []
        for label in made:
            if label not in self._low:
                self._find_circles(label)

    def _made_of(self, label: str) -> Iterable[str]:
        """What something is made of, or made as often as there are things in."""
        for size, total in self._made[label]:
            yield from size
            for other in total:
                while other in self._each:
                    other, counted = self._each[other]  # noqa: PLW2901  the thing within
                    yield counted

    def _find_circles(self, label: str) -> int:
        """Tarjan's way: a circle is complete before what is made of it."""
        first = low = self._low[label] = len(self._low)
        self._open.append(label)
        for other in self._made_of(label):
            if other in self._made:
                low = min(low, self._low[other] if other in self._low else self._find_circles(other))
        self._low[label] = low
        if low == first:
            at = self._open.index(label)
            circle, self._open = self._open[at:], self._open[:at]
            self._low |= dict.fromkeys(circle, _DONE)
            self._circles.append(circle)
        return low

    def weights(self) -> dict[str, Weight]:
        """The weight of what has a label; without bound if that comes back larger than it was."""
        self._found = {INPUT: (1.0, 0.0), OWN: (0.0, 1.0)}
        for circle in self._circles:
            self._found |= dict.fromkeys(circle, self._weight(circle))
        return self._found

    def _weight(self, circle: Sequence[str]) -> Weight:
        if len(circle) == 1 and circle[0] in self._each:
            return self._single(circle[0])
        most = put = (0.0, 0.0)
        inside = frozenset(circle)
        for size, total in (entry for label in circle for entry in self._made[label]):
            back = sum(number for label, number in size.items() if label in inside)
            if not back <= 1:
                return inf, inf
            added = {label: n for label, n in (total if back else size).items() if self._thing(label) not in inside}
            weight = weigh(added, {label: self._single(label) for label in added})
            if back:
                put = put[0] + weight[0], put[1] + weight[1]
            else:
                most = max(most[0], weight[0]), max(most[1], weight[1])
        return most[0] + put[0], most[1] + put[1]

    def _thing(self, label: str) -> str:
        while label in self._each:
            label = self._each[label][0]
        return label

    def _single(self, label: str) -> Weight:
        """The weight of something that is in no circle; or once for each thing in what may be in one."""
        if label in self._found or label not in self._each:
            return self._found.get(label, (inf, inf))
        thing, counted = self._each[label]
        of_input, own = self._found.get(counted, (inf, inf))
        number = max(1.0, LOOP * of_input, own)
        weight = self._single(thing)
        return weight[0] * number, weight[1] * number


class Loop(NamedTuple):
    """A loop that is walked through.

    Attributes:
        parts: what stands for one of the things that it goes through, with all of them.
        again: how often it goes round; None if that is as often as there are things.
        recursive: it is a macro that calls itself, and the parts are its arguments.
        separated: characters between two of the things, where a text is split.
        shrinking: of a macro, that argument of which it hands itself parts alone, each once.
    """

    parts: dict[str, Size]
    again: float | None
    recursive: bool = False
    shrinking: str = ""
    separated: float = 1.0


class Loops:
    """The loops around a place, the outermost first, and what is put somewhere in all their rounds.

    Loops over parts of what an outer loop goes through have, all of them
    together, no more rounds than things are in the whole. So what is there once a
    round of such a loop is not multiplied again by the outer one.
    """

    def __init__(self, made: dict[str, list[tuple[Size, Size]]]) -> None:
        self.around: list[Loop] = []
        self._made = made
        self.each: dict[str, tuple[str, str]] = {}

    def is_part(self, label: str) -> bool:
        """Whether a label is for one of the things that a loop around goes through."""
        return any(label in loop.parts for loop in self.around)

    def all_rounds(self, size: Size) -> Size:
        """The size of what is put somewhere in each round of all loops around."""
        for loop in reversed(self.around):
            # what a macro hands itself is known when it ends
            size = self.rounds(size, loop._replace(parts={}) if loop.recursive else loop)
        return size

    def rounds(self, size: Size, loop: Loop) -> Size:
        """The size of what is put somewhere in each round of a loop, and of all loops over parts around it."""
        sizes = []
        for label, number in size.items():
            if label in loop.parts:
                sizes.append(times(loop.parts[label], number * (DEPTH if loop.recursive else 1.0)))
                continue
            thing, part = self.each.get(label, (label, ""))
            sizes.append(times(self._again(thing if part in loop.parts else label, loop), number))
        return plus(*sizes)

    def _again(self, thing: str, loop: Loop) -> Size:
        """What is there once in each round of a loop."""
        whole = loop.parts.get(loop.shrinking, {}) if loop.recursive else next(iter(loop.parts.values()), {})
        if loop.again is not None or not whole:
            return {thing: LOOP if loop.again is None else loop.again}
        own, again = 0.0, Size()
        for label, number in whole.items():
            rounds = max(1.0, min(number, 1.0 + number / loop.separated))
            if label == OWN:
                own = number
            elif label == INPUT:
                again = plus(again, {thing: LOOP * rounds})
            else:
                again = plus(again, {self._each(thing, label): rounds})
        # a thing of the list is counted there, and what it holds
        return larger(again, {thing: own})

    def _each(self, thing: str, part: str) -> str:
        """The label of something once for each thing in a part."""
        label = f"{thing} for each in {part}"
        self.each[label] = thing, part
        both = {thing: 1.0, part: 1.0}
        self._made.setdefault(label, [(both, both)])
        return label
