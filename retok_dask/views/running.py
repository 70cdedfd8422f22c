"""Summaries of a plan, of a run's state and of its end.

As in :mod:`~retok_dask.views.objects` they are made of plain dicts; what they
do not know by name is shown all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.errors import count_of
from retok_dask.views.objects import audit_summary, describe, switch_table
from retok_dask.views.summary import Summary, Table, cell, counts_table, duration, percent, size, table

if TYPE_CHECKING:
    from collections.abc import Iterator

Data = dict[str, Any]

_WHOLE = {"rejected": "rejects", "filtered": "filtered records"}
"""What the shares of a table of counts are shares of, where that is not what is counted."""

SHOWN_EVENTS = 8
"""Last notable events of a run that is not finished."""


def plan_summary(data: Data) -> Summary:
    """What a run would give and cost, what it would leave out, and what its settings change."""
    known = {"datasets", "total", "workers", "worker_memory", "needed_memory", "seconds", "settings", "notes", "audit"}
    summary = describe("Plan", _rest(data, known))
    total = _dict(data.get("total"))
    if total:
        summary.lines.append(
            f"{cell(total['tokens'])} tokens in about {duration(data['seconds'])} on {count_of(data['workers'], 'worker')}, "
            f"{size(total['output_bytes'])} of Parquet"
        )
    if data.get("needed_memory"):
        has = f", and has {size(data['worker_memory'])}" if data.get("worker_memory") else ""
        summary.facts.append(("memory", f"a worker needs about {size(data['needed_memory'])}{has}"))
    datasets = _records(data.get("datasets"))
    tables = [
        _predicted(datasets),
        _sampled(datasets),
        _history(datasets),
        *map(switch_table, _records(data.get("settings"))),
    ]
    summary.tables = [each for each in tables if each.rows] + [*_control_tokens(datasets), *summary.tables]
    summary.lines += [str(note) for note in data.get("notes") or ()]
    if _dict(data.get("audit")):
        audit = audit_summary(data["audit"])
        for number, each in enumerate(audit.tables):
            each.title, each.folded = f"Template: {each.title}", number > 0
        summary.facts += [(f"template audit, {label}", value) for label, value in audit.facts]
        summary.tables += audit.tables
    return summary


def _predicted(datasets: list[Data]) -> Table:
    columns = [
        "data set",
        "files",
        "units",
        "text",
        "records",
        "rows",
        "tokens",
        "trained",
        "rejected of records",
        "output",
    ]
    rows = [
        (
            *(one.get("name"), one.get("files"), one.get("units"), size(one.get("bytes") or 0), one.get("records")),
            *(one.get("samples"), one.get("tokens"), _share(one.get("trained_share"))),
            *(percent(one.get("rejected") or 0, one.get("records") or 0), size(one.get("output_bytes") or 0)),
        )
        for one in datasets
    ]
    return table("Predicted", columns, rows, bars=("trained", "rejected of records"))


def _sampled(datasets: list[Data]) -> Table:
    rows = [
        # what is noticed is counted by message or character: no share of the records
        (one.get("name"), what, name, count, "-" if what == "noticed" else percent(count, one.get("sampled") or 0))
        for one in datasets
        for what, counts in (
            ("layout", one.get("layouts")),
            ("rejected", one.get("reject_reasons")),
            ("filtered", one.get("filter_reasons")),
            ("noticed", one.get("noticed")),
        )
        for name, count in _dict(counts).items()
    ]
    return table(
        "In the sample", ["data set", "", "which", "number", "share of records"], rows, bars=("share of records",)
    )


def _history(datasets: list[Data]) -> Table:
    rows = [
        (one.get("name"), choice, cost["samples"], cost["tokens"], cost["loss_tokens"], _over(cost))
        for one in datasets
        for choice, cost in _dict(one.get("history")).items()
    ]
    columns = ["data set", "history", "rows", "tokens", "trained tokens", "trained share"]
    return table("What a history costs and trains", columns, rows, bars=("trained share",))


def _over(cost: Data) -> str:
    return percent(cost["loss_tokens"], cost["tokens"])


def _control_tokens(datasets: list[Data]) -> Iterator[Table]:
    """Lengths before and after, and what becomes of control tokens, for data that are ids already."""
    moved = [one for one in datasets if one.get("source_tokens")]
    if moved:
        rows = [
            (one["name"], one["source_tokens"], one["tokens"], f"{one['tokens'] / one['source_tokens'] - 1:+.1%}")
            for one in moved
        ]
        yield table("Old and new lengths", ["data set", "old tokens", "new tokens", "change"], rows)
    for one in datasets:
        if one.get("token_table"):
            names = [row for row in one["token_table"] if row["rule"] != "same text"]
            kept = len(one["token_table"]) - len(names)
            columns = ["token", "becomes", "rule"]
            title = f"Control tokens of {one['name']}: the same text for {kept:,}"
            yield table(title, columns, [[row[name] for name in columns] for row in names], folded=True)


def run_summary(data: Data) -> Summary:
    """The end of a run: its verdict, what became of the records, and what went wrong on the way."""
    stats = _dict(data.get("stats"))
    known = {"verdict", "exit_code", "stats", "failed", "seconds", "committed_now", "committed_before", "units"}
    rest = _rest(data, known if stats else known - {"stats"})
    summary = describe("Run", {name: value for name, value in rest.items() if value not in (0, False)})
    if "exit_code" in data:
        summary.verdict = "FAILED" if data["exit_code"] else "PASSED"
    if data.get("verdict"):
        summary.lines.append(str(data["verdict"]))
    summary.facts = [*_run_facts(data, stats), *summary.facts]
    failed = _dict(data.get("failed"))
    first = [table("Units without output", ["unit", "why"], failed.items())] if failed else []
    for title, name, number in (
        ("Rejected", "rejected", "records"),
        ("Filtered", "filtered", "records"),
        ("Noticed on the way", "counts", "number"),
        ("Tokens by kind", "kind_tokens", "tokens"),
    ):
        counts = _dict(stats.get(name))
        if counts:
            # what was noticed is no part of one whole
            made = counts_table(
                title, counts, name="", number=number, of=_WHOLE.get(name, ""), folded=name in {"counts", "kind_tokens"}
            )
            first.append(made if name != "counts" else table(title, ["", number], _falling(counts), folded=True))
    summary.tables = [*first, *summary.tables]
    return summary


def _run_facts(data: Data, stats: Data) -> Iterator[tuple[str, str]]:
    if "units" in data:
        now, before = data.get("committed_now", 0), data.get("committed_before", 0)
        yield "units", f"{cell(now + before)} of {cell(data['units'])}, {cell(now)} in this session"
    if "records_in" in stats:
        left = {name: sum(_dict(stats.get(name)).values()) for name in ("rejected", "filtered")}
        yield (
            "records",
            (
                f"{cell(stats['records_in'])} in, {cell(stats['records_out'])} out, "
                f"{cell(left['rejected'])} rejected, {cell(left['filtered'])} filtered"
            ),
        )
    for name in ("samples", "tokens"):
        if name in stats:
            yield name, cell(stats[name])
    if "loss_tokens" in stats:
        yield "trained", f"{cell(stats['loss_tokens'])} ({percent(stats['loss_tokens'], stats['tokens'])})"
    if isinstance(data.get("seconds"), int | float):
        yield "time", duration(data["seconds"])


def status_summary(data: Data) -> Summary:
    """Where one or more runs stand, by data set, with the last events of those that are not finished."""
    outputs = _records(data.get("outputs"))
    summary = describe("Status", _rest(data, {"outputs", "finished"} if outputs else set()))
    columns = ["output", "data set", "state", "units", "of", "done", "records", "rows", "tokens", "trained"]
    columns += ["rejected", "filtered"]
    rows = [row for output in outputs for row in _standing(output)]
    live = any(output.get("tokens_per_second") for output in outputs)
    if outputs:
        columns += ["tokens/s", "left"] if live else []
        kept = [row if live else row[:-2] for row in rows]
        summary.tables.insert(0, table("", columns, kept, bars=("done", "trained")))
    for output in outputs:
        if output.get("state") != "finished":
            summary.lines.append(f"{output['url']}: {output['state']}{', ' + output['text'] if output['text'] else ''}")
            summary.lines += _events(output.get("timeline") or [])
    return summary


def _standing(output: Data) -> Iterator[tuple[Any, ...]]:
    rate = output.get("tokens_per_second") or None
    left = duration(output["seconds_left"]) if output.get("seconds_left") is not None else None
    name = str(output["url"])
    place = name if len(name) <= 60 else f"…{name[-59:]}"
    for one in output.get("datasets") or [{}]:
        yield (
            *(place, one.get("name"), output["state"], one.get("units_done"), one.get("units_total")),
            *(percent(one.get("units_done", 0), one.get("units_total", 0)), one.get("records"), one.get("samples")),
            *(one.get("tokens"), percent(one.get("loss_tokens", 0), one.get("tokens", 0)), one.get("rejected")),
            *(one.get("filtered"), rate, left),
        )
        place, rate, left = "", None, None


def _events(timeline: list[Data]) -> list[str]:
    from retok_dask.cluster.status import describe_event  # noqa: PLC0415  heavy, and only runs that go on need it

    return [describe_event(event) for event in timeline[-SHOWN_EVENTS:]]


def _falling(counts: Data) -> list[tuple[str, Any]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _rest(data: Data, known: set[str]) -> Data:
    return {name: value for name, value in data.items() if name not in known}


def _dict(value: Any) -> Data:
    return value if isinstance(value, dict) else {}


def _records(value: Any) -> list[Data]:
    return value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else []


def _share(value: Any) -> str:
    return percent(value, 1) if isinstance(value, int | float) else "-"
