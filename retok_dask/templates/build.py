"""From the runs of a rendering to a :class:`~retok_dask.types.Rendered`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.templates.segments import BodyParser, Fields
from retok_dask.types import Kind, RecordRejected, RejectReason, Rendered

if TYPE_CHECKING:
    from collections import Counter

    from retok_dask.templates.shape import Shape

Message = dict[str, Any]

ROLE_KINDS = {
    "system": Kind.system,
    "developer": Kind.system,
    "user": Kind.user,
    "tool": Kind.tool,
    "function": Kind.tool,
}


class Builder:
    """Builds one rendering's spans."""

    def __init__(self, shape: Shape, bos: str, counts: Counter[str]) -> None:
        self.shape = shape
        self.bos = bos
        self.counts = counts
        self.parser = BodyParser(shape)
        self.starts: list[int] = []
        self.kinds: list[int] = []
        self.owners: list[int] = []

    def build(
        self,
        text: str,
        starts: list[int],
        owners: list[int],
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        *,
        prompt: bool = False,
    ) -> Rendered:
        """The spans of a text whose runs are known.

        Raises:
            NotProved: what an assistant message says could not be located.
            RecordRejected: a message does not come out at all.
        """
        fields = {n: Fields.of(message) for n, message in enumerate(messages) if message["role"] == "assistant"}
        ends = [*starts[1:], len(text)]
        open_turn = -1
        for start, end, owner in zip(starts, ends, owners, strict=True):
            if open_turn >= 0:
                start = self._marker_stop(text, start, end, open_turn)  # noqa: PLW2901  the marker is another's
                open_turn = -1
            if owner < 0:
                self._outside(text, start, end, messages, tools)
            elif owner in fields:
                self._assistant(text, start, end, owner, fields[owner])
                open_turn = owner if self.shape.marker_stops else -1
            else:
                self._add(start, ROLE_KINDS.get(messages[owner]["role"], Kind.other), owner)
        if prompt:
            self._generation_prompt(text)
        self._check(fields, messages)
        return Rendered(text, self.starts, self.kinds, self.owners, counts=dict(self.counts))

    def _add(self, start: int, kind: Kind, owner: int) -> None:
        if self.starts and self.starts[-1] == start:
            self.kinds[-1], self.owners[-1] = int(kind), owner
        elif not self.starts or self.kinds[-1] != kind or self.owners[-1] != owner:
            self.starts.append(start)
            self.kinds.append(int(kind))
            self.owners.append(owner)

    def _marker_stop(self, text: str, start: int, end: int, owner: int) -> int:
        return start

    def _outside(
        self, text: str, start: int, end: int, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> None:
        if start == 0 and self.bos and text.startswith(self.bos):
            self._add(0, Kind.bos, -1)
            start = len(self.bos)
        if start == end:
            return
        first = messages[0]
        if not any(owner >= 0 for owner in self.owners):
            own = first["role"] in ("system", "developer") and (first.get("content") or "").strip() in text[start:end]
            self._add(start, Kind.tools if tools and not own else Kind.system, 0 if own else -1)
        else:
            self._add(start, Kind.other, -1)

    def _assistant(self, text: str, start: int, end: int, owner: int, fields: Fields) -> None:
        for position, kind in self.parser.parse(text[start:end], fields):
            self._add(start + position, kind, owner)

    def _generation_prompt(self, text: str) -> None:
        return

    def _check(self, fields: dict[int, Fields], messages: list[Message]) -> None:
        rendered = {owner for owner in self.owners if owner >= 0}
        for index, message in enumerate(messages):
            if index in fields:
                missing = fields[index].missing()
                if "R" in missing:
                    self.counts["reasoning_dropped"] += 1
                    self.counts["reasoning_dropped_chars"] += len(fields[index].reasoning)
                if "C" in missing:
                    detail = f"the content of message {index} does not come out"
                    raise RecordRejected(RejectReason.message_not_rendered, detail)
                if "T" in missing:
                    self.counts["tool_call_dropped"] += 1
            elif index not in rendered and (message.get("content") or "").strip():
                self.counts["message_not_rendered"] += 1
