"""Several views under each other, each with a heading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from retok_dask.views.text import one_line


class Drawn(Protocol):
    """Anything that draws itself as HTML and as text."""

    def _repr_html_(self) -> str: ...
    def __str__(self) -> str: ...


@dataclass
class Stack:
    """Views in order, by heading; HTML shows the first ones open and folds the others.

    Attributes:
        views: heading and view.
        opened: how many are unfolded.
        nothing: the sentence that stands for no views.
    """

    views: list[tuple[str, Drawn]] = field(default_factory=list)
    opened: int = 1
    nothing: str = "nothing to show"

    def add(self, heading: str, view: Drawn) -> None:
        """Put a view below the others."""
        self.views.append((one_line(heading), view))

    def _repr_html_(self) -> str:
        from retok_dask.views.html import stack_fragment  # noqa: PLC0415  text alone needs no templates

        return stack_fragment(
            [(heading, view._repr_html_()) for heading, view in self.views], self.opened, self.nothing
        )

    def __str__(self) -> str:
        return "\n\n".join(f"== {heading}\n{view}" for heading, view in self.views) or self.nothing

    def __repr__(self) -> str:
        return str(self)
