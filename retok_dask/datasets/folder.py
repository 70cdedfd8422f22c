"""Where each thing of a run lies, and how a file appears there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import pyarrow as pa

from retok_dask.completions.storage import open_fs, protocol_of, retrying
from retok_dask.datasets.files import abort_uploads, forget_the_dead, sha256_of, sync_and_rename
from retok_dask.errors import OutputError
from retok_dask.recipe import StorageSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

READ_THREADS = 16
"""Small files read at once; they wait for the network, not for the processor."""

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
"""Protocols on which an object appears only when its upload is complete."""

RECEIPTS = "_retok/receipts"
MANIFEST = "_retok/manifest.json"
RUN = "_retok/run.json"
RECIPE = "_retok/recipe.yaml"
INPUTS = "_retok/inputs.json"
LISTING = "_retok/listing.json"
LOCK = "_retok/lock.json"
TEMPORARY = "_retok/tmp"
VOCABULARY = "_retok/vocabulary"


@dataclass(frozen=True)
class Published:
    """A file that was written whole: its path below the folder, bytes and sha256."""

    path: str
    size: int
    sha256: str


class OutputFolder:
    """The folder of one run, on any fsspec file system.

    Holds no connection: each call asks for the file system anew, so that it
    can be pickled into tasks and sees credentials that were renewed.

    Args:
        url: local path or fsspec URL.
        storage: where S3 answers; credentials come from the environment.
        temporary: folder below it for files that are being written.
    """

    def __init__(self, url: str, storage: StorageSpec | None = None, temporary: str = TEMPORARY) -> None:
        self.url = url.rstrip("/") or "/"
        self.storage = storage or StorageSpec()
        self.temporary = temporary

    def __repr__(self) -> str:
        return f"OutputFolder({self.url!r})"

    def __reduce__(self) -> tuple[type[OutputFolder], tuple[str, StorageSpec, str]]:
        return type(self), (self.url, self.storage, self.temporary)

    @property
    def protocol(self) -> str:
        """Scheme of the folder's URL; ``file`` for local paths."""
        return protocol_of(self.url).replace("local", "file")

    @property
    def is_local(self) -> bool:
        return self.protocol == "file"

    # the paths of the contract, all relative to the folder

    def data(self, dataset: str, unit: str) -> str:
        return f"data/{dataset}/{file_name(unit)}.parquet"

    def rejects(self, dataset: str, unit: str) -> str:
        return f"rejects/{dataset}/{file_name(unit)}.parquet"

    def vocabulary(self, dataset: str, unit: str) -> str:
        return f"{VOCABULARY}/{dataset}/{file_name(unit)}.parquet"

    def receipt(self, unit: str) -> str:
        return f"{RECEIPTS}/{file_name(unit)}.json"

    def is_file(self) -> bool:
        """Whether the URL is that of a file, and so of no folder."""
        return self._call(lambda fs, path: bool(fs.isfile(path.rstrip("/"))), "")

    def path(self, relative: str) -> str:
        """Absolute path on the file system of a path of the contract."""
        return self._resolve(relative)[1]

    def url_of(self, relative: str) -> str:
        """URL of a path of the contract."""
        return f"{self.url}/{relative}"

    # reading

    def exists(self, relative: str) -> bool:
        return self._call(lambda fs, path: bool(fs.exists(path)), relative)

    def read_bytes(self, relative: str) -> bytes:
        """The whole of a small file.

        Raises:
            FileNotFoundError: it is not there.
            StorageError: the storage refused.
        """

        def read(fs: Any, path: str) -> bytes | None:
            try:
                return Path(path).read_bytes() if self.is_local else bytes(fs.cat_file(path))
            except FileNotFoundError:
                return None

        data = self._call(read, relative)
        if data is None:
            raise FileNotFoundError(self.url_of(relative))
        return data

    def read_json(self, relative: str) -> Any:
        """A JSON file; None if it is not there.

        Raises:
            OutputError: it is no JSON.
        """
        try:
            data = self.read_bytes(relative)
        except FileNotFoundError:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            msg = f"{self.url_of(relative)} is no JSON ({error}); it was not written by retok, or was changed since"
            raise OutputError(msg) from error

    def read_many(self, relatives: Sequence[str]) -> list[bytes | OSError]:
        """Many small files at once; an error stands in the place of one that failed."""

        def read(relative: str) -> bytes | OSError:
            try:
                return self.read_bytes(relative)
            except OSError as error:
                return error

        return self.parallel(read, relatives)

    def parallel(self, function: Callable[[Any], T], items: Sequence[Any], threads: int = READ_THREADS) -> list[T]:
        """Apply a function that waits for storage to many items, in order."""
        # a thread takes several items at once: handing over one costs as much as reading a local file
        size = max(1, min(64, len(items) // threads))
        pieces = [items[start : start + size] for start in range(0, len(items), size)]
        if len(pieces) <= 1:
            return [function(item) for item in items]

        def work(piece: Sequence[Any]) -> list[T]:
            return [function(item) for item in piece]

        with ThreadPoolExecutor(threads, thread_name_prefix="retok-storage") as pool:
            return [result for results in pool.map(work, pieces) for result in results]

    def sizes(self, below: str) -> dict[str, int]:
        """Bytes of every file below a folder, by path relative to the run's folder."""
        cut = len(self.path(""))

        def find(fs: Any, path: str) -> dict[str, int]:
            fs.invalidate_cache()
            try:
                found = fs.find(path, detail=True)
            except FileNotFoundError:
                return {}
            return {name[cut:]: int(info["size"]) for name, info in found.items() if info["type"] == "file"}

        return self._call(find, below)

    def size(self, relative: str) -> int | None:
        """Bytes of one file; None if it is not there."""

        def look(fs: Any, path: str) -> int | None:
            try:
                return int(fs.info(path)["size"])
            except FileNotFoundError:
                return None

        return self._call(look, relative)

    def open_input(self, relative: str) -> Any:
        """A readable, seekable file object.

        Raises:
            InputError: it is not there.
            StorageError: the storage refused.
        """
        if self.is_local:
            # Arrow reads its own files without the interpreter, which counts over 100,000 footers
            return self._call(lambda _, path: pa.OSFile(path), relative)
        return self._call(lambda fs, path: fs.open(path, "rb"), relative)

    # writing

    def write_bytes(self, relative: str, data: bytes) -> Published:
        """Write a small file, whole or not at all."""

        def write(fs: Any, path: str) -> None:
            if self.is_local:
                temporary = self.local_temporary("bytes")
                temporary.write_bytes(data)
                sync_and_rename(temporary, path)
            elif self.protocol in OBJECT_STORES:
                fs.pipe_file(path, data)
            else:
                self._put_and_move(fs, path, lambda temporary: fs.pipe_file(temporary, data))

        self._call(write, relative, reading=False)
        return Published(relative, len(data), hashlib.sha256(data).hexdigest())

    def create_bytes(self, relative: str, data: bytes) -> None:
        """Write a small file only if there is none of that name.

        Exclusive on local folders and on object stores that honour
        ``If-None-Match``; others overwrite.

        Raises:
            FileExistsError: there is one; perhaps of this very call, whose first try was not answered.
            StorageError: the storage refuses.
        """

        def create(fs: Any, path: str) -> bool:
            try:
                if self.is_local:
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    with Path(path).open("xb") as file:
                        file.write(data)
                elif fs.exists(path):
                    return False
                elif self.protocol in {"s3", "s3a"}:
                    fs.pipe_file(path, data, mode="create")
                else:
                    self.write_bytes(relative, data)
            except FileExistsError:
                return False
            return True

        if not self._call(create, relative, reading=False):
            raise FileExistsError(self.url_of(relative))

    def write_json(self, relative: str, value: Any, *, indent: bool = False) -> Published:
        """Write a value as JSON, whole or not at all."""
        options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | (orjson.OPT_INDENT_2 if indent else 0)
        return self.write_bytes(relative, orjson.dumps(value, option=options) + b"\n")

    def local_temporary(self, attempt: str) -> Path:
        """A new local path to write to before :meth:`publish`.

        In the run's folder if that is local, so that publishing is a rename;
        in the machine's temporary folder otherwise.
        """
        if not self.is_local:
            forget_the_dead()
            handle, name = tempfile.mkstemp(prefix=f"retok-{socket.gethostname()}-{os.getpid()}-", suffix=".tmp")
            os.close(handle)
            return Path(name)
        folder = Path(self.path(self.temporary))
        folder.mkdir(parents=True, exist_ok=True)
        unique = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        return folder / f"{file_name(attempt)}-{unique}.tmp"

    def publish(self, local: Path, relative: str) -> Published:
        """Give a closed local file its final name; until then nobody sees it.

        A local file is renamed, after its bytes and before its folder are
        synced. On an object store it is one upload, which is aborted if it
        fails. Elsewhere it is uploaded under a temporary name and moved.

        Raises:
            StorageError: the storage refused, after retries.
        """
        size, sha256 = local.stat().st_size, sha256_of(local)

        def put(fs: Any, path: str) -> None:
            if self.is_local:
                sync_and_rename(local, path)
            elif self.protocol in OBJECT_STORES:
                fs.put_file(str(local), path)
            else:
                self._put_and_move(fs, path, lambda temporary: fs.put_file(str(local), temporary))

        self._call(put, relative, reading=False)
        local.unlink(missing_ok=True)
        return Published(relative, size, sha256)

    def remove(self, relatives: Iterable[str]) -> None:
        """Delete files that may or may not be there."""

        def delete(fs: Any, path: str) -> None:
            if fs.exists(path):
                fs.rm_file(path)

        for relative in relatives:
            self._call(delete, relative, reading=False)

    def remove_folder(self, relative: str) -> None:
        """Delete a folder, which may or may not be there, with all that is in it."""

        def delete(fs: Any, path: str) -> None:
            fs.invalidate_cache()
            if fs.exists(path):
                fs.rm(path, recursive=True)

        self._call(delete, relative, reading=False)

    def clear(self) -> None:
        """Delete what a run wrote here, its manifest first, and nothing else."""
        for relative in (MANIFEST, RECEIPTS, "data", "rejects", "_retok"):
            self.remove_folder(relative)

    def clean_temporary(self) -> int:
        """Delete what killed attempts left behind; only for the one client that holds the lock.

        Returns:
            How many files and unfinished uploads were removed.
        """
        left = list(self.sizes(self.temporary))
        self.remove(left)
        if self.protocol not in {"s3", "s3a"}:
            return len(left)
        return len(left) + self._call(abort_uploads, "", reading=False)

    def _resolve(self, relative: str) -> tuple[Any, str]:
        if self.is_local:
            # a local file system holds no credentials that could go stale
            fs, root = self._local
        else:
            fs, root = open_fs(self.url, self.storage)
        return fs, f"{root.rstrip('/')}/{relative}"

    @cached_property
    def _local(self) -> tuple[Any, str]:
        return open_fs(self.url, self.storage)

    def _call(self, function: Callable[[Any, str], T], relative: str, *, reading: bool = True) -> T:
        """One storage call with the retries that make sense, on a file system asked for anew."""
        return retrying(
            lambda: function(*self._resolve(relative)), self.url_of(relative), storage=self.storage, reading=reading
        )

    def _put_and_move(self, fs: Any, path: str, put: Callable[[str], None]) -> None:
        temporary = self.path(f"{self.temporary}/{uuid.uuid4().hex}.tmp")
        for name in (temporary, path):
            fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        put(temporary)
        fs.mv(temporary, path)


def file_name(unit: str) -> str:
    """A unit's id as a file name: ids are plain already, anything else is refused.

    Raises:
        OutputError: the id would name another folder.
    """
    if not unit or "/" in unit or "\\" in unit or unit.startswith((".", "_")):
        msg = f"{unit!r} cannot name a file; unit ids hold no slash and start with a letter or digit"
        raise OutputError(msg)
    return unit
