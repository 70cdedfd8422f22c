"""Texts: dialogues written as one text, and plain documents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import conversation
from retok_dask.types import Document, RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

TEXTS = ("text", "content", "document", "page_content", "raw_content", "body", "markdown", "code")
"""Names under which a record holds its document, in order of preference."""

DIALOGUES = ("text", "dialogue", "conversation", "transcript")

_TEXT_OR_NULL = (str, type(None))

_MARK = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_NAMES = {"Human": "user", "Assistant": "assistant"}


def is_dialogue_text(text: str) -> bool:
    """Whether a text is a dialogue with ``Human:`` in front of what people say."""
    return text.startswith(("\n\nHuman:", "Human:"))


def split_dialogue(text: str) -> list[dict[str, Any]]:
    """Messages of a dialogue that is one text.

    One blank after a speaker's colon belongs to the format; the rest of the
    text is kept as it is. A last ``Assistant:`` with nothing after it asks for
    an answer and is no message.
    """
    parts = _MARK.split(text)
    if parts[0].strip():
        raise RecordRejected(RejectReason.bad_layout, f"text before the first speaker: {parts[0][:60]!r}")
    messages = [
        {"role": _NAMES[name], "content": said.removeprefix(" ")}
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    if messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"].strip():
        messages.pop()
    return messages


def _dialogue(record: dict[str, Any]) -> str | None:
    for name in DIALOGUES:
        value = record.get(name)
        if isinstance(value, str) and is_dialogue_text(value):
            return value
    return None


def fits_dialogue(record: dict[str, Any]) -> bool:
    """A text that starts with ``Human:``."""
    return _dialogue(record) is not None


def build_dialogue(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """Messages of a dialogue that is one text."""
    text = _dialogue(record)
    if text is None:
        raise RecordRejected(RejectReason.bad_layout, "no field holds a dialogue with 'Human:' in front")
    return [conversation(split_dialogue(text), record, spec)]


def fits_text(record: dict[str, Any]) -> bool:
    """A document under one of the usual names."""
    return any(name in record and isinstance(record[name], _TEXT_OR_NULL) for name in TEXTS)


def build_text(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """One document."""
    del spec
    text: Any = None
    for name in TEXTS:
        text = record.get(name)
        if text is not None:
            break
    if text is not None and not isinstance(text, str):
        detail = f"the field {name!r} is {type(text).__name__}, not text"
        raise RecordRejected(RejectReason.bad_layout, detail)
    if not text:
        raise RecordRejected(RejectReason.empty_text, "the document is empty")
    return [Document(text)]


def fits_paragraphs(record: dict[str, Any]) -> bool:
    """An article with ``paragraphs``, each with a ``context``."""
    value = record.get("paragraphs")
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "context" in value[0]


def build_paragraphs(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """One document for each paragraph of an article."""
    del spec
    paragraphs = record.get("paragraphs")
    if not isinstance(paragraphs, list) or not paragraphs:
        raise RecordRejected(RejectReason.bad_layout, "no list under 'paragraphs'")
    texts = [paragraph.get("context") for paragraph in paragraphs if isinstance(paragraph, dict)]
    found = [text for text in texts if isinstance(text, str) and text]
    if len(found) < len(paragraphs):
        raise RecordRejected(RejectReason.bad_layout, f"{len(paragraphs) - len(found)} paragraphs without a context")
    return [Document(text) for text in found]
