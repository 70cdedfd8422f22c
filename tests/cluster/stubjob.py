"""A job whose units do what their ids say: for the driver's own tests, without tokenizers."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retok_dask.completions import Part, Unit
from retok_dask.kernel import UnitStats

RECORDS = 4


def make_units(count: int, records: int = RECORDS) -> list[Unit]:
    return [
        Unit(f"u{i:06d}", f"set{i % 2}", (Part(f"/data/{i}.jsonl", 0, records, records, "jsonl"),), records)
        for i in range(count)
    ]


def hang_holding_the_lock(seconds: int) -> None:
    """Stay in native code without giving the interpreter lock back."""
    ctypes.PyDLL(None).sleep(seconds)


@dataclass
class StubOpen:
    job: StubJob
    seconds_per_record: float
    hoard: list[bytearray] = field(default_factory=list)

    def _records(self, unit: Unit, order: dict[str, Any], tell: Any, *, write: bool) -> dict[str, Any]:
        total = unit.parts[0].size
        first, last = unit.first or 0, unit.last if unit.last is not None else total
        aside = {item[0] for item in order.get("aside", [])}
        stats = UnitStats()
        self._note("begin", unit)
        for ordinal in tell.watch(range(first, last)):
            stats.records_in += 1
            if ordinal in aside:
                stats.rejected["killed_worker"] += 1
                continue
            self._do(unit.base_id, ordinal)
            stats.records_out += 1
            stats.tokens += 10
            stats.samples += 1
            stats.loss_tokens += 4
        if self.job.pause:
            time.sleep(self.job.pause)
        tell.batch(stats)
        if write:
            path = Path(self.job.folder) / unit.id
            path.write_text(f"{stats.records_in} {stats.records_out} {sum(stats.rejected.values())}")
        self._note("end", unit)
        return dict(tell.totals)

    def _note(self, what: str, unit: Unit) -> None:
        with (Path(self.job.folder) / ".notes").open("a") as file:
            file.write(f"{what} {unit.id} {os.getpid()}\n")

    def _do(self, unit: str, ordinal: int) -> None:
        fault = self.job.faults.get((unit, ordinal))
        if fault is None:
            return
        mark = Path(self.job.folder) / f".{unit}-{ordinal}-{fault}"
        if fault.startswith("once-") and mark.exists():
            return
        mark.write_text("x")
        match fault.removeprefix("once-"):
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                hang_holding_the_lock(600)
            case "deaf":  # beyond its time limit without a sign, as on a host that stands still
                signal.setitimer(signal.ITIMER_REAL, 0)
                time.sleep(25)
            case "grow":  # once a process: well above what it may keep, well below where its nanny ends it
                self.hoard = self.hoard or [bytearray(b"x") * (150 << 20)]
            case "memory":
                while True:
                    self.hoard.append(bytearray(os.urandom(1 << 20) * 8))
                    time.sleep(0.01)
            case "error":
                raise ValueError("no good")
            case "storage":
                raise ConnectionError("503 slow down")

    def encode(self, unit: Unit, order: dict[str, Any], tell: Any) -> dict[str, Any]:
        return self._records(unit, order, tell, write=True)

    def probe(self, unit: Unit, order: dict[str, Any], tell: Any) -> dict[str, Any]:
        return self._records(unit, order, tell, write=False)

    def count(self, unit: Unit, order: dict[str, Any], tell: Any) -> dict[str, Any]:
        return {"records": unit.parts[0].size}


@dataclass
class StubJob:
    folder: str
    run_id: str = "stub"
    seconds_per_record: float = 60.0
    pause: float = 0.0
    faults: dict[tuple[str, int], str] = field(default_factory=dict)

    def open(self) -> StubOpen:
        return StubOpen(self, self.seconds_per_record)
