"""Tokenizers in other processes: spawned, forked, with an empty home; their memory and threads."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import assets
import psutil
import pytest
from tokenizers import Tokenizer as Backend
from tokens_common import load, row_ids, whole

from retok_dask.errors import TokenizerError
from retok_dask.tokenizers import Tokenizer
from retok_dask.tokenizers.bytelevel import BYTE_TO_CHAR


def _encode_in_child(payload: bytes, text: str) -> list[int]:
    return row_ids(Tokenizer.from_payload(payload).encode([whole(text)]), 0)


def test_payload_is_plain_bytes_and_loads_once():
    tokenizer = load("byte_level")
    payload = tokenizer.payload()
    assert isinstance(payload, bytes)
    again = Tokenizer.from_payload(pickle.loads(pickle.dumps(payload)))
    assert Tokenizer.from_payload(payload) is again
    assert (again.digest, again.engine, again.added_tokens) == (
        tokenizer.digest,
        tokenizer.engine,
        tokenizer.added_tokens,
    )
    assert again.certificate.to_dict() == tokenizer.certificate.to_dict()


@pytest.mark.parametrize("name", ["byte_level_nfc", "wordpiece", "sentencepiece", "qwen3", "kimi", "gptoss"])
def test_every_id_is_spelt_alike_in_a_worker(name):
    tokenizer = load(name, "reference")
    again = Tokenizer.from_payload(tokenizer.payload())
    assert again.outline.steps == tokenizer.outline.steps
    everything = range(len(tokenizer.table.tokens) if tokenizer.byte_level else tokenizer.vocab_size)
    assert again.decode_bytes(everything) == tokenizer.decode_bytes(everything)
    if tokenizer.byte_level:
        vocabulary = Backend.from_str(tokenizer.definition.json).get_vocab()
        ordinary = {text: index for text, index in vocabulary.items() if text not in tokenizer.added_tokens}
        spelt = ["".join([BYTE_TO_CHAR[byte] for byte in again.table.tokens[index]]) for index in ordinary.values()]
        assert spelt == [*ordinary]
        added = [again.table.tokens[index].decode() for index in tokenizer.added_tokens.values()]
        assert added == [*tokenizer.added_tokens]


def test_what_is_in_use_is_not_loaded_again():
    """A notebook that plans, runs and looks at rows asks for its tokenizer each time."""
    spec = assets.tiny_tokenizer("byte_level")
    first = Tokenizer.load(spec)
    assert Tokenizer.load(spec, engine="reference").outline is first.outline
    assert Tokenizer.load(assets.tiny_tokenizer("byte_level_nfc")).outline is not first.outline


def test_damaged_payload():
    payload = load("byte_level").payload()
    for bad in (b"", b"x", payload[:-9], payload[:100] + payload[101:]):
        with pytest.raises(TokenizerError, match="no tokenizer"):
            Tokenizer.from_payload(bad)


def test_worker_needs_neither_files_nor_home(tmp_path):
    """D10: a fresh process with an empty home gets bytes, and makes the tokenizer itself, the fast engine included."""
    tokenizer = load("byte_level")
    (tmp_path / "payload").write_bytes(tokenizer.payload())
    code = (
        "import os, sys, pathlib\n"
        "from retok_dask.tokenizers import Tokenizer\n"
        "from retok_dask.types import Rendered\n"
        "t = Tokenizer.from_payload(pathlib.Path('payload').read_bytes())\n"
        "e = t.encode([Rendered('the lazy dog 👍', [0], [9], [0])])\n"
        "t.encode([Rendered('the lazy dog ' * 1000, [0], [9], [0])] * 50)\n"
        "threads = [path.read_text() for path in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        "assert not [name for name in threads if 'fastokens' in name], threads\n"
        "assert 'transformers' not in sys.modules and 'huggingface_hub' not in sys.modules\n"
        "assert os.environ['RAYON_NUM_THREADS'] == '1' and os.environ['TOKENIZERS_PARALLELISM'] == 'false'\n"
        "print(t.engine, e.ids.tolist())\n"
    )
    environment = {"HOME": str(tmp_path / "nowhere"), "PATH": os.environ["PATH"], "RETOK_CACHE": "/nonexistent"}
    environment["PYTHONPATH"] = str(Path(assets.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{tokenizer.engine} {row_ids(tokenizer.encode([whole('the lazy dog 👍')]), 0)}"


@pytest.mark.parametrize("setting", ["3", None])
def test_users_thread_settings_are_kept(setting, tmp_path):
    code = (
        "import os, pathlib, sys\n"
        "from retok_dask.tokenizers import Tokenizer\n"
        "Tokenizer.from_payload(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(os.environ['RAYON_NUM_THREADS'])\n"
    )
    path = tmp_path / "payload"
    path.write_bytes(load("byte_level").payload())
    environment = {k: v for k, v in os.environ.items() if k != "RAYON_NUM_THREADS"}
    environment |= {"RAYON_NUM_THREADS": setting} if setting else {}
    environment["PYTHONPATH"] = str(Path(assets.__file__).parents[1])
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.strip() == (setting or "1")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only the GNU C library tells")
def test_what_loading_took_is_given_back(tmp_path):
    """Many workers on a machine each hold a tokenizer; what reading its definition took must not stay with them."""
    (tmp_path / "payload").write_bytes(load("qwen3_6", "reference").payload())
    code = (
        "import ctypes, pathlib, psutil\n"
        "from retok_dask.tokenizers import Tokenizer\n"
        "tokenizer = Tokenizer.from_payload(pathlib.Path('payload').read_bytes())\n"
        "held = psutil.Process().memory_info().rss\n"
        "ctypes.CDLL(None).malloc_trim(0)\n"
        "print((held - psutil.Process().memory_info().rss) >> 20)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(assets.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert int(out.stdout) < 40


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_after_use_in_the_parent(method):
    """D04: a preview in the notebook, then worker processes: no hang in the first batch, the same ids."""
    tokenizer = load("byte_level")
    text = "the quick brown fox 👍 " * 200
    want = row_ids(tokenizer.encode([whole(text)] * 8), 0)
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        assert pool.apply_async(_encode_in_child, (tokenizer.payload(), text)).get(timeout=60) == want
        if method == "fork":  # the parent's own tokenizer, used in the child
            assert pool.apply_async(_encode_inherited, (text,)).get(timeout=60) == want


def _encode_inherited(text: str) -> list[int]:
    return row_ids(load("byte_level").encode([whole(text)] * 8), 0)


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_memory_stays_bounded_on_distinct_long_strings(engine):
    """D03: caches of pieces must not grow with the data; 300 MB is the bound, after a warm-up."""
    tokenizer = load("qwen3_6", engine)
    chooser = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def text(words: int) -> str:
        drawn = "".join(chooser.choices(letters, k=8 * words))
        return " ".join(drawn[at : at + 8] for at in range(0, len(drawn), 8))

    tokenizer.encode([whole(text(11_000))] * 2)
    before = psutil.Process().memory_info().rss
    for _ in range(300 if engine == "auto" else 20):
        tokenizer.encode([whole(text(11_000))])
    assert (psutil.Process().memory_info().rss - before) / 2**20 < 300
