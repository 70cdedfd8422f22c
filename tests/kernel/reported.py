"""Real templates and tokenizers for the situations that people reported, whole: records in, ids and mask out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import assets
import loaded
from pipelines import pipeline

from retok_dask.single import Pipeline
from retok_dask.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GLM_MARKERS = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <arg_key> </arg_key> <arg_value> </arg_value> /nothink"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Gives the {name}.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]

TWO_THINKING = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "reasoning_content": "r1", "content": "a1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "reasoning_content": "r2", "content": "a2"},
]


@cache
def tokenizer(name: str) -> Tokenizer:
    """A real tokenizer by its name in `assets`; ``glm`` is Kimi's with the markers of GLM's template."""
    if name == "glm":
        spec = assets.kimi_spec()
        first = max(spec.special_tokens.values()) + 1
        more = {token: first + number for number, token in enumerate(GLM_MARKERS.split())}
        return Tokenizer.load(
            spec.model_copy(update={"special_tokens": spec.special_tokens | more}), engine="reference"
        )
    return loaded.tokenizer(name)


@cache
def template_text(name: str) -> str:
    """A public template by ``package/name``."""
    (path,) = (path for path in assets.template_files() if f"{path.parent.name}/{path.stem}" == name)
    return path.read_text(encoding="utf-8")


def real(template: str, vocabulary: str = "qwen3_6", **changes: Any) -> Pipeline:
    """A pipeline of a public template and a real tokenizer."""
    made = pipeline(template_text(template), **changes)
    made.__dict__["tokenizer"] = tokenizer(vocabulary)
    return made


@cache
def _reference(vocabulary: str) -> PreTrainedTokenizerFast:
    known = tokenizer(vocabulary)
    return loaded.reference(known.definition.json, **known.special_tokens_map)


def reference_ids(template: str, vocabulary: str, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    """What transformers makes of a conversation in one call."""
    return _reference(vocabulary).apply_chat_template(
        messages, chat_template=template_text(template), tokenize=True, return_dict=False, **more
    )


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """A record whose texts are said by user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], **more}


def calling(*names: str, **more: Any) -> dict[str, Any]:
    """An assistant message that calls functions."""
    calls = [
        {"id": f"call0000{n}", "type": "function", "function": {"name": name, "arguments": {"place": "Rome"}}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}
