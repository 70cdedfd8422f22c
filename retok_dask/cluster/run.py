"""``run``: start or resume a recipe, and see it through."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from retok_dask.cluster.connect import Connection, naming_loss
from retok_dask.cluster.driver import Driver
from retok_dask.cluster.duplicates import mark_duplicates
from retok_dask.cluster.events import EventLog, read_events
from retok_dask.cluster.fleet import Outcome
from retok_dask.cluster.isolation import SetAside
from retok_dask.cluster.job import EncodeJob
from retok_dask.cluster.links import proxied
from retok_dask.cluster.performance import WRITTEN, keep_performance
from retok_dask.cluster.prepare import Prepared, prepare
from retok_dask.cluster.progress import Display, display_for
from retok_dask.cluster.result import RunResult
from retok_dask.cluster.tracker import COUNTED
from retok_dask.cluster.versions import check_versions
from retok_dask.datasets import (
    OutputFolder,
    OutputLock,
    discard_unit,
    read_run,
    scan_receipts,
    start_run,
    write_manifest,
)
from retok_dask.datasets.folder import LISTING, RECIPE
from retok_dask.doing import doing, heard_by
from retok_dask.errors import OutputLocked, RetokError, StorageError
from retok_dask.recipe import Recipe
from retok_dask.tokenizers.switches import file_switch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distributed import Client


PULSE_SECONDS = 10.0
"""Time between two signs of life in the output folder."""


def run(
    recipe: Recipe | str | Path,
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    extend: bool = False,
    restart: bool = False,
    progress: str = "auto",
    performance_report: str | Path | None = None,
) -> RunResult:
    """Run a recipe, or go on with it where it stopped.

    Units that are committed are not done again. On a finished output nothing
    happens, and the result says so.

    Args:
        recipe: the recipe, or the path of its YAML file.
        client: a Dask client to use; None takes the notebook's current one, or
            makes a local cluster and closes it.
        scheduler: address of a running scheduler; wins over the recipe's.
        extend: take input files that are new since the run began.
        restart: delete what the output folder holds, and start anew.
        progress: ``auto``, ``bar``, ``notebook``, ``lines`` or ``none``.
        performance_report: path or URL of an HTML page for Dask's own performance
            report of this session. Needs bokeh on the scheduler; without it the
            run goes on, and the result says why there is none.

    Returns:
        What was done; its ``exit_code`` is 0 only if every unit is committed
        and the share of rejects is within the recipe's limit.

    Raises:
        RecipeError, InputError, TokenizerError, TemplateError: the recipe cannot be used.
        FingerprintMismatch: the output belongs to another recipe, input, tokenizer or template.
        OutputLocked: another client that is alive writes to it.
        ClusterError: the scheduler does not answer, is lost, or its workers do not fit.
        StorageError: storage refuses, after the retries that make sense.
    """
    recipe = Recipe.of(recipe)
    display = display_for(progress)
    folder = OutputFolder(recipe.output, recipe.storage)
    with contextlib.closing(Connection(recipe, client, scheduler)) as connection, heard_by(display.doing):
        prepared = prepare(recipe, folder, extend=extend, restart=restart, begin=connection.begin)
        finished = prepared.finished_already(folder)
        if finished is not None:
            display.close(prepared.tracker.snapshot())
            return finished
        lock = OutputLock(folder)
        lock.acquire()
        try:
            return _Session(
                prepared, folder, lock, display, restart=restart, performance=str(performance_report or "")
            ).work(connection)
        finally:
            with contextlib.suppress(RetokError, OSError):
                lock.release()


class _Session:
    """One session of a run: from the lock to the manifest."""

    def __init__(
        self,
        prepared: Prepared,
        folder: OutputFolder,
        lock: OutputLock,
        display: Display,
        *,
        restart: bool,
        performance: str = "",
    ) -> None:
        self.prepared = prepared
        self.folder = folder
        self.lock = lock
        self.display = display
        self.restart = restart
        self.performance = performance
        self._performance_told = ""
        self._warnings: list[str] = []
        self.tracker = prepared.tracker
        self.log = EventLog(folder)
        self._stop = threading.Event()
        self._lost: OutputLocked | None = None
        self._said = ""
        self._dashboard = ""
        self._workers = 0
        self._driver: Driver | None = None

    def work(self, connection: Connection) -> RunResult:
        """Do what is left, and write the manifest if all is done."""
        started = monotonic()
        with contextlib.closing(connection):
            found = None
            if self.prepared.todo:
                if connection.crowded:
                    self.display.say(connection.crowded)
                by_file = file_switch(self.prepared.tokenizer)
                if by_file is not None:
                    self.display.say("; ".join([by_file.sentence, *by_file.notes]))
                # before anything is written: a cluster that does not answer leaves no trace
                doing("connecting to the cluster")
                found = connection.client()
                with naming_loss(found):
                    self._workers = check_versions(found).workers
            self._begin()
            try:
                with self._pulse():
                    outcome = Outcome()
                    if found is not None:
                        with naming_loss(found):
                            outcome = self._drive(found)
                    result = self._finish(outcome, monotonic() - started)
            except BaseException as error:
                self._end(*_stopped_by(error))
                raise
        self._end("done" if result.exit_code == 0 else "failed", result.verdict.removeprefix("done: "))
        return result

    def _begin(self) -> None:
        if self.restart:
            holder = self.lock
            self.folder.clear()
            holder.acquire()
        prepared = self.prepared
        if (
            not prepared.resumes
            or read_run(self.folder) is None
            or prepared.fingerprint.inputs_digest != (read_run(self.folder) or {}).get("inputs", {}).get("digest")
        ):
            self._write_start()
        elif prepared.notes_changed(self.folder):
            self.folder.write_bytes(RECIPE, prepared.recipe.to_yaml().encode())
        self.folder.clean_temporary()
        for unit in prepared.listing.units:
            if unit.id in prepared.refused:
                discard_unit(self.folder, unit.dataset, unit.id)
        self.log.start(
            resumed=prepared.resumes,
            fingerprint=prepared.fingerprint.digest,
            units=len(prepared.listing.units),
            committed=len(prepared.committed),
            refused=dict(list(prepared.refused.items())[:20]),
        )

    def _write_start(self) -> None:
        self.folder.write_bytes(LISTING, self.prepared.listing.to_json())
        start_run(self.folder, self.prepared.fingerprint, self.prepared.recipe)

    def _drive(self, found: Client) -> Outcome:
        prepared = self.prepared
        job = EncodeJob.of(
            self.log.session,
            prepared.recipe,
            prepared.tokenizer,
            prepared.template,
            prepared.fingerprint.digest,
            prepared.sources,
        )
        self._dashboard = proxied(found.dashboard_link or "")
        self.log.add("cluster", scheduler=found.scheduler.address, workers=self._workers, dashboard=self._dashboard)
        duplicates = mark_duplicates(found, prepared.recipe, prepared.listing.units, self.folder, self._tick)
        if duplicates is not None:
            self.log.add("duplicates", items=duplicates.items, unread=len(duplicates.unread))
            for unit, why in list(duplicates.unread.items())[:20]:
                self.log.add("unchecked", unit=unit, why=why)
            self._warnings += [duplicates.warning] if duplicates.unread else []
        self._driver = Driver(
            found,
            job,
            prepared.todo,
            tracker=self.tracker,
            log=self.log,
            seconds_per_record=prepared.recipe.units.seconds_per_record,
            tick=self._tick,
            known_bad=self._known_bad(),
        )
        with keep_performance(found, self.performance, prepared.recipe.storage, self._tell_performance):
            return self._driver.work()

    def _tell_performance(self, text: str) -> None:
        self._performance_told = text.removeprefix(WRITTEN)
        self.log.add("performance_report", text=text)
        self.display.say(text)

    def _known_bad(self) -> dict[str, list[SetAside]]:
        """Records that earlier sessions set aside, in units that they did not commit."""
        if not self.prepared.resumes:
            return {}
        open_units = {unit.id for unit in self.prepared.todo}
        found: dict[str, list[SetAside]] = {}
        for event in read_events(self.folder, kinds=("set_aside",)):
            if event["unit"] in open_units:
                found.setdefault(event["unit"], []).append(SetAside.from_list(event["record"]))
        return found

    def _tick(self) -> None:
        if self._lost is not None:
            raise self._lost
        workers = self._driver.workers if self._driver is not None else 0
        snapshot = self.tracker.snapshot(workers=workers, dashboard=self._dashboard)
        if self.tracker.note and self.tracker.note != self._said:
            self._said = self.tracker.note
            self.display.say(self._said)
        self.display.update(snapshot)

    @contextlib.contextmanager
    def _pulse(self) -> Iterator[None]:
        """Signs of life in the output folder, from a thread of their own: storage may be slow."""
        thread = threading.Thread(target=self._beat, name="retok-pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(timeout=30)

    def _beat(self) -> None:
        while not self._stop.wait(PULSE_SECONDS):
            try:
                self.lock.refresh()
            except OutputLocked as error:
                self._lost = error
                return
            except (StorageError, OSError):
                continue  # the next one may work; a lease outlives several
            snapshot = self.tracker.snapshot()
            self.log.add("progress", **{name: getattr(snapshot, name) for name in ("units_done", *COUNTED)})
            self.log.flush()

    def _finish(self, outcome: Outcome, seconds: float) -> RunResult:
        """Believe receipts, not memory: read them again, and write the manifest if none is missing."""
        prepared = self.prepared
        expected = [unit.id for unit in prepared.listing.units]
        scan = scan_receipts(self.folder, fingerprint=prepared.fingerprint.digest)
        failed = dict(outcome.failed)
        for name in expected:
            if name not in scan.committed and name not in failed:
                failed[name] = scan.refused.get(name, "it has no receipt")
        committed = {name: scan.committed[name] for name in expected if name in scan.committed}
        if not failed:
            manifest = write_manifest(self.folder, committed, expected=expected)
            result = RunResult.of_manifest(prepared.recipe, manifest)
        else:
            result = RunResult.of_receipts(prepared.recipe, committed, failed, len(expected))
        self.folder.clean_temporary()
        return replace(
            result,
            seconds=seconds,
            committed_now=outcome.committed,
            committed_before=len(prepared.committed),
            worker_deaths=outcome.deaths,
            retries=outcome.retries,
            set_aside=outcome.set_aside,
            performance=self._performance_told,
            warnings=[*self._warnings, *result.warnings],
        )

    def _end(self, how: str, text: str) -> None:
        self.log.add("end", how=how, text=text)
        self.log.flush()
        with contextlib.suppress(Exception):
            self.display.close(self.tracker.snapshot(dashboard=self._dashboard))


def _stopped_by(error: BaseException) -> tuple[str, str]:
    """How a session ended that did not come to its end, and a clause on it."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "by Ctrl-C; start the same command to resume"
    if isinstance(error, SystemExit):
        return "stopped", "by SIGTERM; start the same command to resume"
    return type(error).__name__, str(error)[:500]
