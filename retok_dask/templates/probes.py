"""Small conversations that a template is asked to render before it is trusted.

Every text in a probe is unique, so that where it comes out is beyond doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe_weather",
            "description": "Probe description one.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Probe city."},
                    "days": {"type": "integer", "description": "Probe days."},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "probe_clock",
            "description": "Probe description two.",
            "parameters": {"type": "object", "properties": {"zone": {"type": "string", "description": "Probe zone."}}},
        },
    },
]


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe conversation.

    Attributes:
        name: what it shows.
        messages: in the form that :class:`~retok_dask.types.Conversation` has.
        tools: function schemas or None.
        unique: whether each text in it is unique; else only the whole text is compared.
    """

    name: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    unique: bool = True


def system(tag: str) -> Message:
    """A system message."""
    return {"role": "system", "content": f"Sys{tag} rules of the probe."}


def user(tag: str) -> Message:
    """A user message."""
    return {"role": "user", "content": f"Usr{tag} asks something."}


def answer(tag: str, *, reasoning: bool = False) -> Message:
    """An answer, with reasoning if asked."""
    message: Message = {"role": "assistant", "content": f"Ans{tag} says something."}
    return {**message, "reasoning_content": f"Rsn{tag} ponders something."} if reasoning else message


def _call_id(tag: str, serial: int) -> str:
    """Nine letters and digits, as some templates demand."""
    return f"call{ord(tag[0]):04d}{serial}"


def call(tag: str, name: str = "probe_weather", key: str = "city", serial: int = 1) -> dict[str, Any]:
    """One tool call; its argument's text is unique."""
    return {
        "id": _call_id(tag, serial),
        "type": "function",
        "function": {"name": name, "arguments": {key: f"Arg{tag}"}},
    }


def calls(tag: str, *, content: str = "", reasoning: bool = False, count: int = 1) -> Message:
    """An assistant message with tool calls."""
    made = [call(f"{tag}x", serial=1), call(f"{tag}y", "probe_clock", "zone", serial=2)][:count]
    message: Message = {"role": "assistant", "content": content, "tool_calls": made}
    return {**message, "reasoning_content": f"Rsn{tag} ponders something."} if reasoning else message


def _typed_call(tag: str) -> Message:
    """A call whose arguments are of every JSON type but numbers with a point."""
    message = calls(tag)
    message["tool_calls"][0]["function"]["arguments"] |= {
        "yes": True,
        "none": None,
        "count": 3,
        "list": [1, "two", False, None],
        "nested": {"key": "value", "deep": {"n": 1, "é": "<&>'\"\\ \n"}},
        "empty": {},
        "text": 'line\nnext "quoted" <b>',
    }
    return message


def _typed_tools() -> list[dict[str, Any]]:
    """Schemas with what real ones hold beside plain types."""
    parameters = {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a", "description": "Probe <kind> & 'more'."},
            "many": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "default": False}}},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "both": {"type": ["string", "null"]},
        },
        "required": ["kind", "many"],
        "additionalProperties": False,
    }
    function = {"name": "probe_typed", "description": "Probe typed.", "parameters": parameters, "strict": True}
    return [*TOOLS, {"type": "function", "function": function}]


def result(tag: str, of: str, serial: int = 1, name: str = "probe_weather") -> Message:
    """The result of a call of the message with the tag `of`."""
    return {"role": "tool", "content": f"Res{tag} found.", "tool_call_id": _call_id(of, serial), "name": name}


def probes() -> list[Probe]:
    """The shapes of conversations that data sets hold."""
    two = [user("a"), answer("b"), user("c"), answer("d")]
    thinking = [user("a"), answer("b", reasoning=True), user("c"), answer("d", reasoning=True)]
    one_call = [user("a"), calls("b"), result("c", "b"), answer("d")]
    parallel = [
        user("a"),
        calls("b", count=2),
        result("c", "b"),
        result("d", "b", 2, "probe_clock"),
        answer("e"),
        user("f"),
        answer("g"),
    ]
    agent = [
        system("s"),
        user("a"),
        calls("b", reasoning=True),
        result("c", "b"),
        calls("d", content="Ansd looks again.", reasoning=True),
        result("e", "d"),
        answer("f", reasoning=True),
        user("g"),
        answer("h", reasoning=True),
    ]
    return [
        Probe("plain", [user("a"), answer("b")]),
        Probe("turns", two),
        Probe("system", [system("s"), *two]),
        Probe("long", [user("a"), answer("b"), user("c"), answer("d"), user("e"), answer("f"), user("g"), answer("h")]),
        Probe("reasoning", thinking),
        Probe("some_reasoning", [user("a"), answer("b"), user("c"), answer("d", reasoning=True)]),
        Probe("early_reasoning", [user("a"), answer("b", reasoning=True), user("c"), answer("d")]),
        Probe("call", one_call, TOOLS),
        Probe("call_without_tools", one_call),
        Probe("call_with_text", [user("a"), calls("b", content="Ansb looks."), result("c", "b"), answer("d")], TOOLS),
        Probe(
            "call_with_reasoning",
            [user("a"), calls("b", reasoning=True), result("c", "b"), answer("d", reasoning=True)],
            TOOLS,
        ),
        Probe("parallel", parallel, TOOLS),
        Probe("agent", agent, TOOLS),
        Probe("values", [user("a"), _typed_call("b"), result("c", "b"), answer("d")], _typed_tools()),
        Probe("system_tools", [system("s"), user("a"), answer("b")], TOOLS),
        Probe("tools", [user("a"), answer("b")], TOOLS),
        Probe("ends_in_call", [user("a"), calls("b")], TOOLS),
        Probe("ends_in_user", [user("a"), answer("b"), user("c")]),
        Probe("ends_in_tool", [user("a"), calls("b"), result("c", "b")], TOOLS),
        Probe("empty_answer", [user("a"), {"role": "assistant", "content": ""}, user("c"), answer("d")]),
        Probe("repeated", [user("a"), answer("b"), user("a"), answer("b")], TOOLS, unique=False),
        Probe("two_answers", [user("a"), answer("b"), answer("c")]),
        Probe("two_users", [user("a"), user("b"), answer("c")]),
        Probe("late_system", [user("a"), answer("b"), system("c"), user("d"), answer("e")]),
        Probe("answer_first", [answer("a"), user("b"), answer("c")]),
        Probe("developer", [{"role": "developer", "content": "Deva rules."}, user("b"), answer("c")]),
        Probe(  # more of them than templates write before an answer
            "newlines",
            [user("a"), {"role": "assistant", "content": "\n\n\nAnsb between lines.\n"}, user("c"), answer("d")],
        ),
    ]
