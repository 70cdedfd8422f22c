"""Loading templates for the tests of this room, with a stand-in for their tokenizer's facts."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import assets

from retok_dask.recipe import Recipe, TemplateSpec
from retok_dask.templates import ChatTemplate
from retok_dask.templates.program import Program
from retok_dask.types import Conversation, Kind, Rendered

DATE = dt.date(2026, 3, 4)
TRAINED = {"reasoning", "content", "tool_call", "stop"}

MARKERS = re.compile(
    r"<\|[^|<>\n ]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|<(?:start|end)_of_[a-z]+>|<\|[a-z_]{1,20}>|<[a-z_]{1,20}\|>"
    r"|\[/?[A-Z_]{2,30}\]|\[\|[a-z]+\|\]|<SPECIAL_\d+>|</?(?:think|tool_call|tool_response|s|sep|assistant|user)>"
    r"|\[e~\[|\]~!?b\]?|<(?:beginning|end)_of_[a-z]+>|<end_of_utterance>|</?seed:[a-z_]+>"
)


@dataclass
class Facts:
    """What a template needs to know of a tokenizer."""

    chat_templates: str | dict[str, str] | None
    special_tokens_map: dict[str, str] = field(default_factory=lambda: {"bos_token": "<BOS>", "eos_token": "<EOS>"})
    added_tokens: dict[str, int] = field(default_factory=dict)


def facts_of(text: str) -> Facts:
    """A tokenizer whose added tokens are the markers that a template's text holds."""
    names = dict.fromkeys(["<BOS>", "<EOS>", *MARKERS.findall(text)])
    return Facts(text, added_tokens={name: number for number, name in enumerate(names)})


def recipe(**settings: Any) -> Recipe:
    return Recipe.from_dict({"tokenizer": "t", "output": "o", "datasets": [{"input": "x"}], **settings})


def load(text: str, spec: dict[str, Any] | None = None, tokenizer: Any = None, **settings: Any) -> ChatTemplate:
    return ChatTemplate.load(
        TemplateSpec(**(spec or {})), tokenizer=tokenizer or facts_of(text), recipe=recipe(**settings), date=DATE
    )


@cache
def public_texts() -> dict[str, str]:
    """All public templates by ``package/name``."""
    return {f"{path.parent.name}/{path.stem}": path.read_text(encoding="utf-8") for path in assets.template_files()}


# what a template asks for beside messages and tools
KWARGS: dict[str, dict[str, Any]] = {
    "llama-cpp-python/fireworks-ai-llama-3-firefunction-v2": {"functions": "[]", "datetime": "2026-03-04"},
}


@cache
def public(name: str, **settings: Any) -> ChatTemplate:
    """A public template, loaded once."""
    spec = {"kwargs": KWARGS[name]} if name in KWARGS else None
    return load(public_texts()[name], spec, **settings)


def unchecked(template: ChatTemplate) -> ChatTemplate:
    """The template as it is far into a run, when rows are no longer compared one by one."""
    for program in template._programs.values():
        assert isinstance(program, Program)
        program.rows = max(program.rows, 1000 * 512)
    return template


def chat(*messages: tuple[str, str] | dict[str, Any], tools: Any = None, **more: Any) -> Conversation:
    made = [
        message if isinstance(message, dict) else dict(zip(("role", "content"), message, strict=True))
        for message in messages
    ]
    return Conversation(made, tools, **more)


def spans(row: Rendered) -> list[tuple[str, int, str]]:
    """(kind, message, text) of each span."""
    ends = [*row.starts[1:], len(row.text)]
    return [
        (Kind(kind).name, owner, row.text[start:end])
        for start, end, kind, owner in zip(row.starts, ends, row.kinds, row.messages, strict=True)
    ]


def check_cover(row: Rendered) -> None:
    """Spans cover the text once, in order, none empty."""
    assert len(row.starts) == len(row.kinds) == len(row.messages)
    if row.text:
        assert row.starts[0] == 0
    assert all(one < other for one, other in zip(row.starts, [*row.starts[1:], len(row.text)], strict=True))


def trained(row: Rendered) -> list[str]:
    """Trained texts under the default policy, neighbours of one message joined."""
    found: list[tuple[int, int, str]] = []
    for position, (kind, owner, text) in enumerate(spans(row)):
        if kind in TRAINED:
            if found and found[-1][0] == owner and found[-1][1] == position - 1:
                found[-1] = (owner, position, found[-1][2] + text)
            else:
                found.append((owner, position, text))
    return [text for _, _, text in found]


def of_kind(row: Rendered, kind: str) -> list[str]:
    return [text for name, _, text in spans(row) if name == kind]
