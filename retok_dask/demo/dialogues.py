"""Conversations of the demo: each builder makes one record from a random generator.

A record is an OpenAI ``messages`` row with an ``id``, a ``language``, a
``topic``, and ``tools`` where the assistant may call some.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retok_dask.demo.phrases import CITIES, EMOJI_LINES, LANGUAGES, SKIES, SNIPPETS, SYSTEM_PROMPTS, Language

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Message = dict[str, Any]
DatasetRecord = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Temperature and sky of a city right now.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name in any script."},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "convert_currency",
            "description": "An amount of money at today's rate.",
            "parameters": {
                "type": "object",
                "properties": {
                    "amount": {"type": "number"},
                    "source": {"type": "string"},
                    "target": {"type": "string"},
                },
                "required": ["amount", "source", "target"],
            },
        },
    },
]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, reasoning: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


def _arithmetic(rng: random.Random, language: Language, reasoned: bool) -> list[Message]:
    first, second = rng.randrange(2, 10**5), rng.randrange(2, 999)
    op = rng.choice("+-×")
    result = {"+": first + second, "-": first - second, "×": first * second}[op]
    tens = second - second % 10
    partial = {"+": first + tens, "-": first - tens, "×": first * tens}[op]
    lines = [language.step.format(expr=f"{first} {op} {tens}", value=partial)]
    if op == "×":
        lines.append(language.step.format(expr=f"{first} × {second % 10}", value=first * (second % 10)))
        lines.append(language.step.format(expr=f"{partial} + {first * (second % 10)}", value=result))
    else:
        lines.append(language.step.format(expr=f"{partial} {op} {second % 10}", value=result))
    lines *= rng.choice((1, 1, 1, 2, 6))
    question = language.ask_sum.format(a=first, op=op, b=second)
    answer = language.say_sum.format(a=first, op=op, b=second, result=result)
    return [_user(question), _assistant(answer, "\n".join(lines) if reasoned else None)]


def _advice(rng: random.Random, language: Language, reasoned: bool) -> list[Message]:
    topic = rng.choice(sorted(language.topics))
    sentences = list(language.topics[topic])
    rng.shuffle(sentences)
    messages = [_user(language.ask_advice.format(topic=topic))]
    reasoning = language.think_advice.format(topic=topic) if reasoned else None
    messages.append(_assistant(_listed(rng, sentences[: rng.randrange(2, 5)]), reasoning))
    for sentence in sentences[: rng.randrange(3)]:
        messages.append(_user(rng.choice(language.thanks)))
        again = language.think_advice.format(topic=topic) if reasoned and rng.random() < 0.6 else None
        messages.append(_assistant(sentence, again))
    return messages


def _listed(rng: random.Random, sentences: list[str]) -> str:
    style = rng.randrange(3)
    if style == 0:
        return " ".join(sentences)
    if style == 1:
        return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1))
    return "\n\n".join(sentences) + "  "


def _translation(rng: random.Random, language: Language, reasoned: bool) -> list[Message]:
    other = rng.choice([each for each in LANGUAGES if each is not language])
    index = rng.randrange(len(language.phrases))
    question = language.ask_translation.format(language=other.name, phrase=language.phrases[index])
    reasoning = f"{language.phrases[index]} → {other.code}" if reasoned else None
    return [_user(question), _assistant(other.phrases[index], reasoning)]


def _code(rng: random.Random, _language: Language, reasoned: bool) -> list[Message]:
    name, task, thought, code = rng.choice(SNIPPETS)
    answer = f"```{name}\n{code}\n```"
    messages = [_user(f"Write {task} in {name}."), _assistant(answer, thought if reasoned else None)]
    if rng.random() < 0.3:
        messages += [_user("Explain the idea in one sentence."), _assistant(thought, "" if reasoned else None)]
    return messages


_PIECES: tuple[Callable[[random.Random, Language, bool], list[Message]], ...] = (
    _arithmetic,
    _advice,
    _translation,
    _code,
)


def chat(rng: random.Random) -> DatasetRecord:
    """A conversation without reasoning, one to five pieces long, perhaps with a system message."""
    language = rng.choice(LANGUAGES)
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS[:2])})
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        messages += rng.choice(_PIECES)(rng, language, False)
    if rng.random() < 0.15:
        messages += [
            _user(rng.choice(EMOJI_LINES)),
            _assistant(rng.choice(("😊", " ☕ ", "👋🏾 " + language.phrases[1]))),
        ]
    if rng.random() < 0.01:
        messages[-2]["content"] += " What does <|im_end|> mean, and </think>?"
    return {"messages": messages, "language": language.code, "topic": "chat"}


def reasoning(rng: random.Random) -> DatasetRecord:
    """A conversation whose assistant thinks first; some of it long."""
    language = rng.choice(LANGUAGES)
    messages: list[Message] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        messages += rng.choice(_PIECES)(rng, language, True)
    if rng.random() < 0.02:
        steps = [language.step.format(expr=f"{n} × {n}", value=n * n) for n in range(rng.randrange(200, 600))]
        messages[-1]["reasoning_content"] = "\n".join(steps)
    return {"messages": messages, "language": language.code, "topic": "reasoning"}


def _call(rng: random.Random, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": f"call_{rng.randrange(16**8):08x}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def _result(call: dict[str, Any], value: dict[str, Any]) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(value, ensure_ascii=False)}


def _weather(rng: random.Random, language: Language) -> list[Message]:
    cities = rng.sample(CITIES, rng.choice((1, 1, 2)))
    readings = {city: (rng.randrange(-15, 40), rng.choice(SKIES)) for city in cities}
    calls = [_call(rng, "get_weather", {"city": city, "unit": "celsius"}) for city in cities]
    question = (
        language.ask_weather.format(city=cities[0])
        if len(cities) == 1
        else language.ask_two.format(first=cities[0], second=cities[1])
    )
    asking = _assistant(rng.choice(("", "", "🔎")), language.think_advice.format(topic=", ".join(cities)))
    asking["tool_calls"] = calls
    results = [
        _result(call, {"city": city, "degrees": readings[city][0], "sky": readings[city][1]})
        for call, city in zip(calls, cities, strict=True)
    ]
    said = [language.say_weather.format(city=c, degrees=d, sky=s) for c, (d, s) in readings.items()]
    return [_user(question), asking, *results, _assistant(" ".join(said), "" if rng.random() < 0.3 else said[0])]


def _currency(rng: random.Random, _language: Language) -> list[Message]:
    amount, rate = rng.randrange(5, 5000), rng.randrange(50, 200) / 100
    source, target = rng.sample(("EUR", "JPY", "BRL", "EGP", "CHF"), 2)
    call = _call(rng, "convert_currency", {"amount": amount, "source": source, "target": target})
    asking: Message = {"role": "assistant", "content": None, "reasoning_content": f"{source} → {target}?"}
    asking["tool_calls"] = [call]
    worth = round(amount * rate, 2)
    return [
        _user(f"How much are {amount} {source} in {target}?"),
        asking,
        _result(call, {"amount": worth, "currency": target, "rate": rate}),
        _assistant(f"{amount} {source} = {worth} {target} (rate {rate}).", f"{amount} × {rate} = {worth}"),
    ]


def tools(rng: random.Random) -> DatasetRecord:
    """A conversation with tools: single and parallel calls, results, and an answer for each question."""
    language = rng.choice(LANGUAGES)
    messages: list[Message] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": SYSTEM_PROMPTS[2]})
    for _ in range(rng.choice((1, 1, 2, 3))):
        messages += rng.choice((_weather, _weather, _currency))(rng, language)
    if rng.random() < 0.2:
        messages += _arithmetic(rng, language, reasoned=True)
    return {"messages": messages, "tools": TOOLS, "language": language.code, "topic": "tools"}
