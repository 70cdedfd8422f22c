"""What macros print that call themselves for parts of an argument: how often they do so for the same part.

A macro may call itself for each thing in a list, or for what is under one key and
then for what is under another: all that it prints is printed once. Calls for the
same part twice print it twice, at each level, and so on without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retok_dask.templates.rounds import largest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from retok_dask.templates.rounds import Size


class Shares:
    """The labels of what is printed by such calls.

    Args:
        made: what has a label is made of what; theirs are put there.
    """

    def __init__(self, made: dict[str, list[tuple[Size, Size]]]) -> None:
        self._made = made
        self._labels: dict[str, tuple[str, str, str]] = {}

    def label(self, result: str, part: str, key: str) -> str:
        """The label of what is printed for a part, or for what that has under a key."""
        label = f"{result} of {part} {key}"
        self._labels[label] = result, part, key
        self._made.setdefault(label, [({result: 1.0}, {result: 1.0})])
        return label

    def either(self, sizes: Collection[Size]) -> Size:
        """The size of one of several, whichever: of the calls for the same part, those of one."""
        together = largest(sizes)
        for (result, part), by_key in self._counts(together).items():
            if len(by_key) > 1:
                most = max(_calls(self._counts(size).get((result, part), {})) for size in sizes)
                for key in by_key:
                    del together[self.label(result, part, key)]
                together[self.label(result, part, "")] = most
        return together

    def of_loop(self, part: str, outer: str, key: str, printed: Size) -> Size:
        """What is printed for each part that a loop goes through: once for all of it.

        Args:
            part: one of the things that it goes through.
            outer: of what it goes through all, or what that has under `key`; may be empty.
            key: may be empty.
            printed: what is printed in the loop; the calls for its parts are taken out.
        """
        once: Size = {}
        for (result, of_part), by_key in self._counts(printed).items():
            if of_part == part:
                once[self.label(result, outer, key) if outer else result] = _calls(by_key)
                for name in by_key:
                    del printed[self.label(result, part, name)]
        return once

    def of_macro(self, result: str, arguments: Collection[str], printed: Size) -> float:
        """How often what a macro prints is in that; the calls for parts of its arguments are taken out of it."""
        number = 0.0
        for (of, part), by_key in self._counts(printed).items():
            if of == result and part in arguments:
                number += _calls(by_key)
                for key in by_key:
                    del printed[self.label(result, part, key)]
        return number

    def _counts(self, printed: Size) -> dict[tuple[str, str], dict[str, float]]:
        """The numbers of calls: by what is called for what part, and by key."""
        counts: dict[tuple[str, str], dict[str, float]] = {}
        for label, number in printed.items():
            if label in self._labels:
                result, part, key = self._labels[label]
                counts.setdefault((result, part), {})[key] = number
        return counts


def _calls(by_key: Mapping[str, float]) -> float:
    """How often the same may be in what is given to some calls: other keys hold other things."""
    return by_key.get("", 0.0) + max((number for key, number in by_key.items() if key), default=0.0)
