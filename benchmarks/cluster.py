"""Runs on a local cluster: one and two workers, many units, memory, too many workers, the start."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.harness import CACHE, alternate, console, in_process, save, show
from benchmarks.inputs import write
from retok_dask.cluster.resources import usable_cores, usable_memory
from retok_dask.demo import qwen_tokenizer_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = CACHE / "bench"


def _run(source: str, **options: Any) -> dict[str, Any]:
    found = in_process("benchmarks.runs:whole_run", {"source": source, **options})
    if found["failed"] or found["samples"] < found["records"]:
        msg = f"{found['failed']} units failed, {found['samples']} samples of {found['records']} records"
        raise RuntimeError(msg)
    return found


def workers(size: int = 256_000_000, units: str = "8MiB", repeats: int = 2) -> None:
    """One worker, two, and so on up to all cores; and as many processes that know nothing of each other: what the machine itself allows.

    Tokens a second while all are at work: from when each has committed a unit
    until the first finds none left.
    """
    source = str(write(FOLDER / f"completion-{size}.jsonl", "completion", size))
    given = {"source": source, "units": {"bytes": units}}
    counts = [1 << power for power in range(max(len(os.sched_getaffinity(0)), 2).bit_length())]
    cases = {str(count): partial(_run, workers=count, **given) for count in counts}
    cases |= {f"{count} without Dask": partial(_beside, count, given) for count in counts}
    runs = alternate(cases, repeats)
    speeds = {name: max(_busy_speed(int(name.split()[0]), run) for run in tries) for name, tries in runs.items()}
    times = {name: speed / speeds["1" + name.removeprefix(name.split()[0])] for name, speed in speeds.items()}
    found = {
        "tokens_per_second": speeds,
        "times_one": times,
        "worker_cpu_seconds": {str(count): [run["worker_cpu"] for run in runs[str(count)]] for count in counts},
        "idle_cores_needed": counts[-1],
        "load_before": os.getloadavg()[0],
    }
    show(
        "Workers",
        ["worker processes", "M tokens/s", "times one"],
        [[name, speed / 1e6, times[name]] for name, speed in speeds.items()],
        f"two workers are {times['2']:.2f} times one, two processes without Dask {times['2 without Dask']:.2f} times; "
        "as many cores must be free for this",
    )
    save("workers", input_bytes=size, unit_bytes=units, repeats=repeats, found=found)


def _beside(count: int, given: dict[str, Any]) -> dict[str, Any]:
    """So many processes without Dask, each with the whole input for itself."""
    with ThreadPoolExecutor(count) as pool:
        runs = list(pool.map(lambda _: in_process("benchmarks.pipeline:commits", given), range(count)))
    begin, end = max(run["commits"][0] for run in runs), min(run["commits"][-1] for run in runs)
    return {"commits": sorted(commit for run in runs for commit in run["commits"] if begin[0] <= commit[0] <= end[0])}


def _busy_speed(count: int, run: dict[str, Any]) -> float:
    """Tokens a second from the commit with which all were at work to that which left one without."""
    (begin, _), *rest = run["commits"][count - 1 : len(run["commits"]) - count + 1]
    return sum(tokens for _, tokens in rest) / (rest[-1][0] - begin)


def driver(units: int = 1000, unit_kib: int = 256) -> None:
    """The share of the CPU that driver, scheduler and nannies take, at a thousand units."""
    size = units * unit_kib * 1024
    source = str(write(FOLDER / f"completion-{size}.jsonl", "completion", size))
    found = _run(source, units={"bytes": f"{unit_kib}KiB"})
    few = _run(source, units={"bytes": size // 4})
    per_unit = (found["driver_cpu"] - few["driver_cpu"]) / (found["units"] - few["units"])
    numbers = {
        "units": found["units"],
        "driver_cpu_seconds": found["driver_cpu"],
        "worker_cpu_seconds": found["worker_cpu"],
        "driver_share": found["driver_cpu"] / (found["driver_cpu"] + found["worker_cpu"]),
        "driver_ms_per_unit": per_unit * 1000,
        "driver_share_at_128_MiB": per_unit / (per_unit + few["worker_cpu"] * 128 * 2**20 / size),
        "driver_peak_mib": found["driver_peak_mib"],
    }
    show(
        f"Driver and scheduler, {found['units']} units of {unit_kib} KiB",
        ["", ""],
        [[k, v] for k, v in numbers.items()],
    )
    save("driver", found=numbers)


def memory(sizes: tuple[int, ...] = (64_000_000, 1_024_000_000)) -> None:
    """Peak memory of a worker against the size of one file, and for the same bytes in many files."""
    rows, found = [], {}
    block = write(FOLDER / "completion-64000000.jsonl", "completion", 64_000_000)
    many = FOLDER / "many"
    for size in sizes:
        one = _repeated(block, FOLDER / f"repeated-{size}.jsonl", size)
        found[f"one file of {size // 10**6} MB"] = _run(str(one))
        if one != block:
            one.unlink()
    _split(block, many, 1000)
    found["the 64 MB in 1,000 files"] = _run(f"{many}/*.jsonl")
    shutil.rmtree(many)
    for name, run in found.items():
        rows.append([name, run["worker_peak_mib"], run["driver_peak_mib"], run["tokens_per_second"] / 1e6])
    show("Memory", ["input", "worker peak MiB", "driver peak MiB", "M tokens/s"], rows)
    peaks = {
        name: {key: run[key] for key in ("worker_peak_mib", "driver_peak_mib", "wall")} for name, run in found.items()
    }
    save("memory", found=peaks)


def large(size: int = 20_000_000_000, units: int = 1000) -> None:
    """One file of 20 GB in a thousand units: start, peaks, and the share of driver and scheduler; 25 GB of disk."""
    block = write(FOLDER / "completion-64000000.jsonl", "completion", 64_000_000)
    one = _repeated(block, FOLDER / f"repeated-{size}.jsonl", size)
    try:
        run = _run(str(one), units={"bytes": -(-one.stat().st_size // units)})
    finally:
        one.unlink()
    kept = ("units", "records", "tokens", "wall", "first_unit", "tokens_per_second", "driver_cpu", "worker_cpu")
    found = {key: run[key] for key in (*kept, "worker_peak_mib", "driver_peak_mib", "written_bytes")}
    found |= {"input_bytes": size, "driver_share": run["driver_cpu"] / (run["driver_cpu"] + run["worker_cpu"])}
    show(f"One file of {size / 1e9:g} GB", ["", ""], [[key, value] for key, value in found.items()])
    save("large", found=found)


def oversubscription(size: int = 32_000_000, counts: tuple[int, ...] = (2, 16)) -> None:
    """More worker processes than cores: what they cost in time and memory; no more than this machine can hold."""
    _oversubscribed("oversubscription", size, counts)


def many(size: int = 32_000_000, counts: tuple[int, ...] = (2, 16, 32, 64, 128), vocabulary: int = 8192) -> None:
    """The same with up to 128 processes, and a small vocabulary, so that so many fit the memory of a small machine.

    Under `taskset -c 0,1` a machine with more cores shows what they do on two.
    """
    given = {"tokenizer": _small_tokenizer(vocabulary), "worker_memory": "1GiB"}
    _oversubscribed("many", size, counts, vocabulary=vocabulary, **given)


def _small_tokenizer(size: int) -> dict[str, Any]:
    """The recipe's tokenizer with the first ranks alone, and its control tokens."""
    spec = qwen_tokenizer_spec()
    path = FOLDER / f"ranks-{size}.tiktoken"
    path.write_bytes(b"".join(Path(spec["path"]).read_bytes().splitlines(keepends=True)[:size]))
    special = {token: number for number, token in enumerate(spec["special_tokens"], size)}
    return spec | {"path": str(path), "special_tokens": special}


def _oversubscribed(name: str, size: int, counts: tuple[int, ...], vocabulary: int = 0, **given: Any) -> None:
    source = str(write(FOLDER / f"completion-{size}.jsonl", "completion", size))
    found: dict[str, dict[str, float]] = {}
    each = 0.0
    for count in counts:
        free = min(usable_memory(), psutil.virtual_memory().available) / 2**20
        if count * each > 0.9 * free:
            console.print(f"{count} workers and more need more memory than is free here", style="dim")
            break
        with _free_memory() as seen:
            # two units for each of the most
            run = _run(source, workers=count, units={"bytes": size // (2 * max(counts))}, **given)
        found[str(count)] = {key: run[key] for key in ("wall", "worker_cpu", "driver_cpu", "worker_peak_mib")}
        found[str(count)]["all_mib"] = (max(seen) - min(seen)) / 2**20
        each = found[str(count)]["all_mib"] / count
    first = found[str(counts[0])]
    rows = [[n, r["wall"], r["worker_cpu"], r["wall"] / first["wall"], r["all_mib"] / 1024] for n, r in found.items()]
    show(
        f"Worker processes on {usable_cores()} cores",
        ["workers", "seconds", "worker CPU s", "times", "GiB in all"],
        rows,
    )
    save(name, input_bytes=size, vocabulary=vocabulary, found=found)


@contextmanager
def _free_memory() -> Iterator[list[int]]:
    """Watch the machine meanwhile: how many bytes were free, five times a second."""
    seen = [psutil.virtual_memory().available]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            seen.append(psutil.virtual_memory().available)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def start(copies: int = 40, files: int = 50_000) -> None:
    """From `run` to the first committed unit on many files, and the time to list 50,000 files."""
    folder = FOLDER / "links"
    block = write(FOLDER / "completion-64000000.jsonl", "completion", 64_000_000)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(copies):
        os.link(block, folder / f"{number:03d}.jsonl")
    begun = in_process("benchmarks.runs:whole_run", {"source": f"{folder}/*.jsonl", "stop_at_first": True})
    shutil.rmtree(folder)
    _split(block, folder, files)
    listed = in_process("benchmarks.runs:listing", {"source": f"{folder}/*.jsonl"})
    shutil.rmtree(folder)
    rows = [
        [f"run of {copies * 64 / 1000:.1f} GB to its first committed unit", begun["first_unit"]],
        [f"list {listed['files']:,} files into {listed['units']} units", listed["wall"]],
    ]
    show("Start", ["", "seconds"], rows)
    save("start", first_unit_seconds=begun["first_unit"], input_bytes=copies * 64_000_000, listing=listed)


def _repeated(block: Path, target: Path, size: int) -> Path:
    """A file of the size, made of the block over and over."""
    if block.stat().st_size >= size:
        return block
    data = block.read_bytes()
    with target.open("wb") as out:
        while out.tell() < size:
            out.write(data)
    return target


def _split(block: Path, folder: Path, count: int) -> None:
    """Deal the lines of a file out to many files, from the start again if they do not suffice."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = block.read_bytes().splitlines(keepends=True)
    for number in range(count):
        (folder / f"{number:05d}.jsonl").write_bytes(b"".join(lines[number::count]) or lines[number % len(lines)])
