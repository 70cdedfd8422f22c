"""The consumers' environments: made once, one for each, from lists that pin every package.

Torch is large, so it is installed once, beside them, and each environment sees
it after its own packages. On machines without a GPU its CPU build is enough
(name its index by ``PIP_EXTRA_INDEX_URL`` where pip would take another one).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".cache" / "exits" / "env"


def python(name: str) -> Path:
    """The Python of a consumer's environment, made on first use."""
    torch = _environment("torch")
    return (torch if name == "torch" else _environment(name, beside=torch)) / "bin" / "python"


def run(name: str | None, script: str, *arguments: str | Path, folder: Path) -> dict[str, Any]:
    """What a script of this folder prints as its last line, run in a consumer's environment (None: in ours)."""
    quiet = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1", "DO_NOT_TRACK": "1"}
    quiet |= {"OMP_NUM_THREADS": "1"}
    home = {"HF_HOME": str(folder / "hf"), "HOME": str(folder)}
    command = [sys.executable if name is None else str(python(name)), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | quiet | home, check=False, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _environment(name: str, beside: Path | None = None) -> Path:
    wanted = (HERE / "requirements" / f"{name}.txt").read_text()
    folder = FOLDER / name
    ready = folder / "ready"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=1200):
        if not ready.exists() or ready.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            if beside is not None:
                (_packages(folder) / "beside.pth").write_text(f"{_packages(beside)}\n")
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            # the lists are complete: what a consumer only needs on a GPU is not in them
            subprocess.run([*install, "--no-deps", "-r", str(HERE / "requirements" / f"{name}.txt")], check=True)
            ready.write_text(wanted)
    return folder


def _packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found
