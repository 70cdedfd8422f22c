"""The one place that opens local paths and URLs of any fsspec file system.

File-system objects are made inside each task and never pickled: they hold
sessions and credentials, which go stale when they travel. Credentials come
from the standard places (environment, ``~/.aws``, instance roles) and are
never part of a recipe, a log line or an error message.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
import stamina
from fsspec.implementations.local import LocalFileSystem

from retok_dask.errors import InputError, RetokError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retok_dask.recipe import StorageSpec

T = TypeVar("T")

ATTEMPTS = 6
"""Tries of one storage call, pauses of 0.2 to 10 seconds between them."""

_TRANSIENT_ERRNO = {
    errno.EBUSY,
    errno.EIO,
    errno.EAGAIN,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EPIPE,
    errno.ESTALE,
    getattr(errno, "EREMOTEIO", errno.EIO),
}
_NETWORK_LIBRARIES = {"botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "http", "ssl"}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}
_EXPIRED = ("ExpiredToken", "expired", "TokenRefreshRequired", "InvalidToken")
_BAD_KEY = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "Access Key Id you provided", "signature we calculated")


def protocol_of(url: str) -> str:
    """The scheme of a URL; ``file`` for a plain path.

    >>> protocol_of("s3://bucket/key"), protocol_of("data/x.jsonl")
    ('s3', 'file')
    """
    head, separator, _ = url.partition("://")
    return head.lower() if separator else "file"


def is_local(url: str) -> bool:
    """Whether the URL names a file of this machine."""
    return protocol_of(url) in {"file", "local"}


def storage_options(url: str, storage: StorageSpec | None) -> dict[str, Any]:
    """Arguments for the fsspec file system of a URL; never a credential."""
    if protocol_of(url) not in {"s3", "s3a"}:
        return {}
    # A cached listing hides files that another worker has just written.
    # Few tries here, because :func:`retrying` stands around every call, with pauses of its own.
    config: dict[str, Any] = {"retries": {"mode": "standard", "max_attempts": 2}, "connect_timeout": 15}
    options: dict[str, Any] = {"use_listings_cache": False, "config_kwargs": config | {"signature_version": "s3v4"}}
    if storage is None:
        return options
    if storage.endpoint_url:
        options["endpoint_url"] = storage.endpoint_url
        options["config_kwargs"]["s3"] = {"addressing_style": "path"}
    if storage.region:
        options["client_kwargs"] = {"region_name": storage.region}
    if storage.anonymous:
        options["anon"] = True
        options["config_kwargs"].pop("signature_version")
    return options


_SESSIONS: dict[tuple[Any, ...], Any] = {}
_SESSIONS_LOCK = threading.Lock()


def open_fs(url: str, storage: StorageSpec | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path within it.

    Raises:
        StorageError: no file system is installed for this scheme.
    """
    options = storage_options(url, storage)
    # fsspec keeps one file system a thread, but making an S3 session costs a large part of a second;
    # file systems that are asynchronous inside may be shared, so all threads of a process use one.
    key = (os.getpid(), protocol_of(url), repr(sorted(options.items())))
    with _SESSIONS_LOCK:
        shared = _SESSIONS.get(key)
        if shared is not None and "::" not in url:
            return shared, shared._strip_protocol(url)
        try:
            fs, path = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            msg = f"cannot open {url!r}: {error}"
            raise StorageError(msg) from error
        if getattr(fs, "async_impl", False) and "::" not in url:
            _SESSIONS[key] = fs
    return fs, path


def full_url(fs: Any, path: str) -> str:
    """A path of a file system as one string that :func:`open_fs` takes; local paths stay plain."""
    if isinstance(fs, LocalFileSystem):
        return path
    return str(fs.unstrip_protocol(path))


def forget_sessions(url: str, storage: StorageSpec | None = None) -> None:
    """Drop the file systems of this URL's kind, so that the next one reads fresh credentials."""
    fs, _ = open_fs(url, storage)
    with _SESSIONS_LOCK:
        for key in [key for key in _SESSIONS if key[1] == protocol_of(url)]:
            del _SESSIONS[key]
        type(fs).clear_instance_cache()


def _texts(error: BaseException) -> str:
    """Messages of an error and of what caused it, for telling S3's answers apart."""
    found: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < 5:
        found.append(f"{type(seen).__name__}: {seen}")
        seen = seen.__cause__ or seen.__context__
    return " | ".join(found)


def is_expired(error: BaseException) -> bool:
    """Whether the storage refused because temporary credentials ran out."""
    text = _texts(error)
    return isinstance(error, PermissionError | OSError) and any(word in text for word in _EXPIRED)


def is_transient(error: BaseException, *, patient: bool = True) -> bool:
    """Whether trying the same call again makes sense.

    Args:
        error: what the call raised.
        patient: also try again after a refusal (403). Object stores refuse a
            good request now and then; a permanent refusal is found when the
            input is listed and the output is probed, which is impatient.
    """
    if isinstance(error, RetokError | FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError):
        return False
    if isinstance(error, PermissionError):
        return is_expired(error) or (patient and error.errno is None)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    library = type(error).__module__.partition(".")[0]
    if library in _NETWORK_LIBRARIES:
        return type(error).__name__ not in _NO_CREDENTIALS
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO


def explain(error: BaseException, url: str, *, reading: bool = True) -> RetokError:
    """A storage library's error as one of ours: what happened, where, and the way out."""
    if isinstance(error, RetokError):
        return error
    text, place = _texts(error), f"{url!r}"
    if any(name in text for name in _NO_CREDENTIALS):
        return StorageError(
            f"no credentials for {place}; put them in the environment or ~/.aws, or set anonymous: true"
        )
    if is_expired(error):
        return StorageError(f"the credentials for {place} have expired; renew them and start the same command again")
    if any(word in text for word in _BAD_KEY):
        return StorageError(
            f"the storage does not know the credentials used for {place}; check AWS_ACCESS_KEY_ID and ~/.aws"
        )
    if "NoSuchBucket" in text or "bucket does not exist" in text:
        bucket = url.partition("://")[2].partition("/")[0]
        return InputError(f"there is no bucket {bucket!r} (for {place}); check the name, the endpoint and the region")
    if isinstance(error, NotADirectoryError):
        return StorageError(f"{place} lies below a file, which is no folder; name another folder")
    if isinstance(error, FileNotFoundError):
        if not reading:
            return StorageError(f"cannot write {place}: its folder cannot be made there; name another folder")
        return InputError(f"there is no {place}; check the path")
    if isinstance(error, PermissionError):
        verb = "read" if reading else "write"
        return StorageError(f"no permission to {verb} {place}: {error}")
    verb = "reading" if reading else "writing"
    return StorageError(f"{verb} {place} failed: {type(error).__name__}: {error}")


def retrying(
    call: Callable[[], T],
    url: str,
    *,
    storage: StorageSpec | None = None,
    reading: bool = True,
    patient: bool = True,
    attempts: int = ATTEMPTS,
) -> T:
    """Make one storage call, again after a pause where that can help.

    Args:
        call: the call; it must be safe to repeat, and should ask
            :func:`open_fs` itself, so that a repeat sees fresh credentials.
        url: what it reads or writes, for the error message.
        storage: the recipe's storage part.
        reading: whether the call reads (for the wording).
        patient: see :func:`is_transient`.
        attempts: most tries.

    Raises:
        InputError: the file or bucket does not exist.
        StorageError: everything else that the storage refused.
    """

    def again(error: Exception) -> bool:
        if is_expired(error):
            forget_sessions(url, storage)
        return is_transient(error, patient=patient)

    failed: list[Exception] = []

    def resume() -> T:
        if failed:
            raise failed.pop()
        return call()

    try:
        try:
            return call()  # nearly all calls go well, and need no retry machinery
        except Exception as error:  # noqa: BLE001  judged again by the retries
            failed.append(error)
        for attempt in stamina.retry_context(
            on=again, attempts=attempts, timeout=120.0, wait_initial=0.2, wait_max=10.0, wait_jitter=0.5
        ):
            with attempt:
                return resume()
    except Exception as error:
        raise explain(error, url, reading=reading) from error
    raise AssertionError  # stamina either returns a value or raises


def read_range(url: str, start: int, end: int, storage: StorageSpec | None = None) -> bytes:
    """Bytes ``start`` to ``end`` of a file, fewer if the file is shorter.

    Raises:
        InputError: there is no such file.
        StorageError: the storage refused.
    """
    if end <= start:
        return b""

    def call() -> bytes:
        fs, path = open_fs(url, storage)
        return bytes(fs.cat_file(path, start=start, end=end))

    return retrying(call, url, storage=storage)
