"""What a run of many units costs the client and the scheduler, with units that do nothing.

The driver, tracker, event log, bags, plug-in and tasks are the real ones; only
the job is empty. Sizes of listing, receipts and manifest are measured on real
objects and extrapolated to a run of 1 PB.

    python benchmarks/scale.py --units 100000 --workers 2
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import psutil

from retok_dask.cluster.connect import connect
from retok_dask.cluster.driver import Driver
from retok_dask.cluster.events import EventLog
from retok_dask.cluster.fleet import bag_of
from retok_dask.cluster.tracker import Tracker
from retok_dask.completions import FileEntry, Listing, Part, Unit
from retok_dask.datasets import FileRecord, OutputFolder, Receipt, build_manifest
from retok_dask.kernel import UnitStats
from retok_dask.recipe import Recipe

MiB = 1024 * 1024


@dataclass
class NoJob:
    """Does nothing with a unit."""

    run_id: str = "scale"
    seconds_per_record: float = 120.0

    def open(self) -> NoJob:
        return self

    def encode(self, unit: Unit, order: dict[str, Any], tell: Any) -> dict[str, Any]:  # noqa: ARG002  a job's form
        return dict(tell.totals)

    probe = count = encode


def units_of(count: int) -> list[Unit]:
    """Units as a listing of 128 MiB pieces of larger files gives them."""
    made = []
    for number in range(count):
        url = f"s3://corpus-bucket/crawl/2026-11/quality=high/part-{number // 8:07d}.jsonl"
        part = Part(url, (number % 8) * 128 * MiB, (number % 8 + 1) * 128 * MiB, 1024 * MiB, "jsonl")
        made.append(Unit(f"part-{number // 8:07d}-{part.start:012d}-{number:012x}", "crawl", (part,), 128 * MiB))
    return made


def receipt_of(unit: Unit) -> Receipt:
    """A receipt with the statistics that a real unit has."""
    stats = UnitStats(records_in=20000, records_out=19990, samples=19990, tokens=30_000_000, loss_tokens=12_000_000)
    stats.rejected.update({"bad_json": 10})
    stats.kind_tokens.update(dict.fromkeys(("user", "header", "content", "stop", "trailer", "reasoning"), 1000000))
    stats.lengths.update({str(n): 1000 for n in range(4, 18)})
    stats.shares.update({str(n): 1000 for n in range(20)})
    stats.position_tokens.update({str(n): 3_000_000 for n in range(10)})
    stats.position_loss_tokens.update({str(n): 1_200_000 for n in range(10)})
    stats.first_tokens.update({"151644": 19990})
    stats.seconds.update(dict.fromkeys(("read", "parse", "render", "encode", "mask"), 1.234567))
    path = f"data/crawl/{unit.id}.parquet"
    output = FileRecord("samples", path, 60 * MiB, "0" * 64, 19990)
    rejects = FileRecord("rejects", path.replace("data", "rejects"), 2000, "0" * 64, 10)
    summary = {"rows": 19990, "tokens": 30_000_000, "loss_tokens": 12_000_000}
    return Receipt(unit.id, "crawl", (output, rejects), stats.to_dict(), summary, "0" * 64, fingerprint="0" * 64)


def sizes(units: list[Unit]) -> dict[str, float]:
    """Bytes of what a run writes down, for each unit."""
    files = [FileEntry(unit.parts[0].url, 1024 * MiB, '"0123456789abcdef"', 1.7e9, "crawl") for unit in units[::8]]
    listing = len(Listing(files, units).to_json())
    receipts = {unit.id: receipt_of(unit) for unit in units[:2000]}
    receipt = len(json.dumps(receipts[units[0].id].to_dict()))
    manifest = build_manifest(receipts, run={"fingerprint": "0" * 64}, recipe="")
    manifest_bytes = len(json.dumps(manifest.to_dict())) / len(receipts)
    orders = [{"run": "scale", "unit": unit.to_dict(), "attempt": n, "suspect": False} for n, unit in enumerate(units)]
    graph = len(pickle.dumps(dict(bag_of("encode", orders).__dask_graph__())))
    return {
        "listing bytes a unit": listing / len(units),
        "receipt bytes": receipt,
        "manifest bytes a unit": manifest_bytes,
        "graph bytes a unit": graph / len(units),
        "graph bytes of all units at once": graph,
    }


def scheduler_state(dask_scheduler: Any) -> tuple[int, int]:
    """Runs on the scheduler: its tasks and its memory now."""
    return len(dask_scheduler.tasks), psutil.Process().memory_info().rss


def drive(units: list[Unit], workers: int) -> dict[str, float]:
    """Run the units, watching the scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe.from_dict(
            {
                "tokenizer": "none",
                "output": folder,
                "datasets": [{"input": "none"}],
                "cluster": {"workers": workers, "dashboard": None},
            }
        )
        tracker = Tracker(len(units), sum(unit.bytes for unit in units))
        log = EventLog(OutputFolder(folder))
        most = [0, 0]
        looked = [0.0]
        with connect(recipe) as client:

            def tick() -> None:
                if time.monotonic() - looked[0] > 2:
                    looked[0] = time.monotonic()
                    tasks, rss = client.run_on_scheduler(scheduler_state)
                    most[:] = [max(most[0], tasks), max(most[1], rss)]

            before = psutil.Process().memory_info().rss
            started = time.monotonic()
            cpu = time.process_time()
            driver = Driver(client, NoJob(), units, tracker=tracker, log=log, seconds_per_record=120, tick=tick)
            outcome = driver.work()
            seconds = time.monotonic() - started
            cpu = time.process_time() - cpu
        log.flush()
        events = OutputFolder(folder).sizes("_retok")["_retok/events.jsonl"]
    assert outcome.committed == len(units)
    return {
        "seconds": seconds,
        "units a second": len(units) / seconds,
        "client and scheduler, CPU ms a unit": 1000 * cpu / len(units),
        "most tasks on the scheduler": most[0],
        "client and scheduler, MiB before": before / MiB,
        "client and scheduler, MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "event log bytes a unit": events / len(units),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    units = units_of(chosen.units)
    found = {"units": chosen.units, "workers": chosen.workers} | sizes(units) | drive(units, chosen.workers)
    for name, value in found.items():
        print(f"{name:<40}{value:>16,.1f}")


if __name__ == "__main__":
    main()
