"""Fixtures that several rooms' tests use. This folder is on the import path of the tests."""

from __future__ import annotations

from typing import Any

import assets
import pytest
from s3server import s3, s3_server
from xdist.scheduler import LoadFileScheduling

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
    """What takes longest begins first."""
    places = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_group(item.nodeid), len(LONGEST)))


class _Together(LoadFileScheduling):
    """Gives each process whole files, or whole folders of those that load the same."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Together | None:
    """See :class:`_Together`; other ways to distribute are left as they are."""
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


def _group(nodeid: str) -> str:
    path = nodeid.partition("::")[0].removeprefix("tests/")
    folder = path.partition("/")[0]
    return folder if folder in TOGETHER else path


@pytest.fixture(scope="session", autouse=True)
def _kept_for_all():
    """What is made once for a tokenizer is kept beside the assets, for all tests and the commands that they run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RETOK_CACHE", str(assets.assets_folder() / "retok-cache"))
    yield
    patch.undo()
