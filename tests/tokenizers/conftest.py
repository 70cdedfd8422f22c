from __future__ import annotations

import assets
import pytest


@pytest.fixture(scope="session", autouse=True)
def _kept_certificates():
    """Certificates are made once for a tokenizer and kept beside the assets, as users keep theirs."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RETOK_CACHE", str(assets.assets_folder() / "retok-cache"))
    yield
    patch.undo()
