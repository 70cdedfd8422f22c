"""Cost against the number of messages in a conversation: it must not grow."""

from __future__ import annotations

from benchmarks.harness import CACHE, in_process, mid, save, show
from benchmarks.inputs import write

COUNTS = (2, 8, 40, 84, 160)
MESSAGE_BYTES = 1200


def main(size: int = 16_000_000, repeats: int = 7) -> None:
    """Trajectories of 2 to 160 messages, all messages alike in size."""
    sources = {}
    for count in COUNTS:
        path = CACHE / "bench" / f"messages-{count}-{size}.jsonl"
        sources[str(count)] = str(write(path, "agent", size, messages=count, characters=count * MESSAGE_BYTES))
    runs = in_process("benchmarks.pipeline:in_turn", {"sources": sources, "repeats": repeats})
    speeds = {count: tries[0]["tokens"] / mid(tries, "cpu") for count, tries in runs.items()}
    per_kb = {count: mid(tries, "cpu") * 1e6 / (tries[0]["bytes"] / 1024) for count, tries in runs.items()}
    spread = max(speeds.values()) / min(speeds.values()) - 1
    show(
        "Messages in a conversation",
        ["messages", "M tokens/s", "µs/KB"],
        [[count, speeds[count] / 1e6, per_kb[count]] for count in speeds],
        f"largest over smallest: {spread:+.0%}",
    )
    save("messages", input_bytes=size, repeats=repeats, tokens_per_second=speeds, us_per_kb=per_kb, spread=spread)
