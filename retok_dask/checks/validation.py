"""Checks of a written run against its contract."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.checks.encoding import encode_unit_again, load_encoder
from retok_dask.checks.report import Check, ValidationReport, skipped, verdict
from retok_dask.checks.rows import UnitFindings, scan_unit
from retok_dask.checks.thresholds import canaries, drift, reject_share, user_thresholds
from retok_dask.datasets import OutputFolder, read_manifest, read_run
from retok_dask.datasets.digest import ContentDigest
from retok_dask.datasets.folder import MANIFEST, RECEIPTS, RECIPE, VOCABULARY
from retok_dask.datasets.manifest import accounting_problem, counts_of
from retok_dask.datasets.parallel import map_units
from retok_dask.datasets.receipts import parse_receipts
from retok_dask.doing import doing
from retok_dask.errors import OutputError, RetokError, count_of
from retok_dask.kernel import UnitStats
from retok_dask.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distributed import Client

    from retok_dask.datasets import Manifest, Receipt, UnitEntry
    from retok_dask.recipe import StorageSpec

SAMPLED_UNITS = 16
"""Units whose rows are looked at when not all are."""

ENCODED_UNITS = 4
"""Units of which some rows are encoded again when not all are."""

ROW_CHECKS = {
    "checksums": "sha256 of every file looked at is the one recorded",
    "readable": "every file looked at is readable and has the run's schema",
    "rows": "every file looked at has as many rows as recorded",
    "content": "rows are those that were written (content digest)",
    "vocabulary": "all ids are within the vocabulary",
    "lengths": "ids, masks and the counts of them agree",
    "segments": "segments cover every token once, in order",
    "masks": "every loss mask is that of the policy",
    "trained_tokens": "every row has trained tokens",
}
"""Checks of rows, and what they say when they pass."""


def validate(
    url: str,
    full: bool = False,
    *,
    storage: StorageSpec | None = None,
    client: Client | None = None,
    seed: int = 0,
) -> ValidationReport:
    """Check a written run against its contract.

    What belongs to the whole run (files, receipts, accounting, statistics) is
    always checked. Rows are read from a few units chosen by a seed, and some
    of their rows encoded again by the reference engine; with `full`, all rows
    of all units are read and encoded again.

    Args:
        url: the run's folder.
        full: look at every row.
        storage: where S3 answers.
        client: a Dask client whose workers read; None for this process.
        seed: which units and rows a sample takes.

    Raises:
        StorageError: the storage refused.
    """
    folder = OutputFolder(url, storage)
    try:
        manifest = read_manifest(folder)
        recipe = Recipe.from_yaml(manifest.recipe, source=folder.url_of(MANIFEST))
    except (OutputError, ValueError) as error:
        return ValidationReport(url, full, [Check("finished", "error", False, str(error))])
    doing("comparing files and receipts with the manifest")
    names = sorted(folder.sizes(RECEIPTS))
    receipts, refused = parse_receipts(names, folder.read_many(names))
    checks = [_finished(manifest), _files(folder, manifest), _receipts(manifest, receipts, refused)]
    checks.append(_provenance(folder, manifest, recipe))
    chosen = _choose(manifest.units.values(), None if full else SAMPLED_UNITS, seed)
    vocab_size = (manifest.run.get("tokenizer") or {}).get("vocab_size")
    findings = map_units(
        scan_unit, chosen, "units checked", client=client, folder=folder, recipe=recipe, vocab_size=vocab_size
    )
    checks += _row_checks(findings, manifest, vocab_size)
    checks.append(_accounting(manifest, findings))
    checks.append(_unique_ids(findings))
    checks += _encoding(folder, manifest, full=full, client=client, seed=seed)
    checks += [
        reject_share(recipe, manifest),
        user_thresholds(recipe, manifest),
        canaries(recipe, manifest),
        drift(manifest, receipts),
    ]
    return ValidationReport(url, full, checks)


def _finished(manifest: Manifest) -> Check:
    problems = [f"unit {unit!r} has no output: {why}" for unit, why in manifest.failed.items()]
    return verdict("finished", problems, f"the run finished at {manifest.written}", {"units": len(manifest.units)})


def _files(folder: OutputFolder, manifest: Manifest) -> Check:
    """Every file that the manifest names is there with its size, and no other one."""
    found = folder.sizes("data") | folder.sizes("rejects") | folder.sizes(VOCABULARY)
    named = {record.path: record for unit in manifest.units.values() for record in unit.outputs}
    problems = [f"{path} is missing" for path in named if path not in found]
    problems += [
        f"{path} has {count_of(found[path], 'byte')}, the manifest says {record.size:,}"
        for path, record in named.items()
        if path in found and found[path] != record.size
    ]
    problems += [f"{path} is there, but the manifest does not name it" for path in found if path not in named]
    size = sum(found.values())
    return verdict(
        "files",
        problems,
        f"{count_of(len(named), 'file')}, {count_of(size, 'byte')}, all there",
        {"files": len(named), "bytes": size},
    )


def _receipts(manifest: Manifest, receipts: dict[str, Receipt], refused: dict[str, str]) -> Check:
    """Receipts and manifest say the same of every unit."""
    problems = [f"unit {unit!r}: {why}" for unit, why in refused.items()]
    problems += [
        f"unit {unit!r} has no receipt" for unit in manifest.units if unit not in receipts and unit not in refused
    ]
    problems += [
        f"unit {unit!r} has a receipt, but the manifest does not know it"
        for unit in receipts
        if unit not in manifest.units
    ]
    for unit, receipt in receipts.items():
        if unit in manifest.units:
            problems += _receipt_problems(manifest.units[unit], receipt, manifest.fingerprint)
    count = len(receipts) + len(refused)
    return verdict("receipts", problems, f"{count_of(count, 'receipt')}, as in the manifest", {"receipts": count})


def _receipt_problems(entry: UnitEntry, receipt: Receipt, fingerprint: str) -> list[str]:
    problems = []
    if receipt.outputs != entry.outputs or receipt.content_digest != entry.content_digest:
        problems.append(f"unit {receipt.unit!r}: its receipt names other files or content than the manifest")
    if receipt.fingerprint != fingerprint:
        problems.append(f"unit {receipt.unit!r}: its receipt belongs to another run ({receipt.fingerprint[:12]})")
    stats = UnitStats.from_dict(receipt.stats)
    if counts_of(stats) != entry.counts:
        problems.append(f"unit {receipt.unit!r}: its receipt counts otherwise than the manifest")
    problem = accounting_problem(receipt, stats)
    return [*problems, f"unit {receipt.unit!r}: {problem}"] if problem else problems


def _provenance(folder: OutputFolder, manifest: Manifest, recipe: Recipe) -> Check:
    """``run.json`` and ``recipe.yaml`` are those of the manifest."""
    problems = []
    run = read_run(folder)
    if run is None:
        problems.append("run.json is missing")
    elif run["fingerprint"] != manifest.fingerprint:
        problems.append("run.json has another fingerprint than the manifest")
    try:
        if folder.read_bytes(RECIPE).decode() != manifest.recipe:
            problems.append("recipe.yaml is not the one in the manifest")
    except FileNotFoundError:
        problems.append("recipe.yaml is missing")
    unknown = sorted({unit.dataset for unit in manifest.units.values()} - {spec.name for spec in recipe.datasets})
    problems += [f"data set {name!r} is not in the recipe" for name in unknown]
    return verdict("provenance", problems, "run.json and recipe.yaml are those of the manifest", {})


def _row_checks(findings: Sequence[UnitFindings], manifest: Manifest, vocab_size: int | None) -> list[Check]:
    counts = sum((item.counts for item in findings), Counter[str]())
    numbers = {
        "units": len(findings),
        "of_units": len(manifest.units),
        "rows": counts["rows"],
        "tokens": counts["tokens"],
    }
    checks = []
    for name, good in ROW_CHECKS.items():
        problems = [problem for item in findings for problem in item.problems.get(name, [])]
        if name == "vocabulary" and vocab_size is None and not problems:
            good = "no id is negative (the run does not say how large the vocabulary is)"  # noqa: PLW2901
        checks.append(verdict(name, problems, good, numbers))
    return checks


def _accounting(manifest: Manifest, findings: Sequence[UnitFindings]) -> Check:
    """``records_in = records_out + rejected + filtered`` for units, data sets and the run, and sums that add up."""
    problems = [problem for item in findings for problem in item.problems.get("accounting", [])]
    sums: dict[str, Counter[str]] = {name: Counter() for name in manifest.datasets}
    for entry in manifest.units.values():
        sums.setdefault(entry.dataset, Counter()).update(entry.counts)
        left_out = entry.counts["rejected"] + entry.counts["filtered"]
        if entry.counts["records_in"] != entry.counts["records_out"] + left_out:
            problems.append(f"unit {entry.unit!r}: records in, out and left out do not add up")
        record = entry.output("samples")
        if record is not None and not record.rows == entry.counts["samples"] == entry.summary["rows"]:
            problems.append(
                f"unit {entry.unit!r}: {count_of(record.rows, 'row')} written, {entry.counts['samples']:,} counted"
            )
    total: Counter[str] = Counter()
    for name, found in sums.items():
        total.update(found)
        stats = manifest.datasets.get(name, UnitStats())
        problems += _sum_problems(f"data set {name!r}", found, stats)
    problems += _sum_problems("the run", total, manifest.total)
    content = ContentDigest()
    for entry in manifest.units.values():
        content.add_hex(entry.content_digest)
    if content.hex != manifest.content_digest:
        problems.append("the content digest of the run is not the sum of those of its units")
    good = f"{count_of(total['records_in'], 'record')} in, {total['records_out']:,} out, {total['rejected']:,} rejected, {total['filtered']:,} filtered"
    return verdict("accounting", problems, good, dict(total))


def _sum_problems(scope: str, found: Counter[str], stats: UnitStats) -> list[str]:
    said = counts_of(stats)
    return [
        f"{name} of {scope} is {said[name]}, its units sum to {found[name]}"
        for name in said
        if said[name] != found[name]
    ]


def _unique_ids(findings: Sequence[UnitFindings]) -> Check:
    """No sample id twice among the rows looked at."""
    hashes = [np.frombuffer(item.names, np.uint64) for item in findings]
    owners = np.repeat(np.arange(len(hashes)), [len(names) for names in hashes])
    names = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    order = np.argsort(names, kind="stable")
    again = np.flatnonzero(names[order][1:] == names[order][:-1])
    pairs = Counter((findings[owners[order[i]]].unit, findings[owners[order[i + 1]]].unit) for i in again.tolist())
    problems = [
        f"twice in unit {a!r}: {count_of(count, 'sample id')}"
        if a == b
        else f"in unit {a!r} and in unit {b!r}: {count_of(count, 'sample id')}"
        for (a, b), count in pairs.most_common()
    ]
    return verdict("unique_ids", problems, f"{count_of(len(names), 'sample id')}, none twice", {"rows": len(names)})


def _encoding(folder: OutputFolder, manifest: Manifest, *, full: bool, client: Client | None, seed: int) -> list[Check]:
    """Tokenizer and template are still those of the run, and give what is stored."""
    call = uuid.uuid4().hex
    try:
        encoder = load_encoder(folder.url, folder.storage, reference=not full, call=call)
    except (RetokError, OSError) as error:
        why = f"tokenizer or template cannot be loaded: {error}"
        return [skipped("same_encoder", why), skipped("decoding", why), skipped("re_encoding", why)]
    differences = encoder.differences(manifest.run)
    same = verdict("same_encoder", differences, "tokenizer and template are those of the run", {})
    chosen = [entry.unit for entry in _choose(manifest.units.values(), None if full else ENCODED_UNITS, seed)]
    findings = map_units(
        encode_unit_again,
        chosen,
        "units encoded again",
        client=client,
        url=folder.url,
        storage=folder.storage,
        full=full,
        call=call,
        seed=seed,
    )
    decoded = _decoding(findings)
    gone = [item for item in findings if "source_gone" in item.problems]
    if gone and len(gone) == len(findings):
        return [same, decoded, skipped("re_encoding", gone[0].problems["source_gone"][0])]
    problems = [problem for item in findings for problem in item.problems.get("re_encoding", [])]
    numbers = {"units": len(findings) - len(gone), "rows": sum(item.counts["rows"] for item in findings)}
    good = f"{count_of(numbers['rows'], 'row')} of {count_of(numbers['units'], 'unit')}, as the source gives them"
    return [same, decoded, verdict("re_encoding", problems, good, numbers)]


def _decoding(findings: Sequence[UnitFindings]) -> Check:
    """Rows decode to text, and their segments to whole characters."""
    problems = [problem for item in findings for problem in item.problems.get("decoding", [])]
    rows = sum(item.counts["decoded"] for item in findings)
    return verdict("decoding", problems, f"text in {count_of(rows, 'row')}, segment by segment", {"rows": rows})


def _choose(units: Iterable[UnitEntry], number: int | None, seed: int) -> list[UnitEntry]:
    """Some units by a seed, at least one of each data set; all of them for None."""
    everything = list(units)
    if number is None or len(everything) <= number:
        return everything
    order = np.random.default_rng(seed).permutation(len(everything)).tolist()
    seen: set[str] = set()
    first = [i for i in order if not (everything[i].dataset in seen or seen.add(everything[i].dataset))]  # type: ignore[func-returns-value]
    chosen = dict.fromkeys([*first, *order])
    return [everything[index] for index in sorted(list(chosen)[: max(number, len(first))])]
