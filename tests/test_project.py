"""The project's own files agree with each other."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

CONDA_NAMES = {"matplotlib": "matplotlib-base", "dask": "dask-core"}
"""Conda's names for the same package, where they differ."""

PIP_ONLY = {"fastokens", "minijinja"}
"""Not on conda-forge: environment.yml installs these by pip."""


def requirements(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        name, bound = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*(.*)", line).groups()
        found[name.lower()] = bound
    return found


def test_environment_is_twin_of_pyproject():
    project = requirements(PYPROJECT["project"]["dependencies"])
    project |= requirements(PYPROJECT["project"]["optional-dependencies"]["s3"])
    wanted_pip = {name: bound for name, bound in project.items() if name in PIP_ONLY}
    wanted = {CONDA_NAMES.get(name, name): bound for name, bound in project.items() if name not in PIP_ONLY}
    wanted["python"] = PYPROJECT["project"]["requires-python"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = requirements([line for line in environment["dependencies"] if isinstance(line, str)])
    assert listed.pop("pip") == ""
    pip = next(part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    assert listed == wanted
    assert requirements(pip) == wanted_pip


def test_version_is_said_once():
    import retok_dask

    assert retok_dask.__version__ == PYPROJECT["project"]["version"]


ROOMS = [
    {"errors", "types", "doing"},
    {"recipe", "schema"},
    {"completions", "templates", "tokenizers", "masks"},
    {"kernel"},
    {"datasets"},
    {"cluster"},
    {"checks", "single", "compare"},
    {"views"},
    {"demo"},
    {"cli"},
]
"""Bottom to top: a room may import rooms below it, and its own. Rooms beside each other may not."""

ALLOWED_BESIDE = {("types", "errors"), ("schema", "recipe"), ("masks", "recipe")}


def modules():
    for path in sorted((ROOT / "retok_dask").rglob("*.py")):
        yield path, path.relative_to(ROOT / "retok_dask").with_suffix("").parts[0]


def imported(path: Path, *, top_level: bool = False):
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in nodes:
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_rooms_import_upwards_only():
    level = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    wrong = []
    for path, room in modules():
        if room == "__init__":
            continue
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "retok_dask" or len(parts) == 1 or parts[1] == room:
                continue
            below = level[parts[1]] < level[room]
            draws_itself = parts[1] == "views" and "_repr_html_" in path.read_text()
            if not (below or (room, parts[1]) in ALLOWED_BESIDE or draws_itself):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_heavy_libraries_stay_in_their_rooms():
    users = {"distributed": set(), "transformers": set(), "pandas": set()}
    for path, room in modules():
        for name in imported(path):
            if name.split(".")[0] in users:
                users[name.split(".")[0]].add((room, path.name))
    assert {room for room, _ in users["distributed"]} <= {"cluster"}
    assert len(users["transformers"]) <= 2, users["transformers"]
    at_import = [path for path, _ in modules() if "pandas" in {n.split(".")[0] for n in imported(path, top_level=True)}]
    assert not at_import


def test_import_is_light():
    code = "import sys, retok_dask; print([m for m in ('distributed','transformers','pandas','torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_public_names_are_all_there():
    import retok_dask

    for name in retok_dask.__all__:
        assert getattr(retok_dask, name) is not None, name
    assert len(retok_dask.__all__) <= 25


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_clean(path):
    notebook = json.loads(path.read_text())
    tagged = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1
    assert all(
        not cell.get("outputs") and cell.get("execution_count") is None
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    )
