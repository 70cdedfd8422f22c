"""Text corpora to tokens: ours, datatrove's tokenizer step, and `tokenizers` alone, on the same documents.

Ours reads JSON lines, encodes, proves, writes segments and masks, and commits
Parquet with receipts; datatrove reads JSON lines and writes ids; `tokenizers`
only encodes what lies in memory already.
"""

from __future__ import annotations

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
SIZE = 8_000_000
REPEATS = 2
REAL = ROOT.parent / "shared" / "data" / "text"
"""Real texts, used as well where they are."""


def main() -> None:
    """Every language through every tool; CPU seconds of one core."""
    results: dict[str, Any] = {}
    rows = []
    definition = _definition()
    for language, path in _sources().items():
        arguments = {"tokenizer": definition, "source": str(path)}
        cases = {
            "retok": lambda path=path: in_process("benchmarks.corpus:ours", {"source": str(path)}),
            "tokenizers": lambda a=arguments: _peer("tokenizers_encode", a),
            "datatrove": lambda a=arguments: _peer("datatrove_tokens", a),
        }
        found = alternate(cases, REPEATS)
        size = path.stat().st_size
        cost = {name: mid(runs, "cpu") for name, runs in found.items()}
        tokens = {name: runs[0]["tokens"] for name, runs in found.items()}
        results[language] = {
            "bytes": size,
            "cpu_seconds": cost,
            "tokens": tokens,
            "engine": found["retok"][0]["engine"],
            "times": {name: cost[name] / cost["retok"] for name in cost},
        }
        rates = [size / cost[name] / 1e6 for name in cases]
        rows.append(
            (
                language,
                *rates,
                *(cost[n] / cost["retok"] for n in ("tokenizers", "datatrove")),
                str(len(set(tokens.values())) == 1),
            )
        )
    show(
        "Text to tokens, one core: MB of JSONL a second, and how many times as fast as each",
        ["text", "retok", "tokenizers", "datatrove", "x tokenizers", "x datatrove", "same tokens"],
        rows,
        "retok writes masks, segments and receipts as well; tokenizers writes nothing",
    )
    save("corpus", results=results)


def ours(source: str) -> dict[str, Any]:
    """Read, encode and commit a file of documents in this process."""
    from benchmarks.runs import recipe_for
    from retok_dask import Tokenizer
    from retok_dask.completions import list_inputs, read_records
    from retok_dask.datasets import OutputFolder, UnitWriter
    from retok_dask.kernel import Kernel, UnitStats
    from retok_dask.types import Document

    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        recipe = recipe_for(source, str(Path(scratch, "out")), datasets=[{"input": source, "mode": "text"}])
        dataset = recipe.datasets[0]
        tokenizer = Tokenizer.load(recipe.tokenizer)
        kernel = Kernel(recipe, dataset, tokenizer, None)
        list(kernel.process_items([Document("load the engine")]))  # before the clock starts, as a worker does
        folder, total = OutputFolder(recipe.output), UnitStats()
        with measured(answer):
            for unit in list_inputs(recipe).units:
                with UnitWriter(folder, unit) as writer:
                    for batch in kernel.process(read_records(unit, dataset, recipe)):
                        total += batch.stats
                        writer.write(batch)
    return answer | {"tokens": total.tokens, "engine": tokenizer.engine, "seconds": dict(total.seconds)}


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
    found = {}
    for language in ("en", "code", "zh", "ja"):
        path = folder / f"{language}-{SIZE}.jsonl"
        if not path.exists():
            _write(path, documents(language, seed=1), SIZE)
        found[language] = path
    for name, language in (("pride_and_prejudice.txt", "en, a novel"), ("ja_wagahai.txt", "ja, a novel")):
        if (REAL / name).exists():
            path = folder / f"{name}.jsonl"
            _write(path, _paragraphs((REAL / name).read_text(encoding="utf-8-sig")), SIZE)
            found[language] = path
    return found


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
