"""Canaries, drift between units, and the user's own bounds: judged from statistics alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.checks.report import Check, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retok_dask.datasets import Manifest, Receipt
    from retok_dask.kernel import UnitStats
    from retok_dask.recipe import Recipe

TOKENS_PER_BYTE = (0.02, 1.5)
"""Outside of it, text and tokenizer hardly belong together: English is near 0.25, random bytes near 1."""

FIRST_TOKEN_SHARE = 0.5
"""A template begins all its rows alike; a chat data set whose rows do not is worth a look."""

STOP_SHARE = 0.5

UNKNOWN_SHARE = 0.001
"""Tokens that stand for text the tokenizer could not keep."""

BYTE_SHARE = 0.5
"""Tokens that are one byte of a character: a vocabulary that hardly knows the script, or damaged text."""

DRIFT_DEVIATIONS = 6.0
DRIFT_RELATIVE = 0.3
"""A unit drifts if it is further from its data set's median than both say."""

DRIFT_UNITS = 8
"""Fewest units of a data set among which drift is looked for."""

METRICS: dict[str, Callable[[UnitStats], float]] = {
    "rows": lambda s: s.samples,
    "tokens": lambda s: s.tokens,
    "loss_tokens": lambda s: s.loss_tokens,
    "mean_tokens": lambda s: s.tokens / max(s.samples, 1),
    "trained_share": lambda s: s.trained_share,
    "reject_share": lambda s: s.reject_share,
    "filter_share": lambda s: sum(s.filtered.values()) / max(s.records_in, 1),
    "truncated_share": lambda s: s.truncated / max(s.samples, 1),
    "tokens_per_byte": lambda s: s.tokens / max(s.text_bytes, 1),
    "bos_share": lambda s: s.bos_rows / max(s.samples, 1),
    "stop_share": lambda s: s.stop_rows / max(s.samples, 1),
    "unknown_share": lambda s: s.unknown_tokens / max(s.tokens, 1),
    "byte_share": lambda s: s.byte_tokens / max(s.tokens, 1),
    "fallback_share": lambda s: s.fallback_rows / max(s.samples, 1),
}
"""How each of the recipe's ``MEASURES`` is counted."""


def user_thresholds(recipe: Recipe, manifest: Manifest) -> Check:
    """The recipe's ``checks:``, each for the run and for every data set."""
    problems = []
    numbers: dict[str, Any] = {}
    scopes = {"the run": manifest.total} | {f"data set {n!r}": stats for n, stats in manifest.datasets.items()}
    for key, bound in recipe.checks.items():
        side, _, name = key.partition("_")
        for scope, stats in scopes.items():
            value = METRICS[name](stats)
            numbers[f"{name} of {scope}"] = value
            if value < bound if side == "min" else value > bound:
                relation = "less" if side == "min" else "more"
                problems.append(f"{name} of {scope} is {value:.6g}, {relation} than {bound:g}")
    held = f"{len(recipe.checks)} of the recipe, all hold" if recipe.checks else "the recipe sets none (checks:)"
    return verdict("thresholds", problems, held, numbers)


def reject_share(recipe: Recipe, manifest: Manifest) -> Check:
    """Rejected records over all records, against the recipe's limit."""
    share = manifest.total.reject_share
    reasons = dict(manifest.total.rejected.most_common(5))
    problems = []
    if share > recipe.max_reject_share:
        why = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        problems.append(f"{share:.4%} of the records were rejected ({why}), the limit is {recipe.max_reject_share:.4%}")
    return verdict("reject_share", problems, f"{share:.4%} of the records were rejected", {"share": share, **reasons})


def canaries(recipe: Recipe, manifest: Manifest) -> Check:
    """Simple shares that go wrong when tokenizer, template or text do not belong together."""
    problems: list[str] = []
    numbers: dict[str, Any] = {}
    modes: dict[str, str] = {spec.name: spec.mode for spec in recipe.datasets}
    for name, stats in manifest.datasets.items():
        if not stats.samples:
            problems.append(f"data set {name!r} has no rows")
            continue
        found = _canary_numbers(stats)
        numbers |= {f"{name}.{key}": value for key, value in found.items()}
        mode = modes.get(name, "chat")
        if mode == "text" and recipe.documents.chunk_tokens is not None:
            mode = "chunks"  # only the first chunk of a document begins with BOS
        problems += [f"data set {name!r}: {said}" for said in _canary_problems(mode, found)]
    return verdict("canaries", problems, "BOS, stop, first tokens and tokens a byte look right", numbers, "warning")


def _canary_numbers(stats: UnitStats) -> dict[str, float]:
    top = max(stats.first_tokens.values(), default=0)
    return {
        "tokens_per_byte": METRICS["tokens_per_byte"](stats) if stats.text_bytes else 0.0,
        "bos_share": METRICS["bos_share"](stats),
        "stop_share": METRICS["stop_share"](stats),
        "first_token_share": top / stats.samples,
        "trained_share": stats.trained_share,
        "unknown_share": METRICS["unknown_share"](stats),
        "byte_share": METRICS["byte_share"](stats),
    }


def _canary_problems(mode: str, found: dict[str, float]) -> list[str]:
    problems = []
    low, high = TOKENS_PER_BYTE
    rate = found["tokens_per_byte"]
    if rate and not low <= rate <= high:
        problems.append(f"{rate:.3f} tokens a byte of text, expected {low} to {high}")
    if 0 < found["bos_share"] < 1 and mode not in ("tokens", "chunks"):
        problems.append(f"{found['bos_share']:.2%} of the rows begin with BOS; it should be none or all")
    if found["unknown_share"] > UNKNOWN_SHARE:
        problems.append(f"{found['unknown_share']:.2%} of the tokens are the unknown token")
    if found["byte_share"] > BYTE_SHARE:
        problems.append(f"{found['byte_share']:.1%} of the tokens are single bytes of characters")
    if mode == "chat":
        if found["first_token_share"] < FIRST_TOKEN_SHARE:
            problems.append(f"only {found['first_token_share']:.1%} of the rows begin with the most common first token")
        if found["stop_share"] < STOP_SHARE:
            problems.append(f"only {found['stop_share']:.1%} of the rows have a stop token")
    return problems


def drift(manifest: Manifest, receipts: Mapping[str, Receipt]) -> Check:
    """Units whose trained share, row length or tokens a byte of text are far from those of their data set.

    Args:
        manifest: the whole run.
        receipts: by unit, as far as they can be read; they alone know the bytes of text.
    """
    problems: list[str] = []
    numbers: dict[str, Any] = {}
    for name in manifest.datasets:
        units = [unit for unit in manifest.units.values() if unit.dataset == name and unit.summary["rows"]]
        if len(units) < DRIFT_UNITS:
            continue
        size = {
            unit.unit: int(receipts[unit.unit].stats.get("text_bytes", 0)) for unit in units if unit.unit in receipts
        }
        sized = [unit for unit in units if size.get(unit.unit)]
        for what, chosen, values in (
            ("trained share", units, [unit.summary["loss_tokens"] / max(unit.summary["tokens"], 1) for unit in units]),
            ("tokens a row", units, [unit.summary["tokens"] / unit.summary["rows"] for unit in units]),
            ("tokens a byte", sized, [unit.summary["tokens"] / size[unit.unit] for unit in sized]),
        ):
            if len(chosen) < DRIFT_UNITS:
                continue
            middle, far = _outliers(np.array(values))
            numbers[f"{name}.{what}"] = middle
            problems += [
                f"unit {chosen[index].unit!r} has {what} {_number(values[index])}, data set {name!r} has {_number(middle)}"
                for index in far
            ]
    return verdict("drift", problems, "no unit is far from its data set", numbers, "warning")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _outliers(values: np.ndarray[Any, Any]) -> tuple[float, list[int]]:
    """The median, and places of values that are far from it by the median absolute deviation."""
    middle = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    distance = np.abs(values - middle)
    far = (distance > DRIFT_DEVIATIONS * spread) & (distance > DRIFT_RELATIVE * abs(middle))
    return middle, np.flatnonzero(far).tolist()
