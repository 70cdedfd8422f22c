"""Loading: every form, quiet, exact about what it read, and clear when it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import assets
import pytest
from tokens_common import auto_tokenizer, load, row_ids, whole

from retok_dask.errors import TokenizerError
from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import Tokenizer
from retok_dask.tokenizers.tiktoken_form import recover_merges


def one(tokenizer: Tokenizer, text: str) -> list[int]:
    return row_ids(tokenizer.encode([whole(text)]), 0)


# --- what is read ---


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_folder_says_what_auto_tokenizer_says(name):
    tokenizer, reference = load(name), auto_tokenizer(name)
    assert tokenizer.special_tokens_map == reference.special_tokens_map
    assert tokenizer.chat_templates == reference.chat_template
    assert tokenizer.added_tokens == reference.added_tokens_encoder
    assert tokenizer.vocab_size == len(reference)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (reference.bos_token_id, reference.eos_token_id)


@pytest.mark.parametrize("name", ["gpt4o", "llama2", "deepseek_v3"])
def test_all_ids_are_below_the_size_also_where_the_vocabulary_has_gaps(name):
    tokenizer = load(name)
    assert tokenizer.vocab_size == max(auto_tokenizer(name).get_vocab().values()) + 1
    assert Tokenizer.from_payload(tokenizer.payload()).vocab_size == tokenizer.vocab_size


def test_bos_is_known_and_never_added():
    """B11: encode gives what was rendered; whether plain text gets a BOS is a fact that callers read."""
    tokenizer = load("llama3_1")
    assert tokenizer.adds_bos
    assert not load("qwen3").adds_bos
    assert one(tokenizer, "test") == auto_tokenizer("llama3_1")("test", add_special_tokens=False)["input_ids"]
    assert tokenizer.bos_id not in one(tokenizer, "test")


def test_tokenizer_json_reads_its_neighbours():
    tokenizer = load("deepseek")
    assert tokenizer.special_tokens_map["bos_token"] == "<｜begin▁of▁sentence｜>"
    assert tokenizer.bos_id == 0


def test_templates_beside_a_tokenizer(tmp_path):
    source = assets.tiny_tokenizer("byte_level").path
    shutil.copy(source, tmp_path / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert Tokenizer.load(TokenizerSpec(path=str(path)), engine="reference").chat_templates == "{{ messages }}"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = Tokenizer.load(TokenizerSpec(path=str(path)), engine="reference").chat_templates
        assert found == {"default": "{{ bos_token }}", "tool_use": "{{ tools }}"}


def test_digest_follows_the_files(tmp_path):
    source = assets.tiny_tokenizer("byte_level").path
    shutil.copy(source, tmp_path / "tokenizer.json")
    spec = TokenizerSpec(path=str(tmp_path / "tokenizer.json"))
    first = Tokenizer.load(spec, engine="reference").digest
    assert Tokenizer.load(spec, engine="reference").digest == first
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["added_tokens"][0]["content"] = "<bos>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert Tokenizer.load(spec, engine="reference").digest != first


def test_special_tokens_from_a_file(tmp_path):
    spec = assets.kimi_spec()
    listed = tmp_path / "special.yaml"
    listed.write_text(json.dumps(spec.special_tokens))
    again = spec.model_copy(update={"special_tokens": str(listed)})
    assert Tokenizer.load(again, engine="reference").digest == load("kimi").digest


def test_files_from_any_file_system(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/models/tiny/tokenizer.json", Path(assets.tiny_tokenizer("byte_level").path).read_bytes())
    tokenizer = Tokenizer.load(TokenizerSpec(path="memory://models/tiny/tokenizer.json"), engine="reference")
    assert one(tokenizer, "the dog") == one(load("byte_level"), "the dog")


def test_merges_of_a_small_rank_file():
    """'abc' is joined from 'ab' and 'c'; no pair of entries ever leads to 'xyz'."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abc": 257, b"xyz": 258}
    assert recover_merges(ranks) == [(b"a", b"b"), (b"ab", b"c")]


# --- what cannot be read: one sentence with the way out ---


def test_missing_and_damaged_files(tmp_path):
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"version": "1.0", "model": {"type": "BPE"')
    ranks = tmp_path / "broken.tiktoken"
    ranks.write_text("IQ== 0\nnot a rank\n")
    short = tmp_path / "short.tiktoken"
    short.write_text("IQ== 0\n")
    cases = {
        "no tokenizer at": TokenizerSpec(path=str(tmp_path / "nowhere" / "tokenizer.json")),
        "no usable tokenizer.json": TokenizerSpec(path=str(broken)),
        "set tokenizer.pattern": TokenizerSpec(path=str(ranks)),
        "line 2 is 'not a rank'": TokenizerSpec(path=str(ranks), pattern=r"\S+"),
        "no rank for the byte": TokenizerSpec(path=str(short), pattern=r"\S+"),
        "cannot load a tokenizer from": TokenizerSpec(path=str(tmp_path / "empty")),
        "is not among the special tokens": assets.kimi_spec().model_copy(update={"eos_token": "<stop>"}),
        "clash": assets.kimi_spec().model_copy(
            update={"special_tokens": {"<a>": 5}, "eos_token": None, "bos_token": None}
        ),
        "cannot read": TokenizerSpec(path="memory://nothing/here.tiktoken", pattern=r"\S+"),
    }
    (tmp_path / "empty").mkdir()
    for words, spec in cases.items():
        with pytest.raises(TokenizerError) as caught:
            Tokenizer.load(spec)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_hub_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for path in ("nobody/no-such-model", "nobody/Model3.6-27B"):
        with pytest.raises(TokenizerError, match="from the hub"):
            Tokenizer.load(TokenizerSpec(path=path))


def test_remote_code_is_not_run(tmp_path):
    """D10: a folder that wants its own Python class is refused unless the recipe allows it; nothing is executed."""
    folder = tmp_path / "my.model-v1"
    folder.mkdir()
    witness = tmp_path / "executed"
    (folder / "tokenization_mine.py").write_text(f"open({str(witness)!r}, 'w').write('x')\n")
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError):
        Tokenizer.load(TokenizerSpec(path=str(folder)))
    assert not witness.exists()


def test_control_strings_that_are_no_ids_are_refused():
    """D07: a loader that does not know the model's control tokens would spell them out."""
    load("kimi").require_control(assets.KIMI_CONTROL_TOKENS)
    spec = assets.kimi_spec().model_copy(update={"special_tokens": {"[BOS]": 163_584, "<|im_end|>": 163_586}})
    generic = Tokenizer.load(spec, engine="reference")
    with pytest.raises(TokenizerError, match="'</think>', '<think>'"):
        generic.require_control(["<think>", "</think>", "[BOS]"])


# --- quiet and light ---


def test_loading_prints_nothing_and_needs_no_torch():
    """Neither the missing PyTorch nor a warning about a tokenizer's files reaches the terminal."""
    code = (
        "import sys, assets\n"
        "from retok_dask.tokenizers import Tokenizer\n"
        "assert 'transformers' not in sys.modules\n"
        "t = Tokenizer.load(assets.tiny_tokenizer('byte_level'), engine='reference')\n"
        "assert 'transformers' not in sys.modules\n"
        "t = Tokenizer.load(assets.tokenizer_spec('deepseek_v3'), engine='reference')\n"
        "assert any('ByteLevel' in note for note in t.definition.notes), t.definition.notes\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=assets.Path(assets.__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
