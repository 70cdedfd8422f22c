"""What a run reads, as plain data: files, units, and the listing that holds both.

A listing is made once, on the client, and written down. It is JSON-able and
keeps the names of files that lie together only once, so that a listing of
millions of files stays small.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from retok_dask.errors import InputError, first_few

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LISTING_VERSION = 1

COMPRESSED_RATIO = 4
"""Bytes of JSON text in a byte of gzip or zstd, roughly."""

COLUMNAR_RATIO = 3
"""Bytes of JSON text in a byte of Parquet, roughly."""

FIRST_UNIT = 8 * 2**20
"""Text in the first unit of a data set: something is committed, and can be looked at, seconds after the start."""

PARTS_A_UNIT = 256
"""Most files in one unit: a unit of many tiny files must stay a small message and a short task."""


def common_stem(names: Sequence[str]) -> str:
    """The longest text that all names start with.

    >>> common_stem(["s3://b/a1", "s3://b/a2"])
    's3://b/a'
    """
    low, high = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One input file as it was when it was listed.

    Attributes:
        url: absolute path or URL.
        size: bytes.
        etag: the storage's own digest of the content, empty if it has none.
        mtime: time of the last change in seconds since 1970, 0 if unknown.
        dataset: name of the data set it belongs to.
    """

    url: str
    size: int
    etag: str
    mtime: float
    dataset: str

    def same_content(self, other: FileEntry) -> bool:
        """Whether both entries speak of the same bytes, as far as a listing can tell."""
        if self.size != other.size:
            return False
        if self.etag or other.etag:
            return self.etag == other.etag
        return self.mtime == other.mtime


@dataclass(frozen=True, slots=True)
class Part:
    """What a unit reads of one file.

    Attributes:
        url: the file.
        start, end: byte range. A line of JSONL belongs to the part that holds
            its first byte, a row group of Parquet to the part that holds the
            first byte of its data.
        size: the whole file's bytes when it was listed.
        format: ``jsonl``, ``json``, ``parquet``, ``arrow``, ``csv``, ``object`` or ``text``.
        compression: ``gzip``, ``zstd``, ``bz2``, ``xz`` or empty.
        stamp: what tells the file from a later one of equal size; see
            :mod:`retok_dask.completions.unchanged`. Empty if nothing does.
    """

    url: str
    start: int
    end: int
    size: int
    format: str
    compression: str = ""
    stamp: str = ""

    @property
    def text_bytes(self) -> int:
        """Text to expect in it, compressed files by the usual ratio."""
        ratio = COMPRESSED_RATIO if self.compression else COLUMNAR_RATIO if self.format == "parquet" else 1
        return (self.end - self.start) * ratio

    def cut(self, text_bytes: int) -> tuple[Part, ...]:
        """The part in two, the first with about so much text; alone if it has not twice as much."""
        if self.text_bytes < 2 * text_bytes:
            return (self,)
        middle = self.start + (self.end - self.start) * text_bytes // self.text_bytes
        return replace(self, end=middle), replace(self, start=middle)

    @property
    def whole(self) -> bool:
        """Whether the part is the whole file."""
        return self.start == 0 and self.end == self.size


@dataclass(frozen=True, slots=True)
class Unit:
    """The piece of input that one task reads, writes and commits.

    Attributes:
        id: stable name; the same files, cut the same way, give the same ids,
            whatever other files are listed beside them.
        dataset: name of its data set.
        parts: what it reads, in order.
        bytes: text to expect, compressed files estimated.
        first, last: ordinals of the records it is restricted to, ``last``
            excluded; None for all. Only halves of a unit have them.
        limit: most records that it gives, where the data set's limit ends in it.
    """

    id: str
    dataset: str
    parts: tuple[Part, ...]
    bytes: int
    first: int | None = None
    last: int | None = None
    limit: int | None = None

    def halves(self, records: int) -> tuple[Unit, Unit]:
        """Two units that together read what this one reads.

        Args:
            records: how many records this unit holds (rejects included).
        """
        low = self.first or 0
        high = self.last if self.last is not None else records
        middle = (low + high) // 2
        return (
            replace(self, id=f"{self.base_id}.{low}-{middle}", first=low, last=middle, bytes=self.bytes // 2),
            replace(self, id=f"{self.base_id}.{middle}-{high}", first=middle, last=high, bytes=self.bytes // 2),
        )

    @property
    def base_id(self) -> str:
        """Id of the whole unit that this one is, or is a restriction of."""
        if self.first is None:
            return self.id
        return self.id.rpartition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; what the files have in common is written once."""
        stem = common_stem([part.url for part in self.parts])
        data: dict[str, Any] = {"id": self.id, "dataset": self.dataset, "bytes": self.bytes, "stem": stem}
        data["parts"] = [[p.url[len(stem) :], p.start, p.end, p.size] + [p.stamp] * bool(p.stamp) for p in self.parts]
        kinds = [[p.format, p.compression] for p in self.parts]
        data["kinds"] = kinds[:1] if all(kind == kinds[0] for kind in kinds) else kinds
        if self.first is not None:
            data |= {"first": self.first, "last": self.last}
        if self.limit is not None:
            data["limit"] = self.limit
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Unit:
        """The inverse of :meth:`to_dict`."""
        kinds = data["kinds"]
        if len(kinds) == 1:
            kinds = kinds * len(data["parts"])
        parts = tuple(
            Part(data["stem"] + name, start, end, size, *kind, *stamp)
            for (name, start, end, size, *stamp), kind in zip(data["parts"], kinds, strict=True)
        )
        return cls(
            data["id"], data["dataset"], parts, data["bytes"], data.get("first"), data.get("last"), data.get("limit")
        )


def unit_id(dataset: str, parts: Sequence[Part]) -> str:
    """A readable name that depends on nothing but the data set and the parts."""
    key = orjson.dumps([dataset, [[p.url, p.start, p.end] for p in parts]])
    mark = hashlib.sha256(key).hexdigest()[:12]
    first = parts[0]
    name = first.url.rstrip("/").rpartition("/")[2].partition(".")[0]
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)[:40].lstrip("-_") or "unit"
    place = "" if first.whole else f"-{first.start:012d}"
    return f"{name}{place}-{mark}"


@dataclass(frozen=True, slots=True)
class ListingChange:
    """What differs between an older listing and one made now.

    Attributes:
        changed: files of the old listing whose content is another now.
        removed: files of the old listing that are gone.
        new: files that the old listing does not have.
        old_listing: the older listing.
        new_parts: data set and part of what is to be read of the new files.
    """

    changed: tuple[FileEntry, ...]
    removed: tuple[FileEntry, ...]
    new: tuple[FileEntry, ...]
    old_listing: Listing
    new_parts: tuple[tuple[str, Part], ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed or self.new)

    def extended(self) -> Listing:
        """The old listing with units for the new files added; the old units stay as they are.

        Raises:
            InputError: files have changed or are gone, so that old units would
                not give again what they gave.
        """
        if self.changed or self.removed:
            raise InputError(self.describe())
        old = self.old_listing
        closed = sorted({entry.dataset for entry in self.new} & set(old.limited))
        if closed:
            msg = f"data set {closed[0]!r} has a limit, so new files cannot be added to it; start a new output folder"
            raise InputError(msg)
        units = group_parts(self.new_parts, old.unit_bytes)
        return Listing([*old.files, *self.new], [*old.units, *units], old.unit_bytes, old.notes, old.limited)

    def describe(self) -> str:
        """One sentence that names the first files of each kind."""
        said = []
        for word, files in (("changed", self.changed), ("gone", self.removed), ("new", self.new)):
            if files:
                said.append(f"{len(files)} {word}: {first_few([entry.url for entry in files])}")
        return "input files differ from the first start; " + "; ".join(said) if said else "the input is unchanged"


@dataclass(slots=True)
class Listing:
    """All files of a recipe, and the units they are cut into.

    Attributes:
        files: as found, in order of data set and name.
        units: in the order of the files.
        unit_bytes: text that a unit was meant to hold.
        notes: what the user should know, such as files left aside.
        limited: data sets with a limit; of their files only those are listed
            that the limit reaches.
    """

    files: list[FileEntry] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    unit_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)

    @property
    def stored_bytes(self) -> int:
        """Size of all files as stored."""
        return sum(entry.size for entry in self.files)

    def to_json(self) -> bytes:
        """The listing as JSON; see :meth:`from_json`."""
        data = {
            "version": LISTING_VERSION,
            "unit_bytes": self.unit_bytes,
            "notes": self.notes,
            "limited": self.limited,
            "files": [_pack_files(group) for group in _by_dataset(self.files)],
            "units": [unit.to_dict() for unit in self.units],
        }
        return orjson.dumps(data)

    @classmethod
    def from_json(cls, text: bytes | str) -> Listing:
        """Read what :meth:`to_json` wrote.

        Raises:
            InputError: it is no listing of this version.
        """
        data = orjson.loads(text)
        if not isinstance(data, dict) or data.get("version") != LISTING_VERSION:
            msg = "this is no input listing that this version of retok-dask can read; start the run anew"
            raise InputError(msg)
        files = [entry for group in data["files"] for entry in _unpack_files(group)]
        units = [Unit.from_dict(unit) for unit in data["units"]]
        return cls(files, units, data["unit_bytes"], data["notes"], data["limited"])


def group_parts(parts: Iterable[tuple[str, Part]], target: int) -> list[Unit]:
    """Units of about ``target`` bytes of text, parts kept in order, small ones together."""
    units: list[Unit] = []
    held: list[Part] = []
    dataset, held_bytes = "", 0

    def flush() -> None:
        nonlocal held, held_bytes
        if held:
            units.append(Unit(unit_id(dataset, held), dataset, tuple(held), held_bytes))
        held, held_bytes = [], 0

    for name, part in parts:
        text = part.text_bytes
        if name != dataset or len(held) >= PARTS_A_UNIT or held_bytes + text > target:
            flush()
            dataset = name
        held.append(part)
        held_bytes += text
    flush()
    return units


def _by_dataset(files: Iterable[FileEntry]) -> list[list[FileEntry]]:
    groups: dict[str, list[FileEntry]] = {}
    for entry in files:
        groups.setdefault(entry.dataset, []).append(entry)
    return list(groups.values())


def _pack_files(files: list[FileEntry]) -> dict[str, Any]:
    stem = common_stem([entry.url for entry in files])
    return {
        "dataset": files[0].dataset,
        "stem": stem,
        "names": [entry.url[len(stem) :] for entry in files],
        "sizes": [entry.size for entry in files],
        "etags": [entry.etag for entry in files],
        "mtimes": [entry.mtime for entry in files],
    }


def _unpack_files(data: dict[str, Any]) -> Iterable[FileEntry]:
    rows = zip(data["names"], data["sizes"], data["etags"], data["mtimes"], strict=True)
    for name, size, etag, mtime in rows:
        yield FileEntry(data["stem"] + name, size, etag, mtime, data["dataset"])
