"""Tokenizers, texts and checks that the tests of this room share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import assets
import loaded
import numpy as np
import pytest

from retok_dask.tokenizers import Tokenizer
from retok_dask.types import Encoded, Kind, Rendered

DATA = Path(__file__).parents[3] / "shared" / "data"
KINDS = [Kind.header, Kind.content, Kind.stop, Kind.user, Kind.reasoning]


def load(name: str, engine: str = "auto") -> Tokenizer:
    """A tokenizer by its name in :mod:`assets`, loaded once."""
    return loaded.tokenizer(name, engine)


@cache
def auto_tokenizer(name: str):
    """What transformers makes of a folder: the reference for ids."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(assets.tokenizer_folder(name))


@cache
def multilingual() -> list[str]:
    """Documents of a few kilobytes in nine languages."""
    folder = DATA / "text"
    if not folder.is_dir():
        pytest.skip("the texts in ../shared/data/text are not here")
    documents = []
    for path in sorted(folder.glob("xquad.*.json")):
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        documents += ["\n\n".join(p["context"] for p in article["paragraphs"])[:6000] for article in articles[:4]]
    for path in sorted(folder.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        documents += [text[at : at + 3000] for at in range(0, 30_000, 3000)]
    return documents


def whole(text: str, escapes: list[tuple[int, int]] | None = None) -> Rendered:
    """A text as one span."""
    return Rendered(text, [0], [Kind.content], [0], escapes=escapes or [])


def cut_at(text: str, cuts: Iterable[int]) -> Rendered:
    """A text with a span boundary at each of some characters."""
    starts = sorted({0, *(cut for cut in cuts if 0 < cut < len(text))})
    return Rendered(text, starts, [KINDS[i % 5] for i in range(len(starts))], list(range(len(starts))))


def row_ids(encoded: Encoded, row: int) -> list[int]:
    return encoded.ids[encoded.row_splits[row] : encoded.row_splits[row + 1]].tolist()


def segments(encoded: Encoded, row: int) -> list[tuple[int, int, int, int]]:
    """(start, end, kind, message) of each segment of a row."""
    part = slice(encoded.seg_splits[row], encoded.seg_splits[row + 1])
    columns = (encoded.seg_start, encoded.seg_end, encoded.seg_kind, encoded.seg_message)
    return list(zip(*(column[part].tolist() for column in columns), strict=True))


def check_cover(encoded: Encoded) -> None:
    """Segments of every row cover its tokens once, in order, none empty, neighbours differ."""
    rows = encoded.row_splits.size - 1
    assert encoded.seg_splits.size == rows + 1
    assert encoded.ids.dtype == np.int32
    for row in range(rows):
        at = 0
        before = None
        for start, end, kind, message in segments(encoded, row):
            assert start == at
            assert end > start
            assert (kind, message) != before
            at, before = end, (kind, message)
        assert at == encoded.row_splits[row + 1] - encoded.row_splits[row]
