"""A real JupyterLab and a headless Chromium for the tests of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retok_dask.demo import write_demo
from retok_dask.recipe import Recipe
from retok_dask.views.notebooks import notebooks_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "for-this-test-only"

SETTINGS = {
    # every cell in the page, so that what is asked for is there to be looked at
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go; ``RETOK_SHOTS`` keeps them."""
    place = os.environ.get("RETOK_SHOTS")
    folder = Path(place) if place else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "no Chromium on this machine; .ci/install-browser installs it"
    with sync_playwright() as playwright:
        # its sandbox needs rights that containers do not give
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


class Lab:
    """A JupyterLab server over a folder with the notebooks and a small demo."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def open(self, browser: Any, name: str) -> Any:
        """A page with a notebook, ready to run."""
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(240_000)
        page.goto(f"{self.url}/lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_function("window.jupyterapp && document.querySelector('.jp-Notebook .jp-Cell')")
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status === 'idle'"
        )
        return page

    def run_all(self, page: Any) -> None:
        """Start all cells, as the menu does; does not wait for their end."""
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def wait(self, page: Any, seconds: float = 240) -> None:
        """Until no cell waits or runs."""
        page.wait_for_function(
            """() => {
                const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent);
                return prompts.length > 0 && prompts.every(text => /\\[\\d+\\]/.test(text));
            }""",
            timeout=seconds * 1000,
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("lab")
    folder = home / "work"
    folder.mkdir()
    for path in notebooks_folder().glob("*.ipynb"):
        shutil.copy(path, folder)
    write_demo(folder / "demo-data", conversations=600)
    # many small units, so that there is something to watch
    path = folder / "demo-data" / "recipe.yaml"
    recipe = Recipe.load(path).with_changes(units={"bytes": 12_000}, engine="reference")
    path.write_text(recipe.to_yaml())
    for name, value in SETTINGS.items():
        place = home / "settings" / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(value))
    port = _free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, home / "log")
            yield Lab(folder, f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])
