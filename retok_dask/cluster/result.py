"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.cluster.progress import duration, short
from retok_dask.errors import count_of
from retok_dask.kernel import UnitStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.datasets import Manifest, Receipt
    from retok_dask.recipe import Recipe


POOR = 0.5
"""Share of a data set's records whose rejection is worth a word, though the whole run has few rejects."""


def poor(name: str, stats: UnitStats) -> str:
    """What is to be said of a data set that gives no rows, or loses most of its records; else empty."""
    if stats.samples and stats.reject_share < POOR:
        return ""
    why = ", ".join(f"{reason} {count:,}" for reason, count in (stats.rejected + stats.filtered).most_common(5))
    left_out = sum(stats.rejected.values()) + sum(stats.filtered.values())
    what = (
        f"{left_out:,} of {count_of(stats.records_in, 'record')} left out ({why})"
        if why
        else "its input holds no records"
    )
    return f"data set {name!r} has {'few' if stats.samples else 'no'} rows: {what}"


@dataclass(frozen=True)
class RunResult:
    """The end of a run.

    Attributes:
        output: the output folder.
        stats: counts of the whole run, earlier sessions included.
        units: units of the whole run.
        failed: why a unit has no output, by its id.
        content_digest: hex, of all rows in any order; empty while units are missing.
        max_reject_share: the recipe's limit.
        did_nothing: the output was finished before.
        seconds: of this session.
        committed_now, committed_before: units of this session and of earlier ones.
        worker_deaths, retries, set_aside: of this session.
        performance: where Dask's performance report lies, or why there is none; empty if none was asked for.
        warnings: what went otherwise than asked for though every unit is done; of this session.
    """

    output: str
    stats: UnitStats
    units: int
    failed: dict[str, str] = field(default_factory=dict)
    content_digest: str = ""
    max_reject_share: float = 0.001
    did_nothing: bool = False
    seconds: float = 0.0
    committed_now: int = 0
    committed_before: int = 0
    worker_deaths: int = 0
    retries: int = 0
    set_aside: int = 0
    performance: str = ""
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of_manifest(cls, recipe: Recipe, manifest: Manifest, *, did_nothing: bool = False) -> RunResult:
        """The result of a run whose units are all committed."""
        return cls(
            recipe.output,
            manifest.total,
            len(manifest.units),
            dict(manifest.failed),
            manifest.content_digest,
            recipe.max_reject_share,
            did_nothing,
            committed_before=len(manifest.units) if did_nothing else 0,
            warnings=[text for name, stats in manifest.datasets.items() if (text := poor(name, stats))],
        )

    @classmethod
    def of_receipts(
        cls, recipe: Recipe, receipts: Mapping[str, Receipt], failed: dict[str, str], units: int
    ) -> RunResult:
        """The result of a run with units that could not be done."""
        total = UnitStats()
        for receipt in receipts.values():
            total += UnitStats.from_dict(receipt.stats)
        return cls(recipe.output, total, units, failed, max_reject_share=recipe.max_reject_share)

    @property
    def too_many_rejects(self) -> bool:
        """Whether more records were rejected than the recipe allows."""
        return self.stats.reject_share > self.max_reject_share

    @property
    def exit_code(self) -> int:
        """0 if every unit is committed and rejects are within the limit, else 1."""
        return 1 if self.failed or self.too_many_rejects else 0

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.failed:
            name, why = next(iter(self.failed.items()))
            return (
                f"without output: {len(self.failed):,} of {count_of(self.units, 'unit')}; the first is {name!r}: {why}. "
                "The others are committed; start the same command again to try those"
            )
        if self.too_many_rejects:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.stats.rejected.most_common(5))
            return (
                f"all units are written, but {self.stats.reject_share:.2%} of the records were rejected "
                f"(limit {self.max_reject_share:.2%}): {reasons}; `retok rejects {self.output}` shows them"
            )
        if self.did_nothing:
            return f"nothing to do: {self.output} is finished"
        return f"done: {self.output} is finished"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "output": self.output,
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "did_nothing": self.did_nothing,
            "units": self.units,
            "committed_now": self.committed_now,
            "committed_before": self.committed_before,
            "failed": self.failed,
            "seconds": round(self.seconds, 2),
            "worker_deaths": self.worker_deaths,
            "retries": self.retries,
            "set_aside": self.set_aside,
            "content_digest": self.content_digest,
            "performance": self.performance,
            "warnings": self.warnings,
            "stats": self.stats.to_dict(),
        }

    def _facts(self) -> list[tuple[str, str]]:
        stats = self.stats
        filtered = sum(stats.filtered.values())
        facts = [
            ("units", f"{self.committed_now + self.committed_before:,} of {self.units:,}, {self.committed_now:,} now"),
            (
                "records",
                f"{stats.records_in:,} in, {stats.records_out:,} out, {sum(stats.rejected.values()):,} rejected, {filtered:,} filtered",
            ),
            ("samples", f"{stats.samples:,}"),
            ("tokens", f"{stats.tokens:,}, {stats.trained_share:.1%} trained"),
            (
                "time",
                f"{duration(self.seconds)}, {short(stats.tokens / self.seconds)} tokens/s"
                if self.seconds and not self.committed_before
                else duration(self.seconds),
            ),
        ]
        for name, value in (
            ("worker deaths", self.worker_deaths),
            ("retries", self.retries),
            ("set aside", self.set_aside),
            ("performance", self.performance),
        ):
            if value:
                facts.append((name, f"{value:,}" if isinstance(value, int) else str(value)))
        return [*facts, *(("warning", text) for text in self.warnings)]

    def to_text(self) -> str:
        """For a terminal."""
        return "\n".join([self.verdict, *(f"  {name:<14}{value}" for name, value in self._facts())])

    __str__ = to_text
    __repr__ = to_text

    def _repr_html_(self) -> str:
        from retok_dask.views import run_summary  # noqa: PLC0415  views draws; a notebook alone needs it

        return run_summary(self.to_dict())._repr_html_()
