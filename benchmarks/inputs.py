"""Inputs that the benchmarks generate: chats, agent trajectories, completions; the same seed, the same bytes.

English and code come from the documentation and the modules of the Python
that runs this, other languages from generated words with the frequencies of
real ones (Zipf), so that encoders meet both common and rare words. Every
record holds numbers and a name that no other one has.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Record = dict[str, Any]

# syllables (or characters) that words of a language are made of, blanks between words, and its full stop
SCRIPTS: dict[str, tuple[str, str, str]] = {
    "de": (
        "ver ge ung en er keit haus tag schul auf ab ein licht berg wasser zeit schön über groß rück wal spiel",
        " ",
        ". ",
    ),
    "es": ("ción mente la re con des ar er ado ida luz casa ña que sol mar ter pre so ble ti ma cor", " ", ". "),
    "ru": ("при по на ско ние ова тель сть вод лес дом руч кни го ми раз вы ост еще дня про ста", " ", ". "),
    "ar": ("ال كت با مد رس من في على قل وا سل ام حر ية ما نت شم عل بي تو", " ", ". "),
    "hi": ("का है की में से को पर ने यह वह जल घर दिन रात लोग काम बात साथ नया", " ", "। "),
    "zh": (
        "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长",
        "",
        "。",
    ),
    "ja": (
        "のにはをたがでてとしれさいるまなかもらこうりあくすきっみそんよつけめ日本人大学生国語時間水火木金土山川田中",
        "",
        "。",
    ),
}
SHARES = {"en": 0.55, "code": 0.2, "zh": 0.08, "de": 0.04, "es": 0.04, "ru": 0.03, "ja": 0.03, "ar": 0.015, "hi": 0.015}
WORDS = 6000
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys},
        },
    }
    for name, text, keys in (
        ("run_command", "Run a shell command in the working folder and give back what it prints.", ["command"]),
        ("read_file", "Read a text file, at most 200 lines at once.", ["path"]),
        ("write_file", "Write a text file, replacing what is there.", ["path", "text"]),
    )
]
SYSTEM = "You are a careful engineer. Work in small steps, run the tests, and say what you changed and why."


@cache
def pools() -> dict[str, list[str]]:
    """Pieces of about 300 to 900 characters in each language."""
    found = {"en": _english(), "code": _code()}
    found |= {name: _generated(name, *script) for name, script in SCRIPTS.items()}
    return found


def _english() -> list[str]:
    from pydoc_data.topics import topics

    prose = "\n".join(topics.values())
    paragraphs = [re.sub(r"\s+", " ", part).strip() for part in prose.split("\n\n")]
    return _joined([part for part in paragraphs if part.count(" ") > 12 and part[0].isalpha()], " ")


def _code() -> list[str]:
    library = Path(json.__file__).parents[1]
    names = (
        "argparse",
        "ast",
        "csv",
        "dataclasses",
        "difflib",
        "inspect",
        "pathlib",
        "statistics",
        "tarfile",
        "typing",
    )
    blocks: list[str] = []
    for name in names:
        blocks += (library / f"{name}.py").read_text(encoding="utf-8").split("\n\n")
    return [f"```python\n{piece}\n```" for piece in _joined(blocks, "\n\n")]


def _joined(parts: list[str], between: str) -> list[str]:
    """Neighbours put together until a piece has 300 characters."""
    pieces: list[str] = []
    held = ""
    for part in parts:
        held = f"{held}{between}{part}" if held else part
        if len(held) >= 300:
            pieces.append(held[:900])
            held = ""
    return pieces


def _generated(name: str, syllables: str, blank: str, stop: str) -> list[str]:
    rng = random.Random(name)
    parts = syllables.split() if " " in syllables else list(syllables)
    words = ["".join(rng.choices(parts, k=rng.choice((1, 2, 2, 3)))) for _ in range(WORDS)]
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    pieces = []
    for _ in range(600):
        sentences = []
        for _ in range(rng.randrange(4, 9)):
            chosen = rng.choices(words, cum_weights=weights, k=rng.randrange(6, 16))
            sentences.append(blank.join([chosen[0].capitalize(), *chosen[1:]]))
        pieces.append((stop.join(sentences) + stop).strip())
    return pieces


def text(rng: random.Random, language: str, size: int) -> str:
    """About `size` characters, paragraphs with a number and a name of their own between them."""
    pool = pools()[language]
    parts: list[str] = []
    length = 0
    while length < size:
        piece = pool[int(rng.random() * len(pool))]
        if length + len(piece) > size:
            piece = piece[: max(20, size - length)]
        parts += (piece, f"{rng.getrandbits(20)} {rng.getrandbits(40):x}")
        length += len(piece) + 20
    return "\n\n".join(parts)


def _language(rng: random.Random) -> str:
    return rng.choices(list(SHARES), list(SHARES.values()))[0]


def chat(rng: random.Random) -> Record:
    """4 to 8 messages, 1 to 8 KB; a third of them with reasoning."""
    language = _language(rng)
    messages: list[Record] = [{"role": "system", "content": SYSTEM}] if rng.random() < 0.3 else []
    pairs = rng.choice((2, 3, 4)) - bool(messages)
    share = rng.uniform(1000, 7000) / (max(pairs, 2) * 1.2)
    for _ in range(max(pairs, 2)):
        messages.append({"role": "user", "content": text(rng, language, int(share * 0.25))})
        messages.append({"role": "assistant", "content": text(rng, language, int(share))})
    if rng.random() < 0.33:
        messages[-1]["reasoning_content"] = text(rng, "en", int(share * 0.5))
    return {"messages": messages}


def agent(rng: random.Random, messages: int = 84, characters: int = 100_000) -> Record:
    """A trajectory: a task, then calls and their results in turn, and an answer; an even number of messages."""
    share = characters / messages
    out: list[Record] = [{"role": "user", "content": text(rng, "en", 800)}]
    for number in range((messages - 2) // 2):
        arguments = {"command": f"python -m pytest tests/test_{rng.getrandbits(24):x}.py"}
        if number % 3 == 0:
            arguments = {"path": f"src/module_{rng.getrandbits(24):x}.py", "text": text(rng, "code", int(share * 0.7))}
        call = {
            "id": f"call_{rng.getrandbits(32):08x}",
            "type": "function",
            "function": {
                "name": "write_file" if "text" in arguments else "run_command",
                "arguments": json.dumps(arguments, ensure_ascii=False),
            },
        }
        said = text(rng, "en", int(share * 0.3))
        thought = text(rng, "en", int(share * 0.3))
        out.append({"role": "assistant", "content": said, "reasoning_content": thought, "tool_calls": [call]})
        out.append({"role": "tool", "tool_call_id": call["id"], "content": text(rng, "code", int(share * 0.9))})
    out.append({"role": "assistant", "content": text(rng, "en", 600), "reasoning_content": text(rng, "en", 300)})
    return {"messages": out, "tools": json.dumps(TOOLS)}


def completion(rng: random.Random) -> Record:
    """A question and one long answer with reasoning: about 2,070 tokens, like the drafter's data."""
    language = _language(rng)
    scale = 1.0 if language in ("en", "code") else 0.45
    answer: Record = {"role": "assistant", "content": text(rng, language, int(rng.uniform(1000, 6950) * scale))}
    answer["reasoning_content"] = text(rng, "en", int(rng.uniform(620, 6450)))
    return {"messages": [{"role": "user", "content": text(rng, language, int(rng.uniform(125, 1120) * scale))}, answer]}


KINDS: dict[str, Callable[[random.Random], Record]] = {"chat": chat, "agent": agent, "completion": completion}


def lines(kind: str, seed: int = 0, **options: Any) -> Iterator[bytes]:
    """Endless JSON lines of one kind."""
    rng = random.Random(f"{kind}-{seed}")
    build = KINDS[kind]
    number = 0
    while True:
        record = {"id": f"{kind}-{seed}-{number}"} | build(rng, **options)
        yield orjson.dumps(record) + b"\n"
        number += 1


def write(path: Path, kind: str, size: int, seed: int = 0, **options: Any) -> Path:
    """A JSONL file of at least `size` bytes; kept if it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as out:
            held = 0
            for line in lines(kind, seed, **options):
                out.write(line)
                held += len(line)
                if held >= size:
                    break
        partial.rename(path)
    return path
