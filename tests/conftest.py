"""Fixtures that several rooms' tests use. This folder is on the import path of the tests."""

from __future__ import annotations

import assets
import pytest
from s3server import s3, s3_server

__all__ = ["s3", "s3_server"]


@pytest.fixture(scope="session", autouse=True)
def _kept_for_all():
    """What is made once for a tokenizer is kept beside the assets, for all tests and the commands that they run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RETOK_CACHE", str(assets.assets_folder() / "retok-cache"))
    yield
    patch.undo()
