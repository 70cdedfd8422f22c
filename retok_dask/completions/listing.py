"""Listing the input, once, on the client: files, their sizes and digests, and the units to read."""

from __future__ import annotations

import datetime as dt
import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retok_dask.completions import storage as st
from retok_dask.completions.formats import SPLITTABLE, belongs_in_folder, compression_of, format_of
from retok_dask.completions.json_files import HEAD, shape_of
from retok_dask.completions.readers import read_records
from retok_dask.completions.unchanged import stamp_of
from retok_dask.completions.units import (
    COLUMNAR_RATIO,
    FIRST_UNIT,
    PARTS_A_UNIT,
    FileEntry,
    Listing,
    ListingChange,
    Part,
    Unit,
    group_parts,
)
from retok_dask.errors import InputError, first_few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retok_dask.recipe import DatasetSpec, Recipe, StorageSpec

_GLOB = set("*?[")
_LIST_PARENT_FROM = 8
"""From so many named files in one folder on, the folder is listed instead of asking for each file."""


def list_inputs(recipe: Recipe) -> Listing:
    """List all input of a recipe. Takes as long as there are files, however large they are.

    Raises:
        InputError: a pattern matches nothing, or the format of a file cannot be told.
        StorageError: the storage refused.
    """
    listing = Listing(unit_bytes=recipe.units.bytes)
    for spec in recipe.datasets:
        files, notes = _files_of(spec, recipe.storage)
        parts = [(spec.name, part) for entry in files for part in _parts_of(entry, spec, recipe)]
        units = _first_unit(parts, recipe.units.bytes) + group_parts(parts, recipe.units.bytes)
        if spec.limit is not None:
            files, units = _limited(files, units, spec, recipe)
            listing.limited.append(spec.name)
        listing.files += files
        listing.units += units
        listing.notes += [*notes, *_whole_files_note(files, units, spec)]
    return listing


def _first_unit(parts: list[tuple[str, Part]], target: int) -> list[Unit]:
    """A small unit for the start, its parts taken off the list; it is larger where a file cannot be cut."""
    if not parts or target < 2 * FIRST_UNIT:
        return []
    name, first = parts[0]
    if first.format in SPLITTABLE and not first.compression:
        parts[:1] = [(name, part) for part in first.cut(FIRST_UNIT)]
    units = group_parts(parts[:PARTS_A_UNIT], FIRST_UNIT)[:1]
    del parts[: len(units[0].parts)]
    return units


def _limited(
    files: list[FileEntry], units: list[Unit], spec: DatasetSpec, recipe: Recipe
) -> tuple[list[FileEntry], list[Unit]]:
    """The first units that hold ``limit`` records, the last of them cut to what is missing.

    Which records are the first ones is known only by counting, so this reads
    as many records as the limit asks for.
    """
    left = spec.limit or 0
    kept: list[Unit] = []
    for unit in units:
        count = sum(1 for _ in islice(read_records(unit, spec, recipe), left + 1))
        kept.append(replace(unit, limit=left) if count > left else unit)
        left -= count
        if left <= 0:
            break
    urls = {part.url for unit in kept for part in unit.parts}
    return [entry for entry in files if entry.url in urls], kept


def _whole_files_note(files: list[FileEntry], units: list[Unit], spec: DatasetSpec) -> list[str]:
    """Say which files are read in one piece each, because nothing can start in their middle."""
    from dask.utils import format_bytes  # noqa: PLC0415  who reads a written run needs no Dask

    sizes = {entry.url: entry.size for entry in files}
    whole = {p.url for unit in units for p in unit.parts if p.compression or p.format not in SPLITTABLE}
    if not whole:
        return []
    largest = max(whole, key=lambda url: sizes.get(url, 0))
    size = format_bytes(sizes.get(largest, 0))
    files_are = "1 file cannot be split and is" if len(whole) == 1 else f"{len(whole):,} files cannot be split and are"
    return [f"{spec.name}: {files_are} read whole, the largest has {size}"]


def compare_listings(old: Listing, new: Listing) -> ListingChange:
    """What changed between the listing of a run's first start and one made now."""
    before = {(entry.dataset, entry.url): entry for entry in old.files}
    now = {(entry.dataset, entry.url): entry for entry in new.files}
    added = [entry for key, entry in now.items() if key not in before]
    names = {(entry.dataset, entry.url) for entry in added}
    return ListingChange(
        changed=tuple(e for key, e in now.items() if key in before and not e.same_content(before[key])),
        removed=tuple(e for key, e in before.items() if key not in now),
        new=tuple(added),
        old_listing=old,
        new_parts=tuple((u.dataset, p) for u in new.units for p in u.parts if (u.dataset, p.url) in names),
    )


def _files_of(spec: DatasetSpec, storage: StorageSpec) -> tuple[list[FileEntry], list[str]]:
    patterns = [spec.input] if isinstance(spec.input, str) else spec.input
    found: dict[str, FileEntry] = {}
    aside: list[str] = []
    named: list[str] = []
    for pattern in patterns:
        if pattern.startswith("@"):
            named += _manifest_paths(pattern[1:], storage)
        elif _GLOB & set(pattern) or spec.format == "retok":
            found.update(_match(pattern, spec, storage, aside))
        else:
            named.append(pattern)
    for entry in _look_up(named, spec, storage, aside):
        found[entry.url] = entry
    notes = []
    if aside:
        names = first_few(sorted({name.rpartition("/")[2] for name in aside}))
        notes.append(f"{spec.name}: left aside as no data, {len(aside):,} in all: {names}")
    return [found[url] for url in sorted(found)], notes


def _manifest_paths(url: str, storage: StorageSpec) -> list[str]:
    """Paths of a manifest file; relative ones lie beside the manifest."""
    fs, path = st.open_fs(url, storage)
    size = st.retrying(lambda: int(fs.size(path) or 0), url, storage=storage, patient=False)
    try:
        text = st.read_range(url, 0, size, storage).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"the manifest {url!r} is not UTF-8 text: {error}"
        raise InputError(msg) from None
    lines = [line.strip() for line in text.splitlines()]
    paths = [line for line in lines if line and not line.startswith("#")]
    if not paths:
        msg = f"the manifest {url!r} names no file"
        raise InputError(msg)
    base = st.full_url(fs, posixpath.dirname(path))
    return [p if "://" in p or p.startswith(("/", "~")) else f"{base}/{p}" for p in paths]


def _match(pattern: str, spec: DatasetSpec, storage: StorageSpec, aside: list[str]) -> Iterator[tuple[str, FileEntry]]:
    """Files that a glob finds; a folder that it finds is walked."""
    if spec.format == "retok":
        pattern = f"{pattern.rstrip('/')}/data/**/*.parquet"
    url = str(Path(pattern).expanduser()) if st.is_local(pattern) and "://" not in pattern else pattern

    def call() -> list[tuple[str, dict[str, Any]]]:
        fs, path = st.open_fs(url, storage)
        return [(st.full_url(fs, name), info) for name, info in fs.glob(path, detail=True).items()]

    hits = st.retrying(call, pattern, storage=storage, patient=False, attempts=4)
    if not hits and _exists(url, storage):
        yield from ((e.url, e) for e in _look_up([url], spec, storage, aside))
        return
    if not hits:
        raise InputError(_nothing(pattern, spec, storage))
    for name, info in hits:
        if info["type"] == "directory":
            yield from ((e.url, e) for e in _walk(name, spec, storage, aside))
        else:
            yield name, _entry(name, info, spec.name)


def _exists(url: str, storage: StorageSpec) -> bool:
    fs, path = st.open_fs(url, storage)
    return bool(st.retrying(lambda: fs.exists(path), url, storage=storage, patient=False, attempts=4))


def _nothing(pattern: str, spec: DatasetSpec, storage: StorageSpec) -> str:
    """Why a pattern matches nothing, as far as its fixed head tells."""
    head = pattern
    while _GLOB & set(head):
        head = head.rpartition("/")[0]
    text = f"data set {spec.name!r}: no file matches {pattern!r}"
    if head and not head.endswith(":/") and not _exists(head, storage):
        start = f" (relative paths start at {str(Path.cwd())!r})" if st.is_local(head) else ""
        return f"{text}; {head!r} does not exist{start}"
    return f"{text}; {head or str(Path.cwd())!r} exists, so check the pattern"


def _look_up(paths: list[str], spec: DatasetSpec, storage: StorageSpec, aside: list[str]) -> Iterator[FileEntry]:
    """Entries of files named one by one; folders among them are walked."""
    by_parent: dict[str, list[str]] = {}
    for path in paths:
        by_parent.setdefault(path.rpartition("/")[0], []).append(path)
    known: dict[str, tuple[str, dict[str, Any]]] = {}
    for parent, names in by_parent.items():
        if len(names) >= _LIST_PARENT_FROM and not st.is_local(names[0]):
            known |= _listed(parent, names, storage)
    far = [path for path in paths if path not in known and not st.is_local(path)]
    with ThreadPoolExecutor(16) as pool:
        known |= dict(zip(far, pool.map(lambda p: _info(p, storage), far), strict=True))
    for path in paths:
        url, info = known[path] if path in known else _local_info(path, storage)
        if info["type"] == "directory":
            yield from _walk(url, spec, storage, aside)
        else:
            yield _entry(url, info, spec.name)


def _listed(parent: str, names: list[str], storage: StorageSpec) -> dict[str, tuple[str, dict[str, Any]]]:
    def call() -> list[dict[str, Any]]:
        fs, path = st.open_fs(parent, storage)
        return list(fs.ls(path, detail=True))

    infos = st.retrying(call, parent, storage=storage, patient=False, attempts=4)
    by_name = {info["name"].rpartition("/")[2]: info for info in infos if info["type"] != "directory"}
    tails = {name: name.rpartition("/")[2] for name in names}
    return {name: (name, by_name[tail]) for name, tail in tails.items() if tail in by_name}


def _local_info(path: str, storage: StorageSpec) -> tuple[str, dict[str, Any]]:
    fs, full = st.open_fs(path, storage)
    try:
        return full, fs.info(full)
    except OSError:
        return _info(path, storage)  # says in our words what is wrong


def _info(url: str, storage: StorageSpec) -> tuple[str, dict[str, Any]]:
    def call() -> tuple[str, dict[str, Any]]:
        fs, path = st.open_fs(url, storage)
        return st.full_url(fs, path), fs.info(path)

    return st.retrying(call, url, storage=storage, patient=False, attempts=4)


def _walk(url: str, spec: DatasetSpec, storage: StorageSpec, aside: list[str]) -> Iterator[FileEntry]:
    """All data files under a folder."""

    def call() -> list[tuple[str, dict[str, Any]]]:
        fs, path = st.open_fs(url, storage)
        return [(st.full_url(fs, name), info) for name, info in fs.find(path, detail=True).items()]

    count = 0
    for name, info in st.retrying(call, url, storage=storage, patient=False, attempts=4):
        inside = name[len(url.rstrip("/")) :]
        if info["type"] == "directory":
            continue
        # Folders that start so hold what tools keep for themselves: .cache, _temporary, _delta_log, _retok.
        if "/." in inside or "/_" in inside or not belongs_in_folder(name, spec):
            aside.append(name)
            continue
        count += 1
        yield _entry(name, info, spec.name)
    if not count:
        msg = f"data set {spec.name!r}: no data file in the folder {url!r}; name the files by a pattern, or set format"
        raise InputError(msg)


def _entry(url: str, info: dict[str, Any], dataset: str) -> FileEntry:
    etag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    for key in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value = info.get(key)
        if value is not None:
            return FileEntry(url, int(info.get("size") or 0), etag, _seconds(value), dataset)
    return FileEntry(url, int(info.get("size") or 0), etag, 0.0, dataset)


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, dt.datetime) else float(value)


def _parts_of(entry: FileEntry, spec: DatasetSpec, recipe: Recipe) -> Iterable[Part]:
    kind = {"auto": format_of(entry.url), "retok": "parquet"}.get(spec.format, spec.format)
    if kind is None:
        msg = (
            f"data set {spec.name!r}: the name {entry.url!r} does not tell its format; set format (jsonl, parquet, ...)"
        )
        raise InputError(msg)
    compression = compression_of(entry.url)
    if kind == "json" and not compression and entry.size > recipe.units.bytes:
        # Lines under the name of JSON can be split, so a large file is worth a look at its head.
        head = st.read_range(entry.url, 0, HEAD, recipe.storage)
        kind = "jsonl" if shape_of(head)[0] == "lines" else kind
    target = recipe.units.bytes // (COLUMNAR_RATIO if kind == "parquet" else 1)
    if compression or kind not in SPLITTABLE:
        return [Part(entry.url, 0, entry.size, entry.size, kind, compression, stamp_of(entry))]
    count = max(1, round(entry.size / max(target, 1)))
    edges = [entry.size * i // count for i in range(count + 1)]
    return [Part(entry.url, a, b, entry.size, kind, stamp=stamp_of(entry)) for a, b in pairwise(edges)]
