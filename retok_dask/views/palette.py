"""Colours of segment kinds: one table for HTML, terminal and plots.

The hues are spread so that people with red- or green-blindness tell the kinds
apart by lightness and by blue against yellow; a test simulates it. Colour is
never the only sign: each run of tokens carries its kind as a word, and trained
tokens are underlined.
"""

from __future__ import annotations

from dataclasses import dataclass

from retok_dask.types import KIND_NAMES


@dataclass(frozen=True)
class Shade:
    """One kind's colours, as ``#rrggbb``: backgrounds on light and dark pages, and a strong tone for lines."""

    light: str
    dark: str
    strong: str


_GREY = Shade("#e4e4e4", "#3d3d3d", "#777777")

SHADES: dict[str, Shade] = {
    "bos": _GREY,
    "system": Shade("#d9d3ea", "#3f3a56", "#6f5fa8"),
    "tools": Shade("#d9d3ea", "#3f3a56", "#6f5fa8"),
    "user": Shade("#c9e4f7", "#1d5a80", "#3a93cf"),
    "tool": Shade("#a9c3e8", "#30306b", "#0b5ea8"),
    "other": _GREY,
    "header": _GREY,
    "prefill": _GREY,
    "reasoning": Shade("#fbf2a8", "#655c10", "#c4a90c"),
    "content": Shade("#a5dcc6", "#0d5a41", "#00825f"),
    "tool_call": Shade("#f7bf95", "#6b2f12", "#b8480a"),
    "scaffold": _GREY,
    "stop": Shade("#e9b3d1", "#75204f", "#b34b86"),
    "trailer": _GREY,
}
"""Shades by kind name, one for each kind there is."""

UNKNOWN = _GREY

MEANINGS: dict[str, str] = {
    "bos": "token that begins the text",
    "system": "system message",
    "tools": "descriptions of tools",
    "user": "what the user wrote",
    "tool": "result of a tool",
    "other": "template text outside messages",
    "header": "role header, given to the model",
    "prefill": "what the generation prompt adds, given to the model",
    "reasoning": "what the model thinks",
    "content": "what the model answers",
    "tool_call": "a call of a tool",
    "scaffold": "template text around nothing",
    "stop": "token that ends the turn",
    "trailer": "template text after the end of the turn",
}

if tuple(SHADES) != KIND_NAMES or tuple(MEANINGS) != KIND_NAMES:  # a new kind must be given a shade and a meaning
    msg = f"palette and kinds differ: {set(SHADES) ^ set(KIND_NAMES) | set(MEANINGS) ^ set(KIND_NAMES)}"
    raise RuntimeError(msg)


def shade(kind: str) -> Shade:
    """The shade of a kind; grey for one that this version does not know."""
    return SHADES.get(kind, UNKNOWN)
