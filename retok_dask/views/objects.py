"""Summaries of recipes, reports, audits and data sets, and of any other dict.

Each function takes the plain dict that the object gives with ``to_dict()``
(or, for a data set, ``summary()``), so that drawing needs none of the rooms
that made it. What a function does not know by name it shows all the same, as
a fact or a table, so that nothing is hidden because it is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.errors import count_of
from retok_dask.views.summary import Summary, Table, cell, counts_table, is_name, named, percent, size, table
from retok_dask.views.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.recipe import Recipe

Data = dict[str, Any]
_VERDICT = {True: "PASSED", False: "FAILED"}


def recipe_summary(recipe: Recipe) -> Summary:
    """A recipe: where it reads, what it makes, and what differs from the defaults."""
    changed = recipe.model_dump(mode="json", exclude_defaults=True)
    rows = [(spec.name, spec.input, spec.mode, spec.format, spec.layout, spec.keep or None) for spec in recipe.datasets]
    template = recipe.template
    source = template.path or template.name or ("text in the recipe" if template.text else "the tokenizer's own")
    facts = [
        ("tokenizer", recipe.tokenizer.path),
        ("template", source),
        ("loss mask", recipe.mask),
        ("history", recipe.history),
        ("output", recipe.output),
    ]
    shown = {"tokenizer", "template", "mask", "history", "output", "datasets"}
    facts += [(name, value) for name, value in changed.items() if name not in shown]
    columns = ["data set", "input", "mode", "format", "layout", "keeps"]
    return Summary("Recipe", facts=_facts(facts), tables=[table("", columns, rows)])


def audit_summary(data: Data) -> Summary:
    """What a chat template does to the data."""
    settings = data.get("settings") or []
    summary = describe("Template audit", {name: value for name, value in data.items() if name != "settings"})
    titles = {
        "rows": "What it does, and how many records that touches",
        "roles": "Sequences of roles",
        "history": "History, in characters",
        "rejected": "Records that it cannot render",
    }
    for each in summary.tables:
        each.title = titles.get(each.title, each.title)
    summary.tables[1:1] = [switch_table(one) for one in settings]
    return summary


def switch_table(data: Data) -> Table:
    """A tokenizer setting (``Switch.to_dict()``): its probe words as tokens off and on."""
    rows = [
        (one["word"], " | ".join(one["off"]), " | ".join(one["on"]), "differs" if one["differs"] else "same")
        for one in data["words"]
    ]
    title = f"{data['setting']} is {data['value']}, {data['in_force']} in this run"
    names = [f"{side}, in force" if side == data["in_force"] else side for side in ("off", "on")]
    return table(title, ["word", *names, "ids"], rows)


def validation_summary(data: Data) -> Summary:
    """A validation report: the verdict, failed checks first, then what was checked."""
    checks = data.get("checks", [])
    order = {"FAILED": 0, "WARNING": 1, "SKIPPED": 2, "PASSED": 3}
    rows = sorted(((_check_word(check), *_check_cells(check)) for check in checks), key=lambda row: order[row[0]])
    failed = [row[1] for row in rows if row[0] == "FAILED"]
    lines = [f"{len(failed)} of {count_of(len(rows), 'check')} failed: {', '.join(failed[:12])}"]
    if not failed:
        lines = [f"{count_of(len(rows), 'check')}, none failed"]
    rest = {name: value for name, value in data.items() if name not in {"checks", "passed"}}
    summary = describe("Validation", rest)
    summary.verdict = _VERDICT[bool(data.get("passed"))]
    warned = [row[1] for row in rows if row[0] == "WARNING"]
    lines += [f"look at: {', '.join(warned[:12])}"] if warned else []
    summary.lines = lines
    summary.tables.insert(0, table("Checks", ["verdict", "check", "finding", "numbers"], rows, limit=80))
    return summary


def validation_html(report: Any) -> str:
    """A validation report as HTML for a notebook cell."""
    return validation_summary(report.to_dict())._repr_html_()


def _check_word(check: Data) -> str:
    if check.get("passed"):
        return "SKIPPED" if check.get("severity") == "info" else "PASSED"
    return "WARNING" if check.get("severity") in {"warning", "info"} else "FAILED"


def _check_cells(check: Data) -> tuple[Any, Any, Any]:
    return one_line(check.get("name", ""), 60), check.get("detail") or "", check.get("numbers") or ""


def dataset_summary(data: Data) -> Summary:
    """A written data set, from its manifest alone."""
    known = {"url", "datasets", "units", "rows", "tokens", "loss_tokens", "columns"}
    facts = [
        ("place", data.get("url")),
        ("data sets", data.get("datasets")),
        ("rows", data.get("rows")),
        ("tokens", data.get("tokens")),
        ("trained", f"{cell(data.get('loss_tokens'))} ({percent(data.get('loss_tokens', 0), data.get('tokens', 0))})"),
        ("units", data.get("units")),
        ("columns", data.get("columns")),
    ]
    facts += [(name.replace("_", " "), value) for name, value in data.items() if name not in known]
    return Summary("Tokens", facts=_facts(facts))


def describe(title: str, data: Mapping[str, Any]) -> Summary:
    """Any nested dict: scalars as facts, counts and lists of records as tables, by the order they have."""
    facts: list[tuple[str, Any]] = []
    tables: list[Table] = []
    verdict = ""
    for name, value in data.items():
        label = name.replace("_", " ")
        if name == "passed" and isinstance(value, bool):
            verdict = _VERDICT[value]
        elif name == "verdict" and isinstance(value, str):
            verdict = one_line(value, 30)
        elif isinstance(value, dict) and value:
            tables.append(_dict_table(label, value))
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            tables.append(_records_table(label, value))
        else:
            facts.append((label, _with_unit(name, value)))
    return Summary(title, verdict, facts=_facts(facts), tables=tables)


def _facts(pairs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(label, named(label, value)) for label, value in pairs if value not in (None, "", [], {})]


def _with_unit(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if is_name(name):
        return str(value)
    if name.endswith("_bytes") or name in {"bytes", "memory"}:
        return size(value)
    if name.endswith("share"):
        return f"{100 * value:.2f} %"
    return f"{value:,.1f} s" if name.endswith("seconds") else value


def _dict_table(label: str, value: dict[str, Any]) -> Table:
    if all(isinstance(each, dict) for each in value.values()):
        return _records_table(label, [{"": name, **each} for name, each in value.items()])
    if all(isinstance(each, int) and not isinstance(each, bool) for each in value.values()):
        return counts_table(label, value, name="", number="count")
    return table(
        label, ["", "value"], [(name.replace("_", " "), _with_unit(name, each)) for name, each in value.items()]
    )


def _records_table(label: str, records: list[dict[str, Any]]) -> Table:
    columns = list(dict.fromkeys(key for record in records[:100] for key in record))
    rows = [[_with_unit(key, record.get(key)) for key in columns] for record in records]
    return table(label, [key.replace("_", " ") for key in columns], rows)
