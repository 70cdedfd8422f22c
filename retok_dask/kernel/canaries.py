"""Guards against silent change: golden ids of a tokenizer, and tokens that say that it had no piece for a text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from retok_dask.kernel.spelling import byte_pieces

if TYPE_CHECKING:
    import numpy.typing as npt

    from retok_dask.tokenizers import Tokenizer

GOLDEN_TEXTS = (
    "The quick brown fox can't jump 12345 dogs, can it?\n\nNo!",
    "  def f(x):\n\treturn [y**2 for y in x]  # naïve\r\n",
    "Grüße aus Köln; ça va? Ñandú İstanbul ſtraße",
    "吾輩は猫である。名前はまだ無い。天地玄黄，宇宙洪荒。",
    "Все счастливые семьи похожи друг на друга. كان يا ما كان",
    "สวัสดีครับ नमस्ते दुनिया 안녕하세요",
    "🙂‍🔥👩🏽‍🚀🇩🇪 e\u0301 \u00a0\u200b\ufeff ½ ① ﬁ",
    "eBay mL NaOH pH https://example.org/a?b=1&c=%20 <|not a token|>",
)
"""Texts whose ids tell whether a tokenizer still does what it did: letters, numbers, blanks, scripts, marks."""


def golden_ids(tokenizer: Tokenizer) -> list[list[int]]:
    """Ids of the golden texts, by the reference: a fast engine has to give the same, and takes seconds to load."""
    return tokenizer.reference_ids(GOLDEN_TEXTS)


BYTE_PIECE, UNKNOWN = 1, 2


@lru_cache(maxsize=4)
def token_classes(tokenizer: Tokenizer) -> npt.NDArray[np.int8]:
    """By id: :data:`BYTE_PIECE` for one byte of a longer character, :data:`UNKNOWN` for the unknown token, else 0."""
    classes = byte_pieces(tokenizer).astype(np.int8) * BYTE_PIECE
    model = tokenizer.outline.steps["model"]
    unknown = model.get("unk_id")
    if unknown is None and model.get("unk_token"):
        unknown = tokenizer.token_id(model["unk_token"])
    if unknown is not None and unknown < classes.size:
        classes[unknown] = UNKNOWN
    return classes
