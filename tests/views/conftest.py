from __future__ import annotations

import pytest

from retok_dask.demo import qwen_tokenizer_spec
from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    """Qwen3.6's real tokenizer."""
    return Tokenizer.load(TokenizerSpec(**qwen_tokenizer_spec()), engine="reference")
