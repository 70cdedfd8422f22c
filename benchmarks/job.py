"""The drafter's job: 902,087 completions in 1,805 files, 1.87 billion tokens, at full scale or a part of it."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import CACHE, in_process, save, show
from benchmarks.inputs import lines

if TYPE_CHECKING:
    from pathlib import Path

COMPLETIONS, FILES = 902_087, 1_805
PEER = "another script's time for this job, by its author: 6.5 minutes with 128 processes"


def main(part: int = 50) -> None:
    """Generate one part in so many of the job, run it on all cores, and say what came of it."""
    folder = CACHE / "bench" / f"job-{part}"
    started = perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = max(1, FILES // part)
    total = COMPLETIONS // part
    counts = [total // files + (number < total % files) for number in range(files)]
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(_write, [folder] * files, range(files), counts))
    generated = perf_counter() - started
    try:
        found = in_process("benchmarks.runs:whole_run", {"source": f"{folder}/*.jsonl"})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    del found["commits"]
    found |= {"generated_seconds": generated, "input_bytes": sum(sizes), "files": files, "part": part}
    found["trained_share"] = found["trained"] / found["tokens"]
    rows = [
        ["completions", found["records"]],
        ["files", files],
        ["input MB", sum(sizes) / 1e6],
        ["tokens, million", found["tokens"] / 1e6],
        ["seconds, start and manifest included", found["wall"]],
        ["million tokens a second, all cores", found["tokens_per_second"] / 1e6],
        ["trained share", found["trained_share"]],
        ["output MB", found["written_bytes"] / 1e6],
        ["worker peak MiB", found["worker_peak_mib"]],
    ]
    show("The drafter's job" + (f", one part in {part}" if part > 1 else ", in full"), ["", ""], rows, PEER)
    save("job_full" if part == 1 else "job", found=found, peer=PEER)


def full() -> None:
    """The whole job; takes about 12 GB of disk while it runs."""
    main(part=1)


def _write(folder: Path, number: int, count: int) -> int:
    data = b"".join(islice(lines("completion", seed=number), count))
    (folder / f"{number:05d}.jsonl").write_bytes(data)
    return len(data)
