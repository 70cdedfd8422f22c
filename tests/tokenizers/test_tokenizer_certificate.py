"""The fast engine is used under a certificate only, and watched while it runs."""

from __future__ import annotations

import dataclasses
import json

import assets
import numpy as np
import pytest
from tokens_common import check_cover, load, multilingual, row_ids, whole

from retok_dask.tokenizers import Tokenizer, batch, certificate, engines, probes
from retok_dask.tokenizers.certificate import Certificate, certify, differing_rows
from retok_dask.tokenizers.probes import hostile


class Wrong:
    """An engine that gives other ids for texts that hold a word."""

    name = "fastokens"

    def __init__(self, right, word: str, *, same_length: bool = True) -> None:
        self._right = right
        self._word = word
        self._same_length = same_length

    def encode(self, texts):
        ids, splits = self._right.encode(texts)
        ids = ids.copy()
        for row, text in enumerate(texts):
            if self._word in text and splits[row + 1] > splits[row]:
                place = splits[row]
                ids[place] = _same_bytes(ids[place]) if self._same_length else 1
        return ids, splits


def _same_bytes(index: int) -> int:
    """Another id of as many bytes, so that only a comparison of ids can tell."""
    table = load("byte_level").table
    others = np.flatnonzero(table.lengths == table.lengths[index])
    return int(others[others != index][0])


@pytest.fixture
def fresh():
    """A tokenizer of its own, to be spoiled by a test."""
    return Tokenizer.load(assets.tiny_tokenizer("byte_level"))


@pytest.fixture
def few_probes(monkeypatch):
    """Only the quickest group of probes."""
    monkeypatch.setattr(probes, "groups", lambda *_, **__: iter([("hostile strings", hostile(50, seed=1))]))


def test_certificate_is_made_once_kept_and_readable(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path))
    assert fresh.engine == "fastokens"
    (path,) = tmp_path.glob("certificates/*.json")
    said = json.loads(path.read_text())
    assert said["passed"]
    assert said["tier"] == "quick"
    assert set(said["versions"]) == {"tokenizers", "fastokens"}
    names = [check["name"] for check in said["checks"]]
    assert names == [
        "hostile strings",
        "added tokens in text",
        "every vocabulary entry",
        "every code point in several contexts",
        "megabyte strings",
    ]
    assert all(check["texts"] and check["bytes"] and not check["differences"] for check in said["checks"])
    assert Certificate.from_dict(said) == fresh.certificate
    path.write_text("{")
    monkeypatch.setattr(probes, "groups", lambda *_, **__: iter([("hostile strings", hostile(50, seed=1))]))
    again = Tokenizer.load(assets.tiny_tokenizer("byte_level"))
    assert again.certificate.passed  # a damaged file is made anew
    assert json.loads(path.read_text())["passed"]


def test_certificate_of_other_versions_does_not_hold(fresh, monkeypatch):
    mine = fresh.certificate
    assert mine.holds_for(fresh.definition.json_digest)
    assert not dataclasses.replace(mine, versions={"tokenizers": "0.1", "fastokens": "0.1"}).holds_for(mine.tokenizer)
    payload = fresh.payload()
    monkeypatch.setattr(certificate, "library_versions", lambda: {"tokenizers": "99", "fastokens": "99"})
    assert Tokenizer._unpack(payload).engine == "tokenizers"


def test_sample_of_the_users_texts_is_part_of_it(fresh, few_probes, tmp_path, monkeypatch):
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path))
    made = fresh.certify(["my own text", "another one"], tier="quick")
    assert made.checks[-1].name == "sample of the user's data"
    assert made.checks[-1].texts == 2


@pytest.mark.parametrize(
    ("word", "group"), [("</think>", "added tokens in text"), ("\U0001f9ff", "every code point in several contexts")]
)
def test_difference_refuses_the_engine_and_says_where(word, group):
    tokenizer = load("byte_level")
    right = tokenizer._reference
    made = certify("x", right, Wrong(right, word), added_tokens=list(tokenizer.added_tokens), token_texts=["a", "b"])
    assert not made.passed
    assert group in made.reason
    assert made.checks[-1].differences
    assert made.checks[-1].examples


def test_known_difference_is_guarded(few_probes):
    right = load("byte_level")._reference
    made = certify("x", right, Wrong(right, "'\u017f"), added_tokens=["<s>"], token_texts=["a"])
    assert made.passed
    assert sum(check.guarded for check in made.checks) > 0
    assert made.guards == ["'\u017f"]


def test_engine_that_cannot_load_is_a_reason(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path))

    def broken(_json: str) -> None:
        msg = "unsupported"
        raise ValueError(msg)

    monkeypatch.setattr("retok_dask.tokenizers.tokenizer.FastEngine", broken)
    assert fresh.engine == "tokenizers"
    assert "unsupported" in fresh.certificate.reason


def test_reference_on_request_needs_no_certificate(tmp_path, monkeypatch):
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path))
    tokenizer = Tokenizer.load(assets.tiny_tokenizer("byte_level"), engine="reference")
    assert tokenizer.engine == "tokenizers"
    assert tokenizer.certificate is None
    assert not list(tmp_path.iterdir())


def test_wrong_bytes_while_running_cost_their_row_alone(fresh):
    """The byte sum of a row's ids is compared on every row."""
    encoder = fresh._encoder
    rows = [whole(text) for text in ("the lazy dog", "the brown fox jumps", "and the dog")]
    want = Tokenizer.load(assets.tiny_tokenizer("byte_level"), engine="reference").encode(rows)
    encoder.fast = Wrong(encoder.fast, "fox", same_length=False)
    got = fresh.encode(rows)
    check_cover(got)
    assert got.fallback.sum() == 1
    assert np.array_equal(got.ids, want.ids)
    assert encoder.fast is not None


def test_wrong_ids_in_a_sampled_row_switch_the_engine_off(fresh, caplog):
    """One row in a thousand, chosen by its text, is compared id by id."""
    sampled = next(f"the fox number {n}" for n in range(100_000) if batch.is_sampled(f"the fox number {n}"))
    rows = [whole("the lazy dog"), whole(sampled), whole("another fox")]
    want = Tokenizer.load(assets.tiny_tokenizer("byte_level"), engine="reference").encode(rows)
    encoder = fresh._encoder
    encoder.fast = Wrong(encoder.fast, "fox")
    got = fresh.encode(rows)
    assert got.fallback.sum() == 3
    assert np.array_equal(got.ids, want.ids)
    assert fresh.engine == "tokenizers"
    assert "reference from now on" in caplog.text


def test_sample_is_about_one_in_a_thousand():
    chosen = sum(batch.is_sampled(f"document {n}") for n in range(100_000))
    assert 60 < chosen < 140
    assert batch.is_sampled("same text") == batch.is_sampled("same text")


def test_differing_rows_of_unequal_lengths():
    one = engines.flatten([[1, 2], [3], [4, 5]])
    other = engines.flatten([[1, 2], [3, 3], [4, 6]])
    assert differing_rows(one, other) == [1, 2]
    assert differing_rows(one, engines.flatten([[1, 2], [9], [4, 5]])) == [1]


def test_probes_hold_every_code_point():
    for full in (False, True):
        found = set("".join(probes.code_points(full=full)))
        used = {chr(c) for c in range(0x34000) if not 0xD800 <= c < 0xE000}
        assert used <= found
    assert len(found) == 0x110000 - 0x800


@pytest.mark.parametrize("name", ["byte_level", "qwen3_6"])
def test_decoding_is_exact(name):
    tokenizer = load(name)
    texts = [text for text in [*multilingual()[:20], *hostile(200, seed=8)] if text.isascii() or name == "byte_level"]
    encoded = tokenizer.encode([whole(text) for text in texts])
    for number, text in enumerate(texts):
        assert tokenizer.decode_bytes(row_ids(encoded, number)) == text.encode()
        assert tokenizer.decode(row_ids(encoded, number)) == text
