"""What a render may cost, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass


class Raised(Exception):
    """The template refused this input by ``raise_exception``."""


class RenderFailed(Exception):
    """The engine stumbled: a type error, an undefined value, an operation it does not know."""


class LimitReached(Exception):
    """The template ran too long or wrote too much."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much a render may take.

    Attributes:
        seconds: a render's time.
        growth: characters a render may write for each character of its input, beyond `floor`.
        floor: characters any render may write.
        fuel: steps of minijinja; a render that needs more is left to Jinja.
    """

    seconds: float = 5.0
    growth: int = 16
    floor: int = 4_000_000
    fuel: int = 2_000_000

    def size(self, characters: int) -> int:
        """Characters that may be written for an input of so many."""
        return self.floor + self.growth * characters
