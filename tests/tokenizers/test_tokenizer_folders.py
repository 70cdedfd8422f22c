"""What transformers made of a folder is kept, and made again where anything that decides it is another."""

from __future__ import annotations

import json
import shutil
import sys

import assets
import pytest

from retok_dask.errors import TokenizerError
from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import Tokenizer, folders


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty cache, and a tokenizer's folder beside it."""
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(assets.tiny_tokenizer("byte_level").path, folder / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load_definition(spec):
    return Tokenizer.load(spec, engine="reference").definition


def without_transformers(patch):
    """Whoever imports transformers now gets an ImportError."""
    patch.setitem(sys.modules, "transformers", None)


@pytest.mark.parametrize("name", ["deepseek_v3", "llama2"])
def test_what_is_kept_is_what_transformers_made(name, tmp_path, monkeypatch):
    spec = TokenizerSpec(path=str(assets.tokenizer_folder(name)))
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path / "one"))
    made = load_definition(spec)
    monkeypatch.setenv("RETOK_CACHE", str(tmp_path / "another"))
    assert load_definition(spec) == made, "with the warnings that transformers gives once a process"
    without_transformers(monkeypatch)
    assert load_definition(spec) == made


def test_the_name_asked_by_is_that_of_today(kept, tmp_path, monkeypatch):
    made = load_definition(TokenizerSpec(path=str(kept)))
    moved = kept.rename(tmp_path / "elsewhere")
    without_transformers(monkeypatch)
    again = load_definition(TokenizerSpec(path=str(moved)))
    assert again.source == str(moved)
    assert again.digest == made.digest


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chat_template.jinja", "{{ bos_token }}"),
        ("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}'),
        ("additional_chat_templates/tool_use.jinja", "{{ tools }}"),
        ("vocabulary.of-its-own", "some file that only one model class reads"),
    ],
)
def test_every_file_of_the_folder_counts(kept, monkeypatch, name, text):
    spec = TokenizerSpec(path=str(kept))
    load_definition(spec)
    (kept / name).parent.mkdir(exist_ok=True)
    (kept / name).write_text(text)
    with monkeypatch.context() as patch:
        without_transformers(patch)
        with pytest.raises(ImportError):
            load_definition(spec)
    found = load_definition(spec)
    monkeypatch.setenv("RETOK_CACHE", str(kept / "an empty cache"))
    assert load_definition(spec) == found


def test_settings_and_versions_count(kept, monkeypatch):
    load_definition(TokenizerSpec(path=str(kept)))
    without_transformers(monkeypatch)
    with pytest.raises(ImportError):
        load_definition(TokenizerSpec(path=str(kept), bos_token="<s>"))
    monkeypatch.setattr(folders, "installed", lambda names: dict.fromkeys(names, "of another day"))
    with pytest.raises(ImportError):
        load_definition(TokenizerSpec(path=str(kept)))


def test_a_damaged_one_is_made_again(kept, tmp_path):
    spec = TokenizerSpec(path=str(kept))
    made = load_definition(spec)
    (file,) = (tmp_path / "cache" / "definitions").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert load_definition(spec) == made


def test_what_foreign_code_made_is_not_kept(kept, tmp_path):
    load_definition(TokenizerSpec(path=str(kept), remote_code=True))
    assert not (tmp_path / "cache" / "definitions").exists()


def test_what_cannot_be_loaded_is_not_kept(kept, tmp_path):
    (kept / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError):
        load_definition(TokenizerSpec(path=str(kept)))
    assert not (tmp_path / "cache" / "definitions").exists()
