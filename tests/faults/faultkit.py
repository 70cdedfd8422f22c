"""Runs in processes of their own, so that they can be killed; and the undisturbed run to compare with."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from smalldata import make_recipe, tokenizer_path, write_data  # noqa: E402  the cluster's tests have them

from retok_dask.checks import validate  # noqa: E402
from retok_dask.cluster import read_events, run  # noqa: E402
from retok_dask.datasets import OutputFolder, read_manifest  # noqa: E402
from retok_dask.recipe import Recipe  # noqa: E402

__all__ = [
    "calm_digests",
    "check_whole",
    "events_of",
    "make_recipe",
    "paused",
    "paused_data",
    "start",
    "tokenizer_path",
    "undisturbed",
    "write_data",
]


@dataclass
class Running:
    """A ``retok run`` in a process of its own."""

    process: subprocess.Popen
    output: Path
    log: Path
    said: list[str] = field(default_factory=list)

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, by their parent."""
        try:
            children = psutil.Process(self.process.pid).children()
            return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        except psutil.Error:
            return []

    def receipts(self) -> int:
        return len(list((self.output / "_retok" / "receipts").glob("*.json")))

    def wait_for_receipts(self, count: int, seconds: float = 150) -> None:
        end = time.monotonic() + seconds
        while self.receipts() < count and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.05)
        assert self.process.poll() is None or self.receipts() >= count, self.log.read_text()

    def wait(self, seconds: float = 240) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"the run does not end:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def start(tmp_path):
    """Start a recipe by the command, as a user does; what is left at the end is killed."""
    started: list[Running] = []

    def go(recipe: Recipe, *options: str, environ: dict | None = None, prefix: tuple[str, ...] = ()) -> Running:
        path = tmp_path / f"recipe-{len(started)}.yaml"
        path.write_text(recipe.to_yaml())
        log = tmp_path / f"run-{len(started)}.log"
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)])} | (environ or {})
        command = [*prefix, sys.executable, "-m", "retok_dask.cli", "run", str(path), "--progress", "lines", *options]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=env, cwd=tmp_path)
        started.append(Running(process, Path(recipe.output), log))
        return started[-1]

    yield go
    for running in started:
        if running.process.poll() is None:
            running.kill()


@pytest.fixture(scope="session")
def paused_data(tmp_path_factory):
    """Input whose records take a moment in places, by its number of files: the same for all tests that ask for it."""
    made: dict[int, Path] = {}

    def make(files: int) -> Path:
        if files not in made:
            made[files] = write_data(tmp_path_factory.mktemp("paused"), files=files, records=6)
            rng = random.Random(1)
            for path in sorted(made[files].glob("*.jsonl")):
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                rows[rng.randrange(len(rows))]["fault"] = "pause"
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return made[files]

    return make


@pytest.fixture
def paused(make_recipe, paused_data):
    """A recipe whose records take a moment, so that there is time to disturb it; two units a file."""

    def make(files: int = 16, **changes) -> Recipe:
        folder = paused_data(files)
        given = {
            "datasets": [{"name": "chat", "input": str(folder / "*.jsonl"), "layout": "badrecords:layout"}],
            "units": {"bytes": 2500},
        }
        return make_recipe(folder, **(given | changes))

    return make


@pytest.fixture(scope="session")
def calm_digests() -> dict[str, str]:
    """Digests of undisturbed runs, by what the recipes say of the rows."""
    return {}


@pytest.fixture
def undisturbed(tmp_path, monkeypatch, calm_digests):
    """Content digest of the same recipe run in peace, into another folder; run once for all tests with this input."""

    def digest(recipe: Recipe) -> str:
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        key = json.dumps([spec.model_dump(mode="json") for spec in recipe.datasets]) + str(recipe.units.bytes)
        if key not in calm_digests:
            calm = recipe.with_changes(output=str(tmp_path / "calm"), cluster={"workers": 2, "dashboard": None})
            result = run(calm, progress="none")
            assert not result.failed
            calm_digests[key] = result.content_digest
        return calm_digests[key]

    return digest


def check_whole(recipe: Recipe, digest: str | None = None) -> None:
    """The output is finished, adds up, equals the undisturbed run, and nothing temporary is left."""
    folder = OutputFolder(recipe.output, recipe.storage)
    manifest = read_manifest(folder)
    assert manifest.total.balanced
    assert not manifest.failed
    if digest is not None:
        assert manifest.content_digest == digest
    assert not folder.sizes("_retok/tmp")
    assert not folder.exists("_retok/lock.json")
    receipts = folder.sizes("_retok/receipts")
    assert len(receipts) == len(manifest.units)
    report = validate(recipe.output, full=True, storage=recipe.storage)
    bad = [check for check in report.checks if not check.passed and check.severity == "error"]
    assert not bad, bad


def events_of(recipe: Recipe, *kinds: str) -> list[dict]:
    return read_events(OutputFolder(recipe.output, recipe.storage), kinds=kinds or None)
