"""The whole way, JSON lines to what each tool leaves behind, beside public tools on the same input."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness import CACHE, in_process, mid, overlapped, save, show
from benchmarks.inputs import write
from benchmarks.peers import environment

TOOLS = {
    "datasets.map + apply_chat_template": "datasets_map",
    "TRL SFTTrainer._prepare_dataset": "trl_prepare",
    "Axolotl chat_template strategy": "axolotl_strategy",
    "tokenizers.encode_batch alone": "encode_batch",
}
OURS = "retok-dask"
BASE = next(iter(TOOLS))


def main(size: int = 4_000_000, large: int = 32_000_000, repeats: int = 2) -> None:
    """Chat and agent input, all tools in turn; ours also on a larger file of the same kind."""
    python, tokenizer = environment.python(), environment.tokenizer_folder()
    found = {}
    for kind in ("chat", "agent"):
        source = str(write(CACHE / "bench" / f"{kind}-{size}.jsonl", kind, size))
        bigger = str(write(CACHE / "bench" / f"{kind}-{large}.jsonl", kind, large))
        ours = partial(in_process, "benchmarks.pipeline:end_to_end")
        peer = {
            name: partial(
                in_process, f"benchmarks.peers.tools:{tool}", {"tokenizer": tokenizer, "source": source}, python=python
            )
            for name, tool in TOOLS.items()
        }
        cases = {
            OURS: partial(ours, {"source": source}),
            f"{OURS}, {large // 10**6} MB of it": partial(ours, {"source": bigger}),
            f"{OURS}, reference engines": partial(ours, {"source": source, "engine": "reference"}),
            **peer,
        }
        runs = overlapped(cases, repeats)
        found[kind] = _summary(runs)
        _print(kind, found[kind])
    save("end_to_end", input_bytes=size, repeats=repeats, found=found)


def _summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians a tool, and how each one's ids and masks compare with the reference library's."""
    per_kb = {}
    rows = {}
    input_bytes = runs[OURS][0]["bytes"]
    for name, tries in runs.items():
        size = tries[0].get("bytes", input_bytes)
        per_kb[name] = mid(tries, "cpu") * 1e6 / (size / 1024)
        rows[name] = {
            "cpu_seconds": [run["cpu"] for run in tries],
            "us_per_kb": per_kb[name],
            "mb_per_second": 1000 / 1.024 / per_kb[name],
            "tokens_per_second": tries[0]["tokens"] / mid(tries, "cpu"),
            "tokens": tries[0]["tokens"],
            "trained": tries[0].get("trained"),
            "peak_mib": mid(tries, "peak_mib"),
            "engines": tries[0].get("engines"),
        }
    base = runs[BASE][0]
    for name, tries in runs.items():
        rows[name]["times_faster"] = per_kb[BASE] / per_kb[name]
        if tries[0].get("bytes", input_bytes) == input_bytes and "ids_digest" in tries[0]:
            rows[name]["same_ids"] = tries[0]["ids_digest"] == base["ids_digest"]
            rows[name]["same_mask"] = tries[0]["mask_digest"] == base["mask_digest"]
    return rows


def _print(kind: str, rows: dict[str, Any]) -> None:
    table = [
        [
            name,
            row["us_per_kb"],
            row["mb_per_second"],
            row["tokens_per_second"] / 1e6,
            row["times_faster"],
            {True: "yes", False: "NO", None: "-"}[row.get("same_ids")],
            {True: "yes", False: "NO", None: "-"}[row.get("same_mask")],
        ]
        for name, row in rows.items()
    ]
    columns = ["", "µs/KB", "MB/s", "M tokens/s", "times", "same ids", "same mask"]
    show(f"End to end, {kind}: CPU time of one core", columns, table, f"times: against {BASE}")
