"""Puts the numbers of ``results/*.json`` into the README, between its two marks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.harness import RESULTS, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

README = RESULTS.parent / "README.md"
BEGIN, END = "<!-- numbers from results/ -->", "<!-- end of numbers -->"


def main() -> None:
    """Rewrite the block; benchmarks without a result are left out."""
    parts = []
    for name, quote in QUOTES.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            data = json.loads(path.read_text())
            machine = data["machine"]
            where = (
                f"{machine['processor']}, {machine['cores']} cores, load {machine['load'][0]}, {machine['date'][:10]}"
            )
            parts.append(f"### {name}\n\n{quote(data)}\n\n`results/{name}.json`: {where}.")
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    README.write_text(f"{head}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{tail}", encoding="utf-8")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table, numbers on the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _end_to_end(data: dict[str, Any]) -> str:
    parts = []
    words = {True: "yes", False: "NO", None: ""}
    for kind, tools in data["found"].items():
        rows = [
            [
                name,
                row["us_per_kb"],
                row["mb_per_second"],
                row["tokens_per_second"] / 1e6,
                row["times_faster"],
                words[row.get("same_ids")],
                words[row.get("same_mask")],
            ]
            for name, row in tools.items()
        ]
        columns = [
            f"{kind}, {data['input_bytes'] / 1e6:g} MB",
            "µs/KB",
            "MB/s",
            "M tokens/s",
            "times",
            "same ids",
            "same mask",
        ]
        parts.append(table(columns, rows))
    return "\n\n".join(parts)


def _stages(data: dict[str, Any]) -> str:
    names = list(next(iter(data["found"].values()))["us_per_kb"])
    rows = [
        [kind, *row["us_per_kb"].values(), row["cpu_us_per_kb"], row["mb_per_second"], row["tokens_per_second"] / 1e6]
        for kind, row in data["found"].items()
    ]
    return table(["µs/KB", *names, "all", "MB/s", "M tokens/s"], rows)


def _messages(data: dict[str, Any]) -> str:
    rows = [[count, speed / 1e6, data["us_per_kb"][count]] for count, speed in data["tokens_per_second"].items()]
    return table(["messages", "M tokens/s", "µs/KB"], rows) + f"\n\nLargest over smallest: {data['spread']:+.0%}."


def _workers(data: dict[str, Any]) -> str:
    speeds, times = data["found"]["tokens_per_second"], data["found"]["times_one"]
    return table(["worker processes", "M tokens/s", "times one"], [[n, speeds[n] / 1e6, times[n]] for n in speeds])


def _pairs(data: dict[str, Any]) -> str:
    return table(["", ""], [[key, value] for key, value in data["found"].items() if isinstance(value, int | float)])


def _runs(data: dict[str, Any]) -> str:
    columns = list(next(iter(data["found"].values())))
    return table(["", *columns], [[name, *row.values()] for name, row in data["found"].items()])


def _start(data: dict[str, Any]) -> str:
    rows = [
        [f"run of {data['input_bytes'] / 1e9:.1f} GB to its first committed unit", data["first_unit_seconds"]],
        [f"list {data['listing']['files']:,} files", data["listing"]["wall"]],
    ]
    return table(["", "seconds"], rows)


def _corpus(data: dict[str, Any]) -> str:
    rows = []
    for text, found in data["results"].items():
        if isinstance(found, dict):
            tools = ("retok", "tokenizers", "datatrove")
            measured = ("retok",) if "peers_measured_on" in found else tools
            rates = [found["bytes"] / found["cpu_seconds"][tool] / 1e6 if tool in measured else "" for tool in tools]
            rows.append([text, *rates, found["times"]["tokenizers"], found["times"]["datatrove"]])
    return table(["MB/s", "retok-dask", "tokenizers", "datatrove", "times tokenizers", "times datatrove"], rows)


QUOTES: dict[str, Callable[[dict[str, Any]], str]] = {
    "end_to_end": _end_to_end,
    "stages": _stages,
    "messages": _messages,
    "workers": _workers,
    "driver": _pairs,
    "memory": _runs,
    "large": _pairs,
    "oversubscription": _runs,
    "many": _runs,
    "start": _start,
    "job": _pairs,
    "job_full": _pairs,
    "corpus": _corpus,
}
