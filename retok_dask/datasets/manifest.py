"""The manifest: a finished run in one file, written last."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.datasets.digest import ContentDigest
from retok_dask.datasets.fingerprint import read_run
from retok_dask.datasets.folder import MANIFEST, RECIPE, RUN, OutputFolder
from retok_dask.datasets.receipts import FileRecord, Receipt
from retok_dask.errors import OutputError, UnfinishedOutput, count_of
from retok_dask.kernel.stats import UnitStats
from retok_dask.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = "retok-manifest"

ACCOUNTED = ("records_in", "records_out", "rejected", "filtered", "samples", "tokens", "loss_tokens")


@dataclass(frozen=True)
class UnitEntry:
    """A unit as the manifest lists it: its files, counts and content digest, without statistics."""

    unit: str
    dataset: str
    outputs: tuple[FileRecord, ...]
    summary: dict[str, int]
    counts: dict[str, int]
    content_digest: str

    @classmethod
    def of(cls, receipt: Receipt) -> UnitEntry:
        stats = UnitStats.from_dict(receipt.stats)
        return cls(
            receipt.unit, receipt.dataset, receipt.outputs, receipt.summary, counts_of(stats), receipt.content_digest
        )

    def output(self, role: str) -> FileRecord | None:
        """The file with a role, if the unit wrote one."""
        return next((item for item in self.outputs if item.role == role), None)


@dataclass(frozen=True)
class Manifest:
    """A finished run.

    Attributes:
        fingerprint: digest of the run's fingerprint.
        units: every unit, by id, in the order of data sets and ids.
        datasets: statistics of each data set.
        total: statistics of the run.
        content_digest: hex, of all rows in any order.
        run: the run's ``run.json``.
        recipe: the recipe's YAML text.
        failed: why a unit has no output, by unit id; empty for a whole run.
    """

    fingerprint: str
    units: dict[str, UnitEntry]
    datasets: dict[str, UnitStats]
    total: UnitStats
    content_digest: str
    run: dict[str, Any]
    recipe: str
    failed: dict[str, str] = field(default_factory=dict)
    written: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    schema_version: int = SCHEMA_VERSION

    @property
    def rows(self) -> int:
        return sum(entry.summary["rows"] for entry in self.units.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "schema_version": self.schema_version,
            "written": self.written,
            "fingerprint": self.fingerprint,
            "content_digest": self.content_digest,
            "total": self.total.to_dict(),
            "datasets": {name: stats.to_dict() for name, stats in self.datasets.items()},
            "failed": self.failed,
            "run": self.run,
            "recipe": self.recipe,
            "units": [
                {
                    "unit": entry.unit,
                    "dataset": entry.dataset,
                    "outputs": [[f.role, f.path, f.size, f.sha256, f.rows] for f in entry.outputs],
                    "summary": entry.summary,
                    "counts": entry.counts,
                    "content_digest": entry.content_digest,
                }
                for entry in self.units.values()
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """The manifest of a parsed JSON object.

        Raises:
            OutputError: it is no manifest, or of another schema version.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            msg = "this is no manifest of retok"
            raise OutputError(msg)
        if data.get("schema_version") != SCHEMA_VERSION:
            msg = f"the manifest has schema version {data.get('schema_version')}, this program reads {SCHEMA_VERSION}"
            raise OutputError(msg)
        try:
            units = [_unit_entry(item) for item in data["units"]]
            return cls(
                fingerprint=data["fingerprint"],
                units={entry.unit: entry for entry in units},
                datasets={name: UnitStats.from_dict(stats) for name, stats in data["datasets"].items()},
                total=UnitStats.from_dict(data["total"]),
                content_digest=data["content_digest"],
                run=data["run"],
                recipe=data["recipe"],
                failed=data["failed"],
                written=data["written"],
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the manifest is damaged: {error!r}"
            raise OutputError(msg) from error


def build_manifest(
    receipts: Mapping[str, Receipt],
    *,
    run: dict[str, Any],
    recipe: str,
    expected: Iterable[str] | None = None,
    failed: Mapping[str, str] | None = None,
) -> Manifest:
    """Sum up receipts, and check the accounting on the way.

    Args:
        receipts: committed units by id.
        run: the run's ``run.json``.
        recipe: the recipe's YAML text.
        expected: ids of all units of the run; each must be committed or failed.
        failed: why a unit has no output.

    Raises:
        OutputError: a unit is missing, or the numbers do not add up.
    """
    failed = dict(failed or {})
    missing = sorted(set(expected or ()) - receipts.keys() - failed.keys())
    if missing:
        msg = f"neither committed nor failed: {count_of(len(missing), 'unit')}, the first is {missing[0]!r}; resume the run"
        raise OutputError(msg)
    content = ContentDigest()
    datasets: dict[str, UnitStats] = {}
    total = UnitStats()
    for receipt in sorted(receipts.values(), key=lambda item: (item.dataset, item.unit)):
        stats = UnitStats.from_dict(receipt.stats)
        problem = accounting_problem(receipt, stats)
        if problem:
            msg = f"unit {receipt.unit!r} does not add up: {problem}; delete its receipt and resume the run"
            raise OutputError(msg)
        datasets.setdefault(receipt.dataset, UnitStats())
        datasets[receipt.dataset] += stats
        total += stats
        content.add_hex(receipt.content_digest)
    ordered = sorted(receipts.values(), key=lambda item: (item.dataset, item.unit))
    return Manifest(
        fingerprint=run["fingerprint"],
        units={receipt.unit: UnitEntry.of(receipt) for receipt in ordered},
        datasets=datasets,
        total=total,
        content_digest=content.hex,
        run=run,
        recipe=recipe,
        failed=failed,
    )


def write_manifest(
    folder: OutputFolder,
    receipts: Mapping[str, Receipt],
    *,
    expected: Iterable[str] | None = None,
    failed: Mapping[str, str] | None = None,
) -> Manifest:
    """Write the manifest of a run that is over; see :func:`build_manifest`.

    Raises:
        OutputError: the folder holds no run, a unit is missing, or the
            numbers do not add up.
    """
    run = read_run(folder)
    if run is None:
        msg = f"{folder.url} has no run.json; only a run writes a manifest"
        raise OutputError(msg)
    recipe = folder.read_bytes(RECIPE).decode()
    manifest = build_manifest(receipts, run=run, recipe=recipe, expected=expected, failed=failed)
    folder.write_json(MANIFEST, manifest.to_dict())
    return manifest


def read_manifest(folder: OutputFolder) -> Manifest:
    """The manifest of a finished run.

    Raises:
        UnfinishedOutput: a run is there, but has not finished.
        OutputError: no run is there, or the manifest is of another version.
    """
    data = folder.read_json(MANIFEST)
    if data is not None:
        return Manifest.from_dict(data)
    if folder.exists(RUN):
        msg = f"the run in {folder.url} has not finished: it has no manifest; start the same command again to resume it"
        raise UnfinishedOutput(msg)
    msg = f"{folder.url} holds no run of retok: it has neither a manifest nor a run.json; check the path"
    raise OutputError(msg)


def counts_of(stats: UnitStats) -> dict[str, int]:
    """The numbers of the accounting, rejects and filters summed over their reasons."""
    data: dict[str, int] = {}
    for name in ACCOUNTED:
        value = getattr(stats, name)
        data[name] = value if isinstance(value, int) else int(sum(value.values()))
    return data


def accounting_problem(receipt: Receipt, stats: UnitStats) -> str | None:
    """Which equation of the contract a unit breaks; None if all hold."""
    numbers = counts_of(stats)
    left_out = numbers["rejected"] + numbers["filtered"]
    if numbers["records_in"] != numbers["records_out"] + left_out:
        return (
            f"{count_of(numbers['records_in'], 'record')} in, {numbers['records_out']:,} out and {left_out:,} left out"
        )
    samples = receipt.output("samples")
    rejects = receipt.output("rejects")
    for name, expected, found in (
        ("samples", numbers["samples"], samples.rows if samples else 0),
        ("rows", receipt.summary["rows"], samples.rows if samples else 0),
        ("tokens", numbers["tokens"], receipt.summary["tokens"]),
        ("trained tokens", numbers["loss_tokens"], receipt.summary["loss_tokens"]),
    ):
        if expected != found:
            return f"{expected:,} {name} counted, {found:,} written"
    if rejects and rejects.rows > left_out:
        return f"{count_of(rejects.rows, 'row')} of rejects written, {count_of(left_out, 'record')} left out"
    return None


def _unit_entry(item: Mapping[str, Any]) -> UnitEntry:
    outputs = tuple(FileRecord(*record) for record in item["outputs"])
    return UnitEntry(item["unit"], item["dataset"], outputs, item["summary"], item["counts"], item["content_digest"])
