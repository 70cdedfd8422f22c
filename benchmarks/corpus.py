"""Text corpora to tokens: ours, datatrove's tokenizer step, and `tokenizers` alone, on the same documents.

Ours reads JSON lines, encodes, proves, writes segments and masks, and commits
Parquet with receipts; datatrove reads JSON lines and writes ids; `tokenizers`
only encodes what lies in memory already.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks import inputs
from benchmarks.child import measured
from benchmarks.harness import CACHE, ROOT, alternate, console, in_process, mid, save, show

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = ("datatrove==0.10.1", "tokenizers==0.23.3", "orjson")
SIZE = 12_000_000
LARGE = 48_000_000
"""Ours encodes so much as well, where starting up counts less: a corpus is larger than what the peers can be given here."""

REPEATS = 2
LANGUAGES = ("en", "code", "zh", "ja")
REAL = ROOT.parent / "shared" / "data" / "text"
"""Real texts, used as well where they are."""


def main() -> None:
    """Every language through every tool; CPU seconds of one core."""
    sources = {language: str(path) for language, path in _sources().items()}
    larger = {_larger(language): str(_documents(language, LARGE)) for language in LANGUAGES}
    arguments = {"tokenizer": _definition(), "sources": sources}
    cases = {
        "retok": lambda: in_process("benchmarks.corpus:ours", {"sources": sources | larger}),
        "tokenizers": lambda: _peer("tokenizers_encode", arguments),
        "datatrove": lambda: _peer("datatrove_tokens", arguments),
    }
    runs = alternate(cases, REPEATS)
    results: dict[str, Any] = {"engine": runs["retok"][0]["engine"]}
    rows = []
    for language, path in sources.items():
        size = Path(path).stat().st_size
        cost = {name: mid([run[language] for run in found], "cpu") for name, found in runs.items()}
        tokens = {name: found[0][language]["tokens"] for name, found in runs.items()}
        results[language] = {"bytes": size, "cpu_seconds": cost, "tokens": tokens, "times": _times(cost)}
        rows.append(_row(language, results[language], same=len(set(tokens.values())) == 1))
        more = _larger(language)
        if more in larger:  # what the peers need for as many bytes is taken from the smaller file
            size = Path(larger[more]).stat().st_size
            cost = {name: seconds * size / results[language]["bytes"] for name, seconds in cost.items()}
            cost["retok"] = mid([run[more] for run in runs["retok"]], "cpu")
            results[more] = {"bytes": size, "cpu_seconds": cost, "times": _times(cost), "peers_measured_on": language}
            rows.append(_row(more, results[more]))
    show(
        "Text to tokens, one core: MB of JSONL a second, and how many times as fast as each",
        ["text", "retok", "tokenizers", "datatrove", "x tokenizers", "x datatrove", "same tokens"],
        rows,
        "retok writes masks, segments and receipts as well; tokenizers writes nothing",
    )
    save("corpus", results=results)


def _larger(language: str) -> str:
    return f"{language}, {LARGE // 10**6} MB of it"


def _times(cost: dict[str, float]) -> dict[str, float]:
    return {name: seconds / cost["retok"] for name, seconds in cost.items()}


def _row(text: str, found: dict[str, Any], *, same: bool | None = None) -> tuple[Any, ...]:
    measured = ("retok",) if same is None else tuple(found["cpu_seconds"])
    rates = [found["bytes"] / found["cpu_seconds"][name] / 1e6 if name in measured else "" for name in found["times"]]
    return (text, *rates, found["times"]["tokenizers"], found["times"]["datatrove"], "" if same is None else str(same))


def ours(sources: dict[str, str]) -> dict[str, Any]:
    """Read, encode and commit each file of documents in this process; the tokenizer is loaded before the clock starts."""
    from benchmarks.runs import recipe_for
    from retok_dask import Tokenizer
    from retok_dask.types import Kind, Rendered

    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = None
        for place, (language, source) in enumerate(sources.items()):
            out = str(Path(scratch, str(place)))
            recipe = recipe_for(source, out, datasets=[{"input": source, "mode": "text"}])
            if tokenizer is None:
                tokenizer = Tokenizer.load(recipe.tokenizer)
                tokenizer.encode([Rendered("load the engine", [0], [int(Kind.content)], [-1])])
                answer["engine"] = tokenizer.engine
                # what a worker does when it starts: keep the collector off what stays
                gc.collect()
                gc.freeze()
            answer[language] = _commit(recipe, tokenizer)
    return answer


def _commit(recipe: Any, tokenizer: Any) -> dict[str, Any]:
    from retok_dask.completions import list_inputs, read_records
    from retok_dask.datasets import OutputFolder, UnitWriter
    from retok_dask.kernel import Kernel, UnitStats

    answer: dict[str, Any] = {}
    dataset = recipe.datasets[0]
    kernel = Kernel(recipe, dataset, tokenizer, None)
    folder, total = OutputFolder(recipe.output), UnitStats()
    with measured(answer):
        for unit in list_inputs(recipe).units:
            with UnitWriter(folder, unit) as writer:
                for batch in kernel.process(read_records(unit, dataset, recipe)):
                    total += batch.stats
                    writer.write(batch)
    return answer | {"tokens": total.tokens}


def _peer(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return in_process(f"benchmarks.peers.corpora:{function}", arguments, python=peers_python())


def peers_python() -> str:
    """The Python of an environment with datatrove, made on first use."""
    folder = CACHE / "corpus-env"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists() or ready.read_text() != " ".join(PEERS):
        console.print(f"making the peers' environment in {folder}, once")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS], check=True)
        ready.write_text(" ".join(PEERS))
    return str(python)


def _definition() -> str:
    from benchmarks.peers.environment import tokenizer_folder

    return str(Path(tokenizer_folder()) / "tokenizer.json")


def _sources() -> dict[str, Path]:
    folder = CACHE / "bench" / "corpus"
    found = {language: _documents(language, SIZE) for language in LANGUAGES}
    for name, language in (("pride_and_prejudice.txt", "en, a novel"), ("ja_wagahai.txt", "ja, a novel")):
        if (REAL / name).exists():
            path = folder / f"{name}.jsonl"
            _write(path, _paragraphs((REAL / name).read_text(encoding="utf-8-sig")), SIZE)
            found[language] = path
    return found


def _documents(language: str, size: int) -> Path:
    path = CACHE / "bench" / "corpus" / f"{language}-{size}.jsonl"
    if not path.exists():
        _write(path, documents(language, seed=1), size)
    return path


def documents(language: str, seed: int) -> Iterator[str]:
    """Endless documents of 1 to 8 KB; no sentence of the generated languages comes twice."""
    rng = random.Random(f"{language}-{seed}")
    if language in ("en", "code"):
        while True:
            yield inputs.text(rng, language, rng.randrange(1000, 8000))
    syllables, blank, stop = inputs.SCRIPTS[language]
    parts = syllables.split() if " " in syllables else list(syllables)
    words = ["".join(rng.choices(parts, k=rng.choice((1, 2, 2, 3)))) for _ in range(inputs.WORDS)]
    weights = list(accumulate(1 / rank for rank in range(1, inputs.WORDS + 1)))
    while True:
        count = rng.randrange(20, 120)
        yield "".join(
            blank.join(rng.choices(words, cum_weights=weights, k=rng.randrange(5, 18))) + stop for _ in range(count)
        )


def _paragraphs(text: str) -> Iterator[str]:
    parts = text.split("\n\n") if text.count("\n\n") > 100 else text.splitlines()
    for start in range(0, len(parts), 20):
        yield "\n\n".join(parts[start : start + 20])


def _write(path: Path, texts: Iterator[str], size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as out:
        for number, text in enumerate(texts):
            out.write(orjson.dumps({"id": str(number), "text": text}) + b"\n")
            if out.tell() >= size:
                break
    partial.rename(path)


if __name__ == "__main__":
    main()
