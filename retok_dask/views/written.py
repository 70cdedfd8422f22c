"""A written run, looked at: accounting, distributions, drift, strange samples, time line.

Numbers come from receipts and the manifest; only samples that are drawn are
read from Parquet. Works for a run that has not finished, as far as it came.
"""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.cluster.events import read_events
from retok_dask.datasets import OutputFolder, open_dataset, read_receipts, read_recipe, read_run
from retok_dask.errors import OutputError, RetokError, UnfinishedOutput, count_of, first_few
from retok_dask.kernel import UnitStats
from retok_dask.views import plots, timeline
from retok_dask.views.loaded import tokenizer_of
from retok_dask.views.objects import recipe_summary
from retok_dask.views.stack import Stack
from retok_dask.views.summary import Summary, cell, percent, table
from retok_dask.views.tokens import token_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retok_dask.datasets import Receipt, TokenDataset
    from retok_dask.recipe import Recipe, StorageSpec
    from retok_dask.tokenizers import Tokenizer

_DRIFT_UNITS = 4
"""Fewer units than this tell nothing about drift."""

_REJECT_FILES = 200
"""Files of rejects that are opened to show some."""

_NO_ROWS = "There are no rows to show: none was written, or the run has not finished."


@contextmanager
def _unreadable(stack: Stack, name: str) -> Iterator[None]:
    """Show that rows of a data set cannot be read, in their place: the checks judge it."""
    try:
        yield
    except (RetokError, OSError, pa.ArrowException) as error:
        stack.add(f"{name}: cannot be read", Summary(name, lines=[str(error)]))


class WrittenRun:
    """Everything that a report shows about one output folder.

    Args:
        url: the folder.
        storage: how to reach it; None takes the environment's settings.

    Raises:
        OutputError: the folder holds no run.
    """

    def __init__(self, url: str, storage: StorageSpec | None = None) -> None:
        self.folder = OutputFolder(url, storage)
        run = read_run(self.folder)
        if run is None:
            msg = f"{url!r} holds no run of retok; check the path"
            raise OutputError(msg)
        self.run = run
        self.receipts: dict[str, Receipt] = read_receipts(self.folder, verify="size")

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as the run resolved it."""
        return read_recipe(self.folder)

    @cached_property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """Statistics by data set, in the recipe's order (``UnitStats.to_dict()``)."""
        sums = {spec.name: UnitStats() for spec in self.recipe.datasets}
        for receipt in self.receipts.values():
            sums.setdefault(receipt.dataset, UnitStats())
            sums[receipt.dataset] += UnitStats.from_dict(receipt.stats)
        return {name: stats.to_dict() for name, stats in sums.items()}

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """What happened, oldest first."""
        return read_events(self.folder)

    @cached_property
    def data(self) -> TokenDataset | None:
        """The samples; None while the run has not finished."""
        try:
            return open_dataset(self.folder.url, storage=self.folder.storage)
        except UnfinishedOutput:
            return None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        return tokenizer_of(self.recipe)

    # what was run

    def what(self) -> Summary:
        """Recipe, versions and digests."""
        summary = recipe_summary(self.recipe)
        content = self.run.get("content", {})
        for name in ("fingerprint", "started", "finished"):
            if self.run.get(name):
                summary.facts.append((name, cell(self.run[name])))
        summary.facts += [
            (f"{name} digest", cell(content[name])) for name in ("tokenizer", "template") if content.get(name)
        ]
        versions = {**content.get("versions", {}), **self.run.get("versions", {})}
        summary.tables.append(table("Versions", ["library", "version"], sorted(versions.items()), folded=True))
        inputs = self.run.get("inputs") or {}
        if inputs:
            summary.tables.append(table("Input", ["", "value"], list(inputs.items())))
        return summary

    def accounting(self) -> Summary:
        """Records in = out + rejected + filtered, for each data set and the whole."""
        total = UnitStats()
        rows = []
        for name, data in self.datasets.items():
            stats = UnitStats.from_dict(data)
            total += stats
            rows.append(_account(name, stats))
        rows.append(_account("all", total))
        columns = [
            "data set",
            "records in",
            "out",
            "rejected",
            "filtered",
            "adds up",
            "samples",
            "tokens",
            "trained",
            "trained share",
        ]
        summary = Summary("Accounting", tables=[table("", columns, rows, limit=200)])
        if self.data is None:
            summary.lines.append(
                f"The run has not finished: {count_of(len(self.receipts), 'unit')} committed, and there is no manifest."
            )
        for title, counts in (("Noticed on the way", total.counts), ("Seconds by stage", total.seconds)):
            if counts:
                ordered = sorted(counts.items(), key=lambda item: -item[1])
                summary.tables.append(table(title, ["", "number"], ordered, folded=True))
        return summary

    # distributions

    def lengths(self) -> plots.Plot:
        """Rows by length, the recipe's limits drawn."""
        limits = {"max_length": self.recipe.max_length} if self.recipe.max_length else {}
        return plots.lengths(self.datasets, limits=limits)

    def trained_share(self) -> plots.Plot:
        """Trained share by data set."""
        return plots.trained_share(self.datasets)

    def trained_by_position(self) -> plots.Plot:
        """Trained share by position in the row."""
        return plots.trained_by_position(self.datasets)

    def trained_share_of_rows(self) -> plots.Plot:
        """Rows by their own trained share."""
        return plots.trained_share_of_rows(self.datasets)

    def rejects(self) -> plots.Plot:
        """Records not written, by reason."""
        return plots.rejects(self.datasets)

    def tokens_per_byte(self) -> plots.Plot:
        """Tokens per byte by data set."""
        rates = {name: (stats["tokens"], stats["text_bytes"]) for name, stats in self.datasets.items()}
        return plots.tokens_per_byte({"run": rates})

    def drift(self) -> Summary:
        """Trained share, row length and tokens a byte of each unit against its data set; the furthest off first."""
        rows, few = [], []
        for name in self.datasets:
            units = [receipt for receipt in self.receipts.values() if receipt.dataset == name]
            if len(units) >= _DRIFT_UNITS:
                rows += _drift_rows(name, units)
            else:
                few.append(name)
        rows.sort(key=lambda row: -abs(row[-1]))
        shown = [(*row[:-1], f"{row[-1]:+.1f}") for row in rows]
        columns = ["data set", "unit", "samples", "trained share", "tokens a sample", "tokens a byte", "off"]
        summary = Summary("Drift between units")
        if rows:
            summary.lines.append("off: how far from the median of its data set, counted in the usual distance from it")
            summary.tables.append(table("", columns, shown, limit=12))
        if few:
            summary.lines.append(f"fewer than {_DRIFT_UNITS} units, nothing to compare: {first_few(few)}")
        return summary

    # single records

    def strangest(self, *, per_dataset: int = 1) -> Stack:
        """The longest rows, and those with the lowest and the highest trained share, of each data set, as tokens."""
        stack = Stack(nothing=_NO_ROWS)
        if self.data is None:
            return stack
        for name in self.datasets:
            data = self.data.filter(name)
            if not data.units:
                continue
            with _unreadable(stack, name):
                for what, indices in _extremes(data, per_dataset).items():
                    for row in data.take(indices):
                        stack.add(f"{name}: {what}", token_view(row, self.tokenizer, max_tokens=1200))
        return stack

    def samples(self, *, per_dataset: int = 1, seed: int = 0) -> Stack:
        """A few rows of each data set, chosen by a seed."""
        stack = Stack(nothing=_NO_ROWS)
        for name in self.datasets if self.data is not None else ():
            with _unreadable(stack, name):
                rows = self.data.filter(name).sample(per_dataset, seed) if self.data is not None else []
                for row in rows:
                    stack.add(f"{name}: chosen by seed {seed}", token_view(row, self.tokenizer, max_tokens=1200))
        return stack

    def rejected_records(self, *, limit: int = 25) -> Summary:
        """Records not written, some of each reason, the most frequent first, with their place and beginning."""
        found: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
        files = [(receipt, record) for receipt in self.receipts.values() if (record := receipt.output("rejects"))]
        for receipt, record in [(receipt, record) for receipt, record in files if record.rows][:_REJECT_FILES]:
            with self.folder.open_input(record.path) as source:
                for row in _first_of_each(source, limit):
                    found.setdefault((row["outcome"], row["reason"]), []).append((receipt.dataset, row))
        counts: Counter[tuple[str, str]] = Counter()
        for stats in self.datasets.values():
            for outcome in ("rejected", "filtered"):
                counts.update({(outcome, reason): number for reason, number in stats.get(outcome, {}).items()})
        # as many of each reason as there is room for: the first of each, the second of each, ...
        turns = zip_longest(*(found[key] for key in sorted(found, key=lambda key: -counts[key])))
        chosen = [one for turn in turns for one in turn if one is not None][:limit]
        chosen.sort(key=lambda one: -counts[one[1]["outcome"], one[1]["reason"]])
        rows = [
            (
                name,
                row["source_file"].rsplit("/", 1)[-1],
                row["source_row"],
                f"{row['reason']} ({row['outcome']})",
                row["detail"],
                (row["raw"] or b"")[:160].decode("utf-8", "backslashreplace"),
            )
            for name, row in chosen
        ]
        if not counts:
            return Summary("Records not written", lines=["Every record was written."])
        columns = ["data set", "file", "row", "reason", "detail", "begins"]
        shown = table("", columns, rows, limit=limit)
        shown.more = max(0, counts.total() - len(rows))
        return Summary("Records not written", tables=[shown])

    def audit(self, *, records: int = 200) -> Stack:
        """What the template does to the first records of each data set that has conversations."""
        from retok_dask.views.choosing import audit_recipe  # noqa: PLC0415  reads the input again

        stack = Stack(nothing="No data set holds conversations: no template is used.")
        for spec in self.recipe.datasets:
            if spec.mode in ("chat", "prompts"):
                stack.add(spec.name, audit_recipe(self.recipe, dataset=spec.name, records=records))
        return stack

    # time

    def throughput(self) -> plots.Plot:
        """Tokens per second over time."""
        return timeline.throughput(self.events)

    def memory(self) -> plots.Plot:
        """Memory of the workers."""
        return timeline.memory(self.events)

    def workers(self) -> plots.Plot:
        """What each worker did when, with deaths."""
        return timeline.workers(self.events)

    def stages(self) -> Summary:
        """Seconds by stage, of each data set, summed over workers."""
        stages = list(dict.fromkeys(name for stats in self.datasets.values() for name in stats.get("seconds", {})))
        rows = [
            (name, *(float(stats.get("seconds", {}).get(stage, 0.0)) for stage in stages), _rate(stats))
            for name, stats in self.datasets.items()
        ]
        columns = ["data set", *(f"{stage} s" for stage in stages), "tokens/s a worker"]
        return Summary("Time by stage", tables=[table("", columns, rows)])

    def story(self) -> Summary:
        """The events of the run but for progress and units, in order."""
        told = [event for event in self.events if event["kind"] not in {"progress", "unit"}]
        start = float(self.events[0]["at"]) if self.events else 0.0
        hidden = {"at", "kind", "session", "trace"}
        rows = [
            (
                f"{float(event['at']) - start:,.1f} s",
                event["kind"],
                {k: v for k, v in event.items() if k not in hidden and v not in ("", {}, [], None)},
            )
            for event in told
        ]
        return Summary("Events", tables=[table("", ["after", "event", "what"], rows, limit=60)])


def _first_of_each(source: Any, limit: int) -> list[dict[str, Any]]:
    """The first rejects of each reason; reads the records of no more row groups than hold them."""
    file = pq.ParquetFile(source)
    taken: Counter[tuple[str, str]] = Counter()
    rows: list[dict[str, Any]] = []
    for group in range(file.num_row_groups):
        reasons = file.read_row_group(group, columns=["outcome", "reason"]).to_pylist()
        wanted = []
        for index, row in enumerate(reasons):
            key = row["outcome"], row["reason"]
            if taken[key] < limit:
                taken[key] += 1
                wanted.append(index)
        if wanted:
            rows += file.read_row_group(group).take(wanted).to_pylist()
    return rows


def _rate(stats: dict[str, Any]) -> float:
    seconds = sum(stats.get("seconds", {}).values())
    return float(stats["tokens"] / seconds) if seconds else 0.0


def _account(name: str, stats: UnitStats) -> tuple[Any, ...]:
    return (
        name,
        stats.records_in,
        stats.records_out,
        sum(stats.rejected.values()),
        sum(stats.filtered.values()),
        stats.balanced,
        stats.samples,
        stats.tokens,
        stats.loss_tokens,
        percent(stats.loss_tokens, stats.tokens),
    )


def _drift_rows(name: str, units: list[Receipt]) -> list[tuple[Any, ...]]:
    """One row a unit; the last value is its distance from the median in robust spreads."""
    stats = [UnitStats.from_dict(receipt.stats) for receipt in units]
    shares = np.array([each.trained_share for each in stats])
    lengths = np.array([each.tokens / max(1, each.samples) for each in stats])
    rates = np.array([each.tokens / max(1, each.text_bytes) for each in stats])
    scores = np.stack([_spreads(shares), _spreads(lengths), _spreads(rates)])
    worst = scores[np.abs(scores).argmax(axis=0), np.arange(len(units))]
    return [
        (name, receipt.unit, each.samples, f"{100 * share:.1f} %", f"{length:,.1f}", f"{rate:.4f}", float(score))
        for receipt, each, share, length, rate, score in zip(units, stats, shares, lengths, rates, worst, strict=True)
    ]


def _spreads(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    middle = np.median(values)
    # 1.4826 makes the median deviation equal a standard deviation for normal values
    spread = 1.4826 * np.median(np.abs(values - middle))
    scores: np.ndarray[Any, Any] = (values - middle) / max(spread, 1e-9 + 0.001 * abs(middle))
    return scores


def _extremes(data: TokenDataset, count: int) -> dict[str, list[int]]:
    """Row numbers of the longest rows and of the lowest and highest trained share; reads two columns only."""
    counts = data.select(["num_tokens", "num_loss_tokens"])
    ranks: dict[str, list[tuple[float, int]]] = {"longest": [], "lowest trained share": [], "highest trained share": []}
    row = 0
    for batch in counts.batches():
        tokens = batch.column("num_tokens").to_numpy()
        share = batch.column("num_loss_tokens").to_numpy() / np.maximum(tokens, 1)
        for name, values in zip(ranks, (tokens, -share, share), strict=True):
            best = np.argsort(-values, kind="stable")[:count]
            # of equal values the first row wins, so that a report is the same every time
            ranks[name] = heapq.nlargest(count, [*ranks[name], *((float(values[i]), -(row + int(i))) for i in best)])
        row += len(tokens)
    chosen: dict[str, list[int]] = {}
    seen: set[int] = set()
    for name, best_rows in ranks.items():
        fresh = [-number for _, number in best_rows if -number not in seen]
        seen.update(fresh)
        if fresh:
            chosen[name] = fresh
    return chosen
