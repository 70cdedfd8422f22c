"""Text to ids: loading tokenizers, exact and fast encoding, alignment with spans."""

from __future__ import annotations

from retok_dask.tokenizers.tokenizer import LITTLE, Tokenizer

__all__ = ["LITTLE", "Tokenizer"]
