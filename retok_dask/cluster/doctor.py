"""``doctor``: is everything here that a run needs?"""

from __future__ import annotations

import datetime as dt
import html
import importlib.util
import os
import socket
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dask
from dask.utils import format_bytes

from retok_dask.cluster.connect import open_address
from retok_dask.cluster.links import ANSWER_SECONDS, answers, proxied
from retok_dask.cluster.models import load_models
from retok_dask.cluster.resources import usable_cores, usable_memory
from retok_dask.cluster.settings import JUDGED, MALLOC, judge_allocator, judge_settings
from retok_dask.cluster.versions import compare_versions
from retok_dask.completions import list_inputs
from retok_dask.datasets import OutputFolder, library_versions
from retok_dask.doing import doing
from retok_dask.errors import RetokError, count_of
from retok_dask.recipe import Recipe, UnitSpec
from retok_dask.tokenizers.switches import file_switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client

SMALL_WORKER = 1024**3
"""A worker with less memory than this cannot hold a large tokenizer and its batches."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `ok` is None where it is only worth knowing."""

    name: str
    ok: bool | None
    text: str


@dataclass
class Doctor:
    """All findings.

    Attributes:
        findings: in the order they were looked at.
    """

    findings: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.ok is not False for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "passed": self.passed,
            "findings": [{"name": f.name, "ok": f.ok, "text": f.text} for f in self.findings],
        }

    def to_text(self) -> str:
        """One line a finding."""
        sign = {True: "ok  ", False: "BAD ", None: "    "}
        return "\n".join(f"{sign[finding.ok]} {finding.name}: {finding.text}" for finding in self.findings)

    __str__ = to_text
    __repr__ = to_text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text())}</pre>"

    @contextmanager
    def look(self, name: str) -> Iterator[Callable[[bool | None, str], None]]:
        """Record what is found under a name; an error in looking is a finding too."""
        doing(f"looking at {name}")
        try:
            yield lambda ok, text: self.findings.append(Finding(name, ok, text))
        except (RetokError, OSError, ImportError, RuntimeError, ValueError) as error:
            self.findings.append(Finding(name, False, f"{type(error).__name__}: {error}"))


def doctor(recipe: Recipe | None = None, *, scheduler: str | None = None, client: Client | None = None) -> Doctor:
    """Look at versions, machine, tokenizer, storage, cluster and dashboard.

    Args:
        recipe: look at its tokenizer, template, input and output too.
        scheduler, client: look at this cluster too.
    """
    found = Doctor()
    _machine(found)
    if recipe is not None:
        _recipe(found, recipe)
    address = scheduler or (recipe.cluster.scheduler if recipe is not None else None)
    seconds = (recipe.units if recipe is not None else UnitSpec()).seconds_per_record
    if client is not None:
        _cluster(found, client, seconds)
    elif address:
        with found.look("scheduler") as say, open_address(address) as opened:
            say(True, f"answers at {address}")
            _cluster(found, opened, seconds)
    return found


def _machine(found: Doctor) -> None:
    with found.look("versions") as say:
        say(None, ", ".join(f"{name} {version}" for name, version in library_versions().items()))
    with found.look("machine") as say:
        say(None, f"a local cluster may use {count_of(usable_cores(), 'core')} and {format_bytes(usable_memory())}")
    with found.look("fast engines") as say:
        missing = [name for name in ("fastokens", "minijinja") if importlib.util.find_spec(name) is None]
        say(None if missing else True, f"not installed: {', '.join(missing)}" if missing else "installed")
    with found.look("dashboard") as say:
        there = importlib.util.find_spec("bokeh") is not None
        say(
            None if not there else True,
            "bokeh is installed" if there else "bokeh is missing: runs work without dashboard",
        )


def _recipe(found: Doctor, recipe: Recipe) -> None:
    with found.look("tokenizer and template") as say:
        tokenizer, template = load_models(recipe, recipe.date or dt.datetime.now(dt.UTC).date())
        engine = f", template engine {template.engine}" if template is not None else ""
        say(True, f"{tokenizer.vocab_size:,} tokens, digest {tokenizer.digest[:12]}, engine {tokenizer.engine}{engine}")
        by_file = file_switch(tokenizer)
        if by_file is not None:
            say(None, by_file.sentence)
    with found.look("input") as say:
        listing = list_inputs(recipe)
        say(
            True,
            f"{count_of(len(listing.files), 'file')}, {format_bytes(listing.stored_bytes)}, {count_of(len(listing.units), 'unit')}",
        )
    with found.look("output") as say:
        probe_storage(OutputFolder(recipe.output, recipe.storage))
        say(True, f"{recipe.output}: a probe was written, read and deleted")


def probe_storage(folder: OutputFolder) -> None:
    """Write, read and delete a small file in an output folder.

    Raises:
        StorageError: one of them is refused.
    """
    name = f"_retok/probe-{uuid.uuid4().hex}"
    content = uuid.uuid4().bytes
    folder.write_bytes(name, content)
    try:
        if folder.read_bytes(name) != content:
            msg = f"{folder.url}/{name} reads back other bytes than were written"
            raise OSError(msg)
    finally:
        folder.remove([name])


def _cluster(found: Doctor, client: Client, seconds_per_record: float) -> None:
    info = client.scheduler_info(n_workers=-1)
    workers = info["workers"]
    with found.look("workers") as say:
        threads = {worker["nthreads"] for worker in workers.values()}
        say(
            bool(workers),
            count_of(len(workers), "worker") if workers else "no workers: start some, or scale the cluster",
        )
        if threads - {1}:
            say(None, f"workers have {sorted(threads)} threads; one thread a process is faster and easier to watch")
    with found.look("worker memory") as say:
        limits = [int(worker["memory_limit"] or 0) for worker in workers.values()]
        if limits and min(limits) == 0:
            say(None, "a worker has no memory limit: nothing ends it before the machine runs out")
        elif limits:
            say(min(limits) >= SMALL_WORKER, f"{format_bytes(min(limits))} the smallest; 2 GiB suits most recipes")
    with found.look("worker versions") as say:
        versions = compare_versions(client)
        say(not versions.differences, versions.table() if versions.differences else "the same as here")
    with found.look("settings") as say:
        advice = judge_settings(client.run_on_scheduler(scheduler_settings), seconds_per_record)
        for item in advice:
            say(False, f"{item.name} is {item.value}, better {item.wanted}: {item.why}")
        if not advice:
            say(True, "time to live, allowed failures and memory limits suit long runs")
    with found.look("worker allocator") as say:
        slow = set(map(judge_allocator, client.run(_environment).values())) - {""}
        say(None if slow else True, next(iter(slow), "keeps freed memory for the next batch"))
    with found.look("dashboard link") as say:
        _dashboard(client, say)


def _environment() -> dict[str, str]:
    """Runs on a worker: what its C library's allocator was told."""
    return {name: os.environ[name] for name in MALLOC if name in os.environ}


def scheduler_settings() -> dict[str, Any]:
    """Runs on the scheduler: the settings that matter, as it sees them."""
    return {name: dask.config.get(name, None) for name in JUDGED}


def _dashboard(client: Client, say: Callable[[bool | None, str], None]) -> None:
    link = client.dashboard_link
    if not link:
        say(None, "the scheduler has no dashboard; runs work without it")
        return
    shown = proxied(link)
    if not answers(link):
        say(None, f"{shown} does not answer from here; progress does not need it")
        return
    ok = websocket_answers(link)
    say(
        ok or None,
        f"{shown} answers" + ("" if ok else ", but not its websocket: a proxy in between must let websockets pass"),
    )


def websocket_answers(link: str, timeout: float = ANSWER_SECONDS) -> bool:
    """Whether a dashboard page's websocket agrees to the upgrade."""
    parts = urlsplit(link)
    page = parts.path or "/status"
    request = (
        f"GET {page.rstrip('/')}/ws HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: bokeh\r\nOrigin: {parts.scheme}://{parts.netloc}\r\n\r\n"
    )
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout) as connection:
            connection.sendall(request.encode())
            answer = connection.recv(64)
    except OSError:
        return False
    # an upgrade, or a refusal that bokeh itself gives to a visitor without a session token
    return answer.startswith((b"HTTP/1.1 101", b"HTTP/1.1 403"))
