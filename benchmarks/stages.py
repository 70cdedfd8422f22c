"""Where the microseconds go: each stage of the pipeline, by kind of input."""

from __future__ import annotations

from benchmarks.harness import CACHE, in_process, mid, save, show
from benchmarks.inputs import write

STAGES = ("read", "parse", "render", "encode", "mask", "write")


def main(size: int = 32_000_000, repeats: int = 5) -> None:
    """CPU time a stage where the pipeline itself takes its times, per KB of JSON lines."""
    kinds = ("chat", "agent", "completion")
    sources = {kind: str(write(CACHE / "bench" / f"{kind}-{size}.jsonl", kind, size)) for kind in kinds}
    runs = in_process("benchmarks.pipeline:in_turn", {"sources": sources, "repeats": repeats})
    found, table = {}, []
    for kind, tries in runs.items():
        size_kb = tries[0]["bytes"] / 1024
        per_kb = {stage: mid([run["seconds"] for run in tries], stage) * 1e6 / size_kb for stage in STAGES}
        whole = mid(tries, "cpu")
        found[kind] = {
            "us_per_kb": per_kb,
            "cpu_us_per_kb": whole * 1e6 / size_kb,
            "mb_per_second": tries[0]["bytes"] / 1e6 / whole,
            "tokens_per_second": tries[0]["tokens"] / whole,
            "trained_share": tries[0]["trained"] / tries[0]["tokens"],
            "written_bytes_per_token": tries[0]["written"] / tries[0]["tokens"],
            "peak_mib": mid(tries, "peak_mib"),
            "engines": tries[0]["engines"],
        }
        table.append([kind, *per_kb.values(), whole * 1e6 / size_kb, found[kind]["mb_per_second"]])
        table[-1].append(found[kind]["tokens_per_second"] / 1e6)
    show(
        "Stages, CPU time in µs per KB of JSON lines",
        ["input", *STAGES, "CPU in all", "MB/s", "M tokens/s"],
        table,
        "read includes parsing the JSON text; parse is the layout: record to conversation",
    )
    save("stages", input_bytes=size, repeats=repeats, found=found)
