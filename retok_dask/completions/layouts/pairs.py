"""Two fields that are a question and its answer, under the many names that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import conversation, find_messages
from retok_dask.completions.layouts.texts import is_dialogue_text, split_dialogue
from retok_dask.types import Conversation, RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

COMPLETIONS = ("completion", "response", "output", "answer", "generation", "target")
QUESTIONS = ("question", "query", "problem", "input")
ANSWERS = ("answer", "response", "solution", "output", "completion", "generated_solution")


def first_of(record: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of some names that a record has."""
    return next((name for name in names if name in record), None)


def fits_completion(record: dict[str, Any]) -> bool:
    """``prompt`` with one of the names of its completion."""
    return isinstance(record.get("prompt"), str | list) and first_of(record, COMPLETIONS) is not None


def build_completion(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """Prompt and completion, each a text or a list of messages.

    Where the prompt holds assistant messages, they carry the flag False: a
    prompt is not trained, whatever its roles.
    """
    prompt = as_messages(record.get("prompt"), "user", "prompt")
    completion = as_messages(record.get(first_of(record, COMPLETIONS) or "completion"), "assistant", "completion")
    item = conversation([*prompt, *completion], record, spec)
    before = len(item.messages) - len(completion)
    if any(message["role"] == "assistant" for message in item.messages[:before]):
        after = item.flags[before:] or [None] * len(completion)
        item.flags = [*([False] * before), *after]
    return [item]


def as_messages(value: Any, role: str, name: str) -> list[dict[str, Any]]:
    """A text as one message of a role; a list of messages, or a single one, as it is."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list):
        return value
    detail = f"the {name} is {'missing' if value is None else type(value).__name__}, not text or messages"
    raise RecordRejected(RejectReason.bad_layout, detail)


def _text(value: Any, name: str, *, empty: bool = True) -> str:
    if value is None and empty:
        return ""
    if not isinstance(value, str):
        detail = f"the field {name!r} is {'missing' if value is None else type(value).__name__}, not text"
        raise RecordRejected(RejectReason.bad_layout, detail)
    return value


def fits_alpaca(record: dict[str, Any]) -> bool:
    """``instruction`` with ``output`` or ``response``."""
    return "instruction" in record and first_of(record, ("output", "response")) is not None


def build_alpaca(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """Instruction, a newline and the input if there is one; earlier exchanges under ``history``."""
    messages: list[Any] = []
    history = record.get("history") or []
    if not isinstance(history, list):
        raise RecordRejected(RejectReason.bad_layout, "history is no list of pairs")
    for pair in history:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise RecordRejected(RejectReason.bad_layout, "history holds something else than pairs")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    instruction = _text(record.get("instruction"), "instruction", empty=False)
    extra = _text(record.get("input"), "input")
    messages.append({"role": "user", "content": f"{instruction}\n{extra}" if extra else instruction})
    if spec.mode != "prompts":
        name = first_of(record, ("output", "response")) or "output"
        messages.append({"role": "assistant", "content": _text(record.get(name), name, empty=False)})
    return [conversation(messages, record, spec)]


def fits_question(record: dict[str, Any]) -> bool:
    """A question and its answer, both as text."""
    question = first_of(record, QUESTIONS)
    return question is not None and isinstance(record[question], str) and first_of(record, ANSWERS) is not None


def build_question(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """One user message, one assistant message."""
    question = first_of(record, QUESTIONS) or "question"
    answer = first_of(record, ANSWERS) or "answer"
    asked = {"role": "user", "content": _text(record.get(question), question, empty=False)}
    if spec.mode == "prompts":
        return [conversation([asked], record, spec)]
    said = {"role": "assistant", "content": _text(record.get(answer), answer, empty=False)}
    return [conversation([asked, said], record, spec)]


def fits_prompt(record: dict[str, Any]) -> bool:
    """A prompt alone: a text, messages, or several lists of messages."""
    name = first_of(record, ("prompt", "question", "instruction", "query", "problem"))
    return name is not None and isinstance(record[name], str | list)


def build_prompt(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """The prompt alone; several lists of messages (turns without answers) are joined in order."""
    name = first_of(record, ("prompt", "question", "instruction", "query", "problem")) or "prompt"
    value = record.get(name)
    joined = 0
    if isinstance(value, list) and value and all(isinstance(turn, list) for turn in value):
        joined = len(value)
        value = [message for turn in value for message in turn]
    item = conversation(as_messages(value, "user", name), record, spec)
    if joined > 1:
        item.counts["turns_joined"] = joined
    return [item]


def fits_preference(record: dict[str, Any]) -> bool:
    """``chosen`` and ``rejected``."""
    return record.get("chosen") is not None and record.get("rejected") is not None


def build_preference(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """The preferred side of a pair, the other one, or both: see ``DatasetSpec.prefer``."""
    sides = ["chosen", "rejected"] if spec.prefer == "both" else [spec.prefer]
    if spec.mode == "prompts":
        sides = sides[:1]
    return [_side(record, record.get(side), spec) for side in sides]


def _side(record: dict[str, Any], value: Any, spec: DatasetSpec) -> Conversation:
    if isinstance(value, str) and is_dialogue_text(value):
        return conversation(split_dialogue(value), record, spec)
    answer = as_messages(value, "assistant", "side of the pair")
    first = answer[0] if answer and isinstance(answer[0], dict) else {}
    if (first.get("role") or first.get("from")) in ("user", "human", "system"):
        return conversation(answer, record, spec)
    before: Any = find_messages(record)[0] or record.get("prompt")
    if before is None:
        name = first_of(record, QUESTIONS) or "instruction"
        before = record.get(name)
    return conversation([*as_messages(before, "user", "prompt"), *answer], record, spec)
