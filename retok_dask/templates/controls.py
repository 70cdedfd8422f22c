"""Text that looks like control tokens: found in messages, kept apart from the template's own.

A token's text that a user typed is wrapped in marks before the render, as
transformers' ``sanitize_control_tokens`` does, and comes out as a range that is
encoded as ordinary text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.templates.marks import ESCAPE, PLAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from retok_dask.templates.marks import Marks, Runs
    from retok_dask.types import Counts

Message = dict[str, Any]


class ControlTokens:
    """Finds the texts of added tokens in messages.

    Args:
        added: texts of all added tokens, flagged special or not. White space
            alone is no control token: templates and people write it.
        literal: the template's own text; tokens in it are the template's markers.
    """

    def __init__(self, added: Collection[str], literal: str) -> None:
        self.tokens = frozenset(token for token in added if token and not token.isspace())
        self.own = frozenset(token for token in self.tokens if token in literal)
        self._stems = sorted({token[:2] for token in self.tokens}, key=len)
        self._in_text = re.compile(_any_behind_common(self.tokens) if self.tokens else "(?!)")
        written = [orjson.dumps(token)[1:-1].decode() for token in self.tokens]
        self._in_json = re.compile((_any_behind_common(written) if written else "(?!)").encode())
        self._tools_may_hold = lru_cache(maxsize=256)(lambda tools: self._in_json.search(tools) is not None)
        self.pattern = _any_of(self.tokens)
        self._own_pattern = _any_of(self.own)
        self._longest = max(map(len, self.tokens), default=0)
        self._heads = frozenset(token[:end] for token in self.tokens for end in range(1, len(token)))
        self._ends = frozenset(token[-1] for token in self.tokens)
        self._firsts = frozenset(token[0] for token in self.tokens)
        self._rests = frozenset(token[start:] for token in self.tokens for start in range(1, len(token)))

    def find(self, text: str) -> list[str]:
        """Control tokens in a text, in order."""
        for stem in self._stems:
            if stem in text:
                return self.pattern.findall(text)
        return []

    def find_own(self, text: str) -> list[str]:
        """Those of them that are markers of the template."""
        for stem in self._stems:
            if stem in text:
                return self._own_pattern.findall(text)
        return []

    def mark(self, value: Any, marks: Marks) -> Any:
        """A nested value with each control token in its texts wrapped in marks; keys are left alone."""
        if isinstance(value, str):
            return self.pattern.sub(f"{marks.make(ESCAPE)}\\g<0>{marks.make(PLAIN)}", value)
        if isinstance(value, dict):
            return {key: self.mark(item, marks) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item, marks) for item in value]
        return value

    def may_hold(self, texts: str, nested: bytes, tools: bytes) -> bool:
        """Whether texts, or what JSON says, may hold a control token; False is certain."""
        if self._in_text.search(texts) or self._in_json.search(nested):
            return True
        return self._tools_may_hold(tools)

    def may_join(self, text: str) -> bool:
        """Whether a text ends in the beginning of a control token, or begins with the end of one.

        Such a text can become a control token together with the template's
        text beside it.
        """
        longest = self._longest
        tail, head = text[-longest:], text[:longest]
        for first in self._firsts:
            at = tail.find(first)
            while at >= 0:
                if tail[at:] in self._heads:
                    return True
                at = tail.find(first, at + 1)
        for last in self._ends:
            at = head.find(last)
            while at >= 0:
                if head[: at + 1] in self._rests:
                    return True
                at = head.find(last, at + 1)
        return False

    def joined(self, text: str, edges: list[int]) -> list[tuple[int, int]]:
        """Ranges of control tokens in a rendered text that lie across one of the edges; up to a token that begins there."""
        return [
            (match.start(), edge if self.pattern.match(text, edge) else match.end())
            for edge in edges
            for match in self.pattern.finditer(text, max(0, edge - self._longest), edge + self._longest)
            if match.start() < edge < match.end()
        ]

    def clean(self, runs: Runs) -> list[tuple[int, int]]:
        """Escape ranges that hold a whole token, and an empty range where a mark stands alone."""
        ranges: set[tuple[int, int]] = set()
        for start, end in runs.escapes:
            if runs.text[start:end] in self.tokens:
                ranges.add((start, end))
            else:
                ranges |= {(start, start), (end, end)}
        return sorted(ranges)


def _any_behind_common(tokens: Collection[str]) -> str:
    """A pattern for any of some texts, in no order.

    What all of them begin with comes first: the engine then skips from one such place to the next.
    """
    first, *_, last = ordered = sorted([*tokens, *tokens])
    common = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return (
        re.escape(first[:common])
        + "(?:"
        + "|".join(re.escape(token[common:]) for token in dict.fromkeys(ordered))
        + ")"
    )


def _any_of(tokens: Collection[str]) -> re.Pattern[str]:
    ordered = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def texts_of(message: Message) -> Iterator[str]:
    """All texts of a message that a template may print, but for its role."""
    for key, value in message.items():
        if key != "role":
            yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def count_in(controls: ControlTokens, messages: list[Message], tools: Any, counts: Counts) -> bool:
    """Count control tokens in messages by role, and in tools; True if any is in text that is not the assistant's."""
    outside = False
    for message in messages:
        for text in texts_of(message):
            found = len(controls.find(text))
            if found:
                counts[f"control_tokens_in_{message['role']}"] += found
                outside |= message["role"] != "assistant"
    for text in _texts(tools):
        found = len(controls.find(text))
        if found:
            counts["control_tokens_in_tools"] += found
            outside = True
    return outside
