"""Golden ids, unknown and byte tokens: what tells that a tokenizer or its text silently changed."""

from __future__ import annotations

import orjson
import pytest

from retok_dask.completions import Listing
from retok_dask.datasets import Fingerprint, OutputFolder, check_fingerprint, read_run, start_run
from retok_dask.errors import FingerprintMismatch
from retok_dask.kernel.canaries import GOLDEN_TEXTS, golden_ids
from retok_dask.types import Document
from tests.retokenize.common import kernel, outcome, plain_ids, recipe, tokenizer


def test_golden_ids_are_the_librarys():
    assert golden_ids(tokenizer("gpt2")) == [plain_ids("gpt2", text) for text in GOLDEN_TEXTS]


def test_a_library_that_gives_other_ids_is_noticed_although_the_files_are_the_same(tmp_path):
    made = recipe("gpt2", {"mode": "text"}).with_changes(output=str(tmp_path))
    folder = OutputFolder(str(tmp_path))
    fingerprint = Fingerprint.of(made, Listing(), tokenizer("gpt2"), None)
    start_run(folder, fingerprint, made)
    assert read_run(folder)["tokenizer"]["golden_ids"] == golden_ids(tokenizer("gpt2"))
    assert check_fingerprint(folder, fingerprint)
    run = orjson.loads((tmp_path / "_retok/run.json").read_bytes())
    run["tokenizer"]["golden_ids"][0][0] += 1
    (tmp_path / "_retok/run.json").write_bytes(orjson.dumps(run))
    with pytest.raises(FingerprintMismatch, match="golden texts"):
        check_fingerprint(folder, fingerprint)


def test_bytes_of_characters_are_counted():
    _, _, stats = outcome(kernel(None, "gpt2", {"mode": "text"}), [Document("plain"), Document("龘龘")])
    single = [index for index in plain_ids("gpt2", "龘龘") if len(tokenizer("gpt2").decode_bytes([index])) == 1]
    assert stats.byte_tokens == len(single) > 0
    assert stats.unknown_tokens == 0
    assert stats.to_dict()["byte_tokens"] == len(single)


def test_byte_fallback_of_sentencepiece_is_counted():
    _, _, stats = outcome(kernel(None, "llama2", {"mode": "text"}), [Document("龘")])
    assert stats.byte_tokens == 3
