"""What a run's tokens depend on, and the refusal to mix two runs in one folder."""

from __future__ import annotations

import datetime as dt
import platform
import unicodedata
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol

from retok_dask.completions import function_files
from retok_dask.datasets.folder import INPUTS, RECIPE, RUN, OutputFolder
from retok_dask.errors import FingerprintMismatch, OutputError, RecipeError
from retok_dask.kernel import golden_ids
from retok_dask.kernel.items import DocumentRows
from retok_dask.recipe import Recipe, digest, refuse_secret
from retok_dask.schema import SCHEMA_VERSION
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import Document, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINDING = ("retok-dask", "transformers", "tokenizers", "jinja2")
"""Packages whose version can change a token: another one refuses to go on."""

RECORDED = (
    "fastokens",
    "minijinja",
    "tiktoken",
    "pyarrow",
    "numpy",
    "orjson",
    "pydantic",
    "dask",
    "distributed",
    "fsspec",
    "s3fs",
)
"""Packages that must not change a token: engines are certified against the reference."""

FACTS = ("vocab_size", "bos_id", "eos_id", "engine")
"""What ``run.json`` says of the tokenizer, for checks and exits that do without it."""

SHOWN = 5
"""Differences of one kind that an error message names one by one."""


class HasDigest(Protocol):
    """A tokenizer or template as far as the fingerprint needs it."""

    @property
    def digest(self) -> str: ...


class InputFile(Protocol):
    """A listed input file; :class:`retok_dask.completions.FileEntry`."""

    @property
    def url(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def dataset(self) -> str: ...


class Inputs(Protocol):
    """A listing; :class:`retok_dask.completions.Listing`."""

    @property
    def files(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Fingerprint:
    """All that changes the output of a run.

    Attributes:
        recipe: :meth:`Recipe.content_key` with the date as frozen.
        inputs: one entry a file: ``dataset``, ``url``, ``size`` and ``version``
            (its etag, else its time of change).
        tokenizer: digest of the tokenizer's files.
        template: digest of the template's text; None where no data set needs one.
        versions: of the packages in :data:`BINDING`.
        schema_version: of the sample schema.
        sources: what made the rows of each data set of ids, by digest.
        facts: of the tokenizer, for checks and exits that do without it; no
            part of the digest. Its golden ids, and the files of the user's functions, are compared all the same.
    """

    recipe: dict[str, Any]
    inputs: list[dict[str, Any]]
    tokenizer: str
    template: str | None
    versions: dict[str, str]
    schema_version: int = SCHEMA_VERSION
    sources: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        listing: Inputs,
        tokenizer: HasDigest,
        template: HasDigest | None,
        *,
        date: dt.date | None = None,
        sources: Mapping[str, HasDigest] | None = None,
    ) -> Fingerprint:
        """The fingerprint of a run that is about to start.

        Args:
            recipe: as resolved.
            listing: the input files.
            tokenizer: its ``digest`` covers every file that it reads.
            template: its ``digest`` covers its text and arguments.
            date: the day that templates see, where the recipe leaves it open.
            sources: what made the rows of data sets of ids, by data set.
        """
        key = recipe.content_key()
        if key.get("date") is None and date is not None:
            key["date"] = date.isoformat()
        for spec in key["datasets"]:
            # the files that a pattern found are compared, not how it is spelt
            spec.pop("input")
        return cls(
            recipe=key,
            inputs=sorted(
                (_input_entry(file) for file in listing.files), key=lambda entry: (entry["dataset"], entry["url"])
            ),
            tokenizer=tokenizer.digest,
            template=template.digest if template is not None else None,
            versions={name: _version(name) for name in BINDING},
            sources={name: source.digest for name, source in (sources or {}).items()},
            facts=_facts(recipe, tokenizer),
        )

    @property
    def digest(self) -> str:
        """Hex sha256 of everything but the input files, which may be added to (``extend``)."""
        return digest(self.content())

    @property
    def inputs_digest(self) -> str:
        """Hex sha256 of the input list."""
        return digest(self.inputs)

    @property
    def date(self) -> dt.date | None:
        """The frozen day, if there is one."""
        value = self.recipe.get("date")
        return dt.date.fromisoformat(value) if value else None

    def differences(self, old: Fingerprint) -> list[str]:
        """What differs from an older run, one sentence each; new input files come as ``new input``."""
        found = _recipe_differences(old.recipe, self.recipe)
        for name in ("tokenizer", "template", "schema_version", "sources"):
            before, now = getattr(old, name), getattr(self, name)
            if before != now:
                found.append(f"{name}: was {_short(before)}, is {_short(now)}")
        golden, again = old.facts.get(GOLDEN), self.facts.get(GOLDEN)
        if golden and again and golden != again:
            found.append(
                "the tokenizer gives other ids for the golden texts than it did, although its files are the same"
            )
        functions = old.facts.get(FUNCTIONS) or {}
        for name, now in (self.facts.get(FUNCTIONS) or {}).items():
            if functions.get(name, now) != now:
                found.append(f"the module of the function {name!r} has changed")
        for name in sorted({*old.versions, *self.versions}):
            before, now = old.versions.get(name, "none"), self.versions.get(name, "none")
            if before != now:
                found.append(f"version of {name}: was {before}, is {now}")
        return found + _input_differences(old.inputs, self.inputs)

    def content(self) -> dict[str, Any]:
        """All but the input files and the facts, as JSON values."""
        data = asdict(self)
        return {name: value for name, value in data.items() if name not in {"inputs", "facts"}}


def start_run(folder: OutputFolder, fingerprint: Fingerprint, recipe: Recipe) -> None:
    """Write recipe, inputs and ``run.json`` of a run; ``run.json`` comes last and makes the folder a run's."""
    previous = folder.read_json(RUN) or {}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    folder.write_bytes(RECIPE, recipe.to_yaml().encode())
    folder.write_json(INPUTS, fingerprint.inputs)
    run = {
        "fingerprint": fingerprint.digest,
        "content": fingerprint.content(),
        "inputs": {
            "digest": fingerprint.inputs_digest,
            "files": len(fingerprint.inputs),
            "bytes": sum(entry["size"] for entry in fingerprint.inputs),
        },
        "date": fingerprint.recipe.get("date"),
        "started": previous.get("started", now),
        "written": now,
        "versions": library_versions(),
        "tokenizer": fingerprint.facts,
    }
    folder.write_json(RUN, run, indent=True)


def read_run(folder: OutputFolder) -> dict[str, Any] | None:
    """``run.json``; None if the folder holds no run.

    Raises:
        OutputError: it is there, but no ``run.json`` of this project.
    """
    run = folder.read_json(RUN)
    if run is None:
        return None
    if not isinstance(run, dict) or not {"fingerprint", "content"} <= run.keys():
        msg = f"{folder.url_of(RUN)} is no run.json of retok; choose another output folder"
        raise OutputError(msg)
    return run


def read_recipe(folder: OutputFolder) -> Recipe:
    """The recipe of the run in a folder, as the run resolved it.

    Raises:
        OutputError: the folder holds none.
        RecipeError: it is there, but this version cannot use it.
    """
    try:
        text = folder.read_bytes(RECIPE)
    except FileNotFoundError:
        msg = f"{folder.url} holds no recipe.yaml of a run; check the path, or start the run again with its recipe"
        raise OutputError(msg) from None
    return Recipe.from_yaml(text, source=folder.url_of(RECIPE))


def read_fingerprint(folder: OutputFolder) -> Fingerprint | None:
    """The fingerprint of the run in a folder; None if it holds none."""
    run = read_run(folder)
    if run is None:
        return None
    try:
        return Fingerprint(inputs=folder.read_json(INPUTS) or [], facts=run.get("tokenizer") or {}, **run["content"])
    except TypeError as error:
        msg = f"{folder.url_of(RUN)} was written by another version of retok ({error}); read it with that version"
        raise OutputError(msg) from error


def check_fingerprint(folder: OutputFolder, fingerprint: Fingerprint, *, extend: bool = False) -> bool:
    """Refuse to go on in a folder that another recipe, input, tokenizer or template filled.

    Args:
        folder: the output folder.
        fingerprint: of the run that wants to start.
        extend: accept input files that are new, if nothing else differs.

    Returns:
        Whether there is a run to resume.

    Raises:
        FingerprintMismatch: naming each difference, and the switch.
        OutputError: the folder holds other files and no run.
    """
    old = read_fingerprint(folder)
    if old is None:
        return _check_empty(folder)
    found = fingerprint.differences(old)
    added = [item for item in found if item.startswith(NEW_INPUT)]
    if not found or (extend and len(added) == len(found)):
        return True
    way_out = "choose another output, or start anew in this one with --restart"
    if added and len(added) == len(found):
        way_out = f"add the new files to it with --extend, or {way_out}"
    elif any(item.startswith(NEW_DATASET) for item in found):
        way_out = f"run the new data set into a folder of its own and join both with `retok mix`, or {way_out}"
    msg = f"{folder.url} was written by another run: {'; '.join(found)}. To go on, {way_out}."
    raise FingerprintMismatch(msg)


NEW_INPUT = "new input"
NEW_DATASET = "new data set"

GOLDEN = "golden_ids"
"""Fact of a tokenizer: its ids of the golden texts, to notice a library that changed beneath the same files."""

FUNCTIONS = "functions"
"""Fact of a run: the digest of the file of each function of the user's own, where the client could read it."""


def library_versions() -> dict[str, str]:
    """Versions of everything that could matter, by name."""
    found = {name: _version(name) for name in (*BINDING, *RECORDED)}
    return found | {
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        "platform": platform.platform(),
    }


def _facts(recipe: Recipe, tokenizer: Any) -> dict[str, Any]:
    facts = {name: getattr(tokenizer, name, None) for name in FACTS}
    if functions := function_files(recipe.datasets):
        facts[FUNCTIONS] = functions
    if isinstance(tokenizer, Tokenizer):
        facts[GOLDEN] = golden_ids(tokenizer)
        if any(spec.mode == "text" for spec in recipe.datasets):
            facts["documents"] = _document_frame(recipe, tokenizer)
    return facts


def _document_frame(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, str]:
    """What is written around a document, where the recipe leaves it to the tokenizer's own rule."""
    row = DocumentRows(recipe, tokenizer)(Document("x")).rendered
    ends = [*row.starts[1:], len(row.text)]
    parts = {kind: row.text[start:end] for kind, start, end in zip(row.kinds, row.starts, ends, strict=True)}
    return {"bos": parts.get(Kind.bos, ""), "separator": parts.get(Kind.stop, "")}


def _check_empty(folder: OutputFolder) -> bool:
    foreign = sorted(folder.sizes("data"))
    if foreign:
        msg = (
            f"{folder.url} holds {foreign[0]!r} but no run.json: it was not written by a run; "
            "choose an empty folder, or delete its files with --restart"
        )
        raise OutputError(msg)
    return False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _input_entry(file: Any) -> dict[str, Any]:
    try:
        # a recipe's own URLs were looked at; those of a manifest of paths come here
        refuse_secret(file.url)
    except ValueError as error:
        msg = f"an input of data set {file.dataset!r}: {error}"
        raise RecipeError(msg) from None
    etag = getattr(file, "etag", None)
    changed = etag or getattr(file, "mtime", None)
    return {
        "dataset": file.dataset,
        "url": file.url,
        "size": file.size,
        "version": None if changed is None else str(changed),
    }


def _input_differences(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    before = {(entry["dataset"], entry["url"]): entry for entry in old}
    now = {(entry["dataset"], entry["url"]): entry for entry in new}
    changed = [key for key in now if key in before and now[key] != before[key]]
    gone = [key for key in before if key not in now]
    added = [key for key in now if key not in before]
    return [*_named("changed input", changed), *_named("missing input", gone), *_named(NEW_INPUT, added)]


def _named(what: str, keys: list[tuple[str, str]]) -> list[str]:
    shown = [f"{what} {url!r} of data set {dataset!r}" for dataset, url in keys[:SHOWN]]
    rest = len(keys) - SHOWN
    return [*shown, f"{what}: {rest} more"] if rest > 0 else shown


def _recipe_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Settings that differ; data sets are compared by name."""
    before, now = ({spec["name"]: spec for spec in recipe["datasets"]} for recipe in (old, new))
    found = _settings(old | {"datasets": None}, new | {"datasets": None}, "recipe")
    found += [f"{NEW_DATASET} {name!r}" for name in now if name not in before]
    found += [f"missing data set {name!r}" for name in before if name not in now]
    for name, spec in now.items():
        found += _settings(before.get(name, spec), spec, f"recipe.datasets.{name}")
    if before.keys() == now.keys() and list(before) != list(now):
        found.append(f"data sets in another order: {', '.join(now)}")
    return found


def _settings(old: Any, new: Any, place: str) -> list[str]:
    """Settings that differ, by their place in the recipe."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted({*old, *new})
        return [line for name in names for line in _settings(old.get(name), new.get(name), f"{place}.{name}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, (a, b) in pairs for line in _settings(a, b, f"{place}.{index}")]
    return [] if old == new else [f"{place}: was {_short(old)}, is {_short(new)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
