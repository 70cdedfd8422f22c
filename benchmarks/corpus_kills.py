"""A generated corpus of 2 GB and more through `retok run`, with workers killed in the middle.

Checks at the end that every document is there once, that the accounting holds,
and that sampled rows have the reference's ids. Run by name only:
``python -m benchmarks.corpus_kills [GB] [KILLS]``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import orjson
import psutil

from benchmarks.corpus import documents
from benchmarks.harness import CACHE, ROOT, console, save, show
from benchmarks.runs import recipe_for
from retok_dask import Recipe, Tokenizer, open_dataset, validate

FOLDER = CACHE / "bench" / "corpus-large"
FILES = 8
LANGUAGES = ("en", "code", "zh", "ja", "de", "ru", "ar", "en")
SAMPLE = 200


def main(gigabytes: float = 2.1, kills: int = 6) -> None:
    """Generate, run with kills, check."""
    counts = _generate(int(gigabytes * 1e9))
    recipe = _recipe()
    shutil.rmtree(recipe.output, ignore_errors=True)
    started = perf_counter()
    killed, code = _run(recipe, kills)
    wall = perf_counter() - started
    found = _check(recipe, counts)
    size = sum(path.stat().st_size for path in FOLDER.glob("*.jsonl"))
    rows = [("documents", sum(counts.values())), ("GB", size / 1e9), ("workers killed", killed), ("seconds", wall)]
    rows += list(found.items())
    show("A large corpus with workers killed in the middle", ["", "value"], rows)
    save(
        "corpus_kills", bytes=size, documents=sum(counts.values()), killed=killed, seconds=wall, exit_code=code, **found
    )
    shutil.rmtree(recipe.output, ignore_errors=True)


def _generate(size: int) -> dict[str, int]:
    """Eight files of documents with ids; kept between runs. Returns documents a file."""
    known = FOLDER / "counts.json"
    if known.exists() and sum(path.stat().st_size for path in FOLDER.glob("*.jsonl")) >= size:
        return dict(orjson.loads(known.read_bytes()))
    FOLDER.mkdir(parents=True, exist_ok=True)
    console.print(f"generating {size / 1e9:.1f} GB in {FOLDER}, once")
    counts = {}
    for place, language in enumerate(LANGUAGES):
        path, number = FOLDER / f"{place}-{language}.jsonl", 0
        # a block of fresh documents, written with a serial number of its own as often as it takes
        block = [text for text, _ in zip(documents(language, seed=place), range(4000), strict=False)]
        with path.open("wb") as out:
            while out.tell() < size / FILES:
                out.writelines(
                    orjson.dumps({"id": f"{place}-{number + n}", "text": f"{number + n} {text}"}) + b"\n"
                    for n, text in enumerate(block)
                )
                number += len(block)
        counts[path.name] = number
    known.write_bytes(orjson.dumps(counts))
    return counts


def _recipe() -> Recipe:
    return recipe_for(
        str(FOLDER / "*.jsonl"),
        str(CACHE / "bench" / "corpus-large-out"),
        datasets=[{"input": str(FOLDER / "*.jsonl"), "mode": "text", "keep": ["id"]}],
        documents={"shuffle": True},
        units={"bytes": "64MiB"},
        cluster={"dashboard": None},
    )


def _run(recipe: Recipe, kills: int) -> tuple[int, int]:
    """The run as a process; a worker of it is killed at random moments."""
    path = FOLDER / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "retok_dask.cli", "run", str(path), "--progress", "lines"]
    rng, killed = random.Random(1), 0
    with (FOLDER / "run.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(ROOT)})
        receipts = Path(recipe.output, "_retok", "receipts")
        while process.poll() is None:
            sleep(rng.uniform(2, 6))
            if killed < kills and len(list(receipts.glob("*.json"))) > 2 * killed:
                killed += _kill_one(process.pid, rng)
    return killed, int(process.returncode)


def _kill_one(parent: int, rng: random.Random) -> int:
    try:
        children = psutil.Process(parent).children(recursive=True)
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if workers:
            rng.choice(workers).send_signal(signal.SIGKILL)
            return 1
    except psutil.Error:
        pass
    return 0


def _check(recipe: Recipe, counts: dict[str, int]) -> dict[str, Any]:
    data = open_dataset(recipe.output)
    seen: set[str] = set()
    rows = 0
    for batch in data.select(["id"]).batches():
        names = batch.column("id").to_pylist()
        rows += len(names)
        seen.update(names)
    assert rows == len(seen) == sum(counts.values()), (rows, len(seen), sum(counts.values()))
    report = validate(recipe.output)
    reference = Tokenizer.load(recipe.tokenizer, engine="reference")
    same = 0
    sample = data.sample(SAMPLE)
    texts = _texts({row["id"] for row in sample})
    for row in sample:
        own = row["input_ids"][:-1]
        wanted = reference._reference.backend.encode(texts[row["id"]], add_special_tokens=False).ids
        assert own.tolist() == wanted, row["id"]
        assert row["input_ids"][-1] == reference.eos_id
        same += 1
    total = data.manifest.total
    return {
        "units": len(data.units),
        "tokens": total.tokens,
        "rows with the reference's ids": same,
        "validate passed": str(report.passed),
        "fallback rows": total.fallback_rows,
    }


def _texts(wanted: set[str]) -> dict[str, str]:
    found = {}
    for path in sorted(FOLDER.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                name = line[7 : line.index(b'"', 7)].decode()
                if name in wanted:
                    found[name] = orjson.loads(line)["text"]
    return found


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, int), sys.argv[1:], strict=False)))
