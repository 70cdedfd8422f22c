"""How runs stand, from what lies in their output folders; needs no cluster and disturbs none."""

from __future__ import annotations

import datetime as dt
import io
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retok_dask.cluster.events import read_events
from retok_dask.cluster.job import small
from retok_dask.cluster.progress import duration, short
from retok_dask.cluster.tracker import COUNTED
from retok_dask.completions import Listing
from retok_dask.datasets import OutputFolder, OutputLock, Receipt, read_manifest, read_run
from retok_dask.datasets.folder import LISTING, RECEIPTS
from retok_dask.errors import OutputError, RetokError, count_of, first_few
from retok_dask.kernel import UnitStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retok_dask.recipe import StorageSpec

State = Literal["finished", "running", "stalled", "dead", "stopped", "failed", "no run"]

STALLED_SECONDS = 300.0
"""A live client whose counts have not moved for so long is called stalled."""

RATE_SECONDS = 120.0

NAME = 40
"""Characters of an output's or data set's name that the table of the text shows."""

WIDTH = 240
"""No column of the text is cut: a number that is says nothing."""

NOTABLE = (
    "start",
    "unchecked",
    "worker_died",
    "stalled",
    "suspected",
    "set_aside",
    "retry",
    "failed_try",
    "unit_failed",
    "isolated",
    "end",
)


@dataclass
class DatasetStatus:
    """One data set of a run."""

    name: str
    units_total: int = 0
    units_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    records: int = 0
    samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    rejected: int = 0
    filtered: int = 0

    @property
    def trained_share(self) -> float:
        """Trained tokens of all tokens, 0 to 1."""
        return self.loss_tokens / self.tokens if self.tokens else 0.0


@dataclass
class OutputStatus:
    """One output folder.

    Attributes:
        url: the folder.
        state: ``finished``; ``running``; ``stalled`` (its client lives, its
            counts do not move); ``dead`` (its client has gone without a
            word); ``stopped`` or ``failed`` (it said so); ``no run``.
        text: one clause on the state.
        datasets: by data set.
        tokens_per_second: lately; 0 where nothing runs.
        seconds_left: estimate; None where nothing runs.
        last_event: seconds since the last sign of life; None if there was none.
        deaths, set_aside, failed_units: over all sessions.
        timeline: notable events, oldest first.
    """

    url: str
    state: State
    text: str = ""
    datasets: list[DatasetStatus] = field(default_factory=list)
    tokens_per_second: float = 0.0
    seconds_left: float | None = None
    last_event: float | None = None
    deaths: int = 0
    set_aside: int = 0
    failed_units: int = 0
    timeline: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass
class Status:
    """Several output folders on one screen."""

    outputs: list[OutputStatus]

    @property
    def finished(self) -> bool:
        """Whether all of them are finished."""
        return all(output.state == "finished" for output in self.outputs)

    @property
    def missing(self) -> bool:
        """Whether one of the folders holds no run."""
        return any(output.state == "no run" for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"finished": self.finished, "outputs": [output.to_dict() for output in self.outputs]}

    def to_text(self) -> str:
        """A table, and the last notable events of runs that are not finished."""
        console = Console(
            width=WIDTH, record=True, file=io.StringIO(), markup=False, highlight=False, force_jupyter=False
        )
        console.print(self._table())
        lines = [console.export_text().rstrip()]
        for output in self.outputs:
            lines.append(f"{output.url}: {output.state}{', ' + output.text if output.text else ''}")
            lines += [f"  {describe_event(event)}" for event in output.timeline[-8:]]
        return "\n".join(lines)

    __str__ = to_text
    __repr__ = to_text

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in {"output", "data set", "state"} else "right", no_wrap=True)
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> Iterable[tuple[str, ...]]:
        for output in self.outputs:
            name = output.url if len(output.url) <= NAME else f"…{output.url[1 - NAME :]}"
            rate = short(output.tokens_per_second) if output.tokens_per_second else ""
            left = duration(output.seconds_left) if output.seconds_left is not None else ""
            if not output.datasets:
                yield (name, "", output.state, *[""] * (len(_COLUMNS) - 3))
            for data in output.datasets:
                share = f"{data.trained_share:.1%}" if data.tokens else ""
                yield (
                    *(name, _middle_out(data.name), output.state, f"{data.units_done:,}/{data.units_total:,}"),
                    *(f"{data.records:,}", f"{data.samples:,}", short(data.tokens), share, f"{data.rejected:,}"),
                    *(f"{data.filtered:,}", rate, left),
                )
                name, rate, left = "", "", ""

    def _repr_html_(self) -> str:
        from retok_dask.views import status_summary  # noqa: PLC0415  views draws; a notebook alone needs it

        return status_summary(self.to_dict())._repr_html_()


_COLUMNS = (
    "output",
    "data set",
    "state",
    "units",
    "records",
    "rows",
    "tokens",
    "trained",
    "rejects",
    "filtered",
    "tokens/s",
    "left",
)


def _middle_out(name: str) -> str:
    """A name that fits: what tells long ones apart is at their end as often as at their start."""
    half = (NAME - 1) // 2
    return name if len(name) <= NAME else f"{name[:half]}…{name[-half:]}"


def status(*urls: str, storage: StorageSpec | None = None) -> Status:
    """How the runs in some output folders stand.

    Reads receipts and events, so it works from any machine, while another
    process runs them or long after, on any storage.

    Args:
        urls: output folders.
        storage: where S3 answers, if not at its standard place.
    """
    return Status([output_status(OutputFolder(str(url), storage)) for url in urls])


def watch_status(*urls: str, storage: StorageSpec | None = None, interval: float = 5.0) -> Status:
    """Show :func:`status` on standard error again and again until all runs are over; gives the last one."""
    live_states = {"running", "stalled"}
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            found = status(*urls, storage=storage)
            live.update(Text(found.to_text()), refresh=True)
            if not any(output.state in live_states for output in found.outputs):
                return found
            time.sleep(interval)


def output_status(folder: OutputFolder) -> OutputStatus:
    """How the run in one folder stands."""
    try:
        run = read_run(folder)
    except (RetokError, OSError) as error:
        return OutputStatus(folder.url, "no run", f"it cannot be read: {error}")
    if run is None:
        return OutputStatus(folder.url, "no run", "it holds no run.json; check the path")
    events = read_events(folder)
    found = OutputStatus(folder.url, "stopped", timeline=[event for event in events if event["kind"] in NOTABLE])
    counts = Counter(event["kind"] for event in events)
    found.deaths, found.set_aside = counts["worker_died"], counts["set_aside"]
    now = time.time()
    if events:
        found.last_event = max(0.0, now - events[-1]["at"])
    try:
        manifest = read_manifest(folder)
    except OutputError:
        manifest = None
    if manifest is not None:
        found.state = "finished"
        found.datasets = [_of_stats(name, stats, manifest) for name, stats in manifest.datasets.items()]
        end = next((event for event in reversed(events) if event["kind"] == "end"), None)
        if end is not None and end.get("how") == "failed":
            found.text = f"with exit code 1: {end.get('text')}"
        return found
    found.datasets = _of_receipts(folder, events)
    _judge(found, folder, events, now)
    return found


def _of_stats(name: str, stats: UnitStats, manifest: Any) -> DatasetStatus:
    units = sum(1 for entry in manifest.units.values() if entry.dataset == name)
    counts = small(stats)
    return DatasetStatus(name, units, units, **{key: counts[key] for key in COUNTED})


def _of_receipts(folder: OutputFolder, events: list[dict[str, Any]]) -> list[DatasetStatus]:
    """Committed units by their receipts; their counts from the log, or from the receipt where the log lacks them."""
    listing = _listing(folder)
    known = {unit.id: unit for unit in listing.units}
    datasets: dict[str, DatasetStatus] = {}
    for unit in listing.units:
        data = datasets.setdefault(unit.dataset, DatasetStatus(unit.dataset))
        data.units_total += 1
        data.bytes_total += unit.bytes
    logged = {event["unit"]: event for event in events if event["kind"] == "unit"}
    done = [name.rpartition("/")[2].removesuffix(".json") for name in folder.sizes(RECEIPTS)]
    missing = [unit for unit in done if unit not in logged and unit in known]
    for name, content in zip(missing, folder.read_many([folder.receipt(unit) for unit in missing]), strict=True):
        if isinstance(content, bytes):
            try:
                logged[name] = small(UnitStats.from_dict(Receipt.from_dict(orjson.loads(content)).stats))
            except (OutputError, orjson.JSONDecodeError):
                continue
    for name in done:
        if name not in known or name not in logged:
            continue
        data = datasets[known[name].dataset]
        data.units_done += 1
        data.bytes_done += known[name].bytes
        for count in COUNTED:
            setattr(data, count, getattr(data, count) + int(logged[name].get(count, 0)))
    return list(datasets.values())


def _listing(folder: OutputFolder) -> Listing:
    try:
        return Listing.from_json(folder.read_bytes(LISTING))
    except (FileNotFoundError, RetokError):
        return Listing()


def _judge(found: OutputStatus, folder: OutputFolder, events: list[dict[str, Any]], now: float) -> None:
    """Running, stalled, dead, stopped or failed; with rate and time left where it runs."""
    holder = OutputLock(folder).holder()
    last = next((event for event in reversed(events) if event["kind"] in {"start", "end"}), None)
    session = [event for event in events if last is not None and event["session"] == last["session"]]
    failed = {event["unit"] for event in session if event["kind"] == "unit_failed"}
    found.failed_units = len(failed)
    if holder is not None and holder.is_alive(now):
        moved = _last_move(session, holder.acquired)
        found.state = "stalled" if now - moved > STALLED_SECONDS else "running"
        place = f"process {holder.pid} on {holder.host}"
        found.text = f"by {place}" + (f"; no progress for {duration(now - moved)}" if found.state == "stalled" else "")
        _estimate(found, session, now)
    elif last is None or last["kind"] == "start":
        found.state = "dead"
        ago = duration(found.last_event) if found.last_event is not None else "?"
        found.text = (
            f"its client has gone without a word, last sign of life {ago} ago; start the same command to resume"
        )
    else:
        found.state = "failed" if last["how"] == "failed" else "stopped"
        found.text = str(last.get("text") or last["how"])


def _last_move(session: list[dict[str, Any]], started: float) -> float:
    moved, before = started, (-1, -1)
    for event in session:
        if event["kind"] == "unit":
            moved = event["at"]
        elif event["kind"] == "progress":
            state = (event.get("records", 0), event.get("units_done", 0))
            if state != before:
                moved, before = event["at"], state
    return float(moved)


def _estimate(found: OutputStatus, session: list[dict[str, Any]], now: float) -> None:
    marks = [event for event in session if event["kind"] == "progress" and now - event["at"] < RATE_SECONDS]
    if len(marks) > 1 and marks[-1]["at"] > marks[0]["at"]:
        found.tokens_per_second = (marks[-1]["tokens"] - marks[0]["tokens"]) / (marks[-1]["at"] - marks[0]["at"])
    here = sum(event.get("bytes", 0) for event in session if event["kind"] == "unit")
    begun = next((event["at"] for event in session if event["kind"] == "cluster"), None)
    total, done = (sum(getattr(data, name) for data in found.datasets) for name in ("bytes_total", "bytes_done"))
    if begun is not None and here > 0 and now > begun:
        found.seconds_left = (total - done) * (now - begun) / here


def describe_event(event: dict[str, Any]) -> str:
    """One line on a notable event."""
    clock = dt.datetime.fromtimestamp(event["at"], dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    kind = event["kind"]
    match kind:
        case "start":
            how = "resumed" if event.get("resumed") else "started"
            text = f"{how} on {event.get('host')}, {event.get('committed', 0):,} of {count_of(event.get('units', 0), 'unit')} committed"
        case "worker_died":
            advice = f" ({event['advice']})" if event.get("advice") else ""
            text = f"worker {event['worker']} died on {first_few(event['units'])}: {event['why']}{advice}"
        case "unchecked":
            text = f"duplicates were not looked for in unit {event['unit']}, all its items stay: {event['why']}"
        case "stalled":
            text = f"{event['why']}: {event['act']}"
        case "suspected":
            text = f"looking for the bad record in unit {event['unit']}: {event['why']}"
        case "set_aside":
            ordinal, reason, detail = event["record"]
            text = f"record {ordinal} of unit {event['unit']} set aside as {reason}: {detail}"
        case "isolated":
            text = f"unit {event['unit']} is written without its bad records; it cost {count_of(event['deaths'], 'worker')}"
        case "retry":
            text = f"unit {event['unit']}, try {event['tries']}: {event['why']}; again in {event['pause']} s"
        case "failed_try":
            text = f"unit {event['unit']} failed: {event['why']}"
        case "unit_failed":
            text = f"unit {event['unit']} is given up: {event['why']}"
        case _:
            text = ": ".join(filter(None, (event.get("how", kind), event.get("text"))))
    return f"{clock} {text}"
