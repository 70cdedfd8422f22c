"""Compressed files: all members, and never success with fewer rows."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tracemalloc

import orjson
import pytest
import zstandard
from reading import read_all, recipe_for, rejects, values

from retok_dask.completions import list_inputs

ONE, TWO = b'{"n":1}\n', b'{"n":2}\n'


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_all_members_are_read(tmp_path, suffix):
    pack = PACK[suffix]
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(pack(ONE) + pack(b"") + pack(TWO))
    assert values(read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}"))) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_a_line_may_cross_members_and_blocks(tmp_path, monkeypatch, suffix, block):
    monkeypatch.setattr("retok_dask.completions.blocks.LOCAL_BLOCK", block)
    pack, text = PACK[suffix], b"".join(orjson.dumps({"n": n, "t": "é" * n}) + b"\n" for n in range(50))
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(pack(text[:700]) + pack(text[700:]))
    found = read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}"))
    assert [v["n"] for v in values(found)] == list(range(50))
    assert [r.row for r in found] == list(range(50))
    assert all(text[r.offset :].startswith(r.raw) for r in found)


# C18
@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("cut", [1, 4, 7, 12])
def test_a_cut_file_gives_what_is_whole_and_a_reject_for_the_file(tmp_path, suffix, cut):
    pack = PACK[suffix]
    (tmp_path / f"a.jsonl.{suffix}").write_bytes((pack(ONE) + pack(TWO))[:-cut])
    found = read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}"))
    (reject,) = rejects(found)
    assert reject.reason.value in ("cut_file", "bad_file")
    assert values(found)[:1] == [{"n": 1}]
    assert (reject.row, reject.offset) == (-1, -1)


@pytest.mark.parametrize("suffix", PACK)
def test_a_plain_file_under_a_compressed_name_is_a_clear_reject(tmp_path, suffix):
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(ONE + TWO)
    (reject,) = read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}"))
    assert reject.reason.value == "bad_file"
    assert 'starts with b\'{"n":1}' in reject.detail


@pytest.mark.parametrize("suffix", PACK)
def test_text_after_the_last_member_is_no_silent_loss(tmp_path, suffix):
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(PACK[suffix](ONE) + b'{"n":2}\n' * 3)
    found = read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}"))
    assert values(found) == [{"n": 1}]
    assert [r.reason.value for r in rejects(found)] == ["bad_file"]


def test_padding_after_a_gzip_member_is_no_data(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(ONE) + b"\0" * 512)
    assert values(read_all(recipe_for(tmp_path / "a.jsonl.gz"))) == [{"n": 1}]


@pytest.mark.parametrize("suffix", PACK)
def test_broken_bytes_in_the_middle_are_found(tmp_path, suffix):
    rng = random.Random(1)
    text = b"".join(orjson.dumps({"t": rng.randbytes(30).hex()}) + b"\n" for _ in range(4000))
    data = bytearray(PACK[suffix](text))
    for place in range(len(data) // 2, len(data) // 2 + 40):
        data[place] ^= 0x5A
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(bytes(data))
    assert rejects(read_all(recipe_for(tmp_path / f"a.jsonl.{suffix}")))


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz"])
def test_a_bomb_does_not_fill_the_memory(tmp_path, suffix):
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb") if suffix == "gz" else io.BytesIO() as file:
        file.write(b" " * (64 << 20))
    data = buffer.getvalue() if suffix == "gz" else PACK[suffix](b" " * (64 << 20))
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(data)
    read_all(recipe_for(path, units={"record_bytes": "1MiB"}))
    tracemalloc.start()
    (reject,) = read_all(recipe_for(path, units={"record_bytes": "1MiB"}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reject.reason.value == "too_large"
    assert peak < 24 << 20


def test_a_compressed_file_is_one_unit_and_the_listing_says_so(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(ONE * 1000, 0))
    listing = list_inputs(recipe_for(tmp_path / "*.gz", units={"bytes": 100}))
    assert len(listing.units) == 1
    assert "1 file cannot be split and is read whole" in listing.notes[0]


def test_a_mark_in_a_compressed_file_is_skipped(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + ONE))
    assert values(read_all(recipe_for(tmp_path / "a.jsonl.gz"))) == [{"n": 1}]
