from __future__ import annotations

from typing import TYPE_CHECKING

import loaded
import pytest

if TYPE_CHECKING:
    from retok_dask.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    """Qwen3.6's real tokenizer."""
    return loaded.tokenizer("qwen3_6")
