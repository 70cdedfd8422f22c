"""Fixtures that several rooms' tests use. This folder is on the import path of the tests."""

from __future__ import annotations

from pathlib import Path

import assets
import pytest
from s3server import s3, s3_server

__all__ = ["s3", "s3_server"]

TOGETHER = ("kernel", "retokenize", "tokenizers")
"""Folders whose files run in one process, because they load the same tokenizers: each takes seconds."""

LONGEST = (
    "faults/test_kills.py",
    "tokenizers",
    "notebooks/test_notebooks.py",
    "kernel",
    "test_real_data.py",
    "retokenize",
    "faults/test_links.py",
    "faults/test_records.py",
    "cluster/test_run.py",
    "templates/test_template_corpus.py",
    "templates/test_template_prompts.py",
    "test_cli.py",
)
"""What begins first, so that the processes end about together; all others follow in their order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what stays in one process, and in which order it begins."""
    groups = {item: _group(item.path.relative_to(Path(__file__).parent)) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    places = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(groups[item], len(LONGEST)))


def _group(path: Path) -> str:
    return path.parts[0] if path.parts[0] in TOGETHER else path.as_posix()


@pytest.fixture(scope="session", autouse=True)
def _kept_for_all():
    """What is made once for a tokenizer is kept beside the assets, for all tests and the commands that they run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RETOK_CACHE", str(assets.assets_folder() / "retok-cache"))
    yield
    patch.undo()
