"""D05: settings that change ids without an error are shown on words, off and on, before a run."""

from __future__ import annotations

import json
import shutil

import assets
import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from retok_dask.cluster import plan
from retok_dask.demo import chat_template, qwen_tokenizer_spec
from retok_dask.errors import TokenizerError
from retok_dask.recipe import Recipe, TokenizerSpec
from retok_dask.single import audit_input
from retok_dask.tokenizers import Tokenizer
from retok_dask.tokenizers.switches import switches

LLAMA_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""What published conversions of Mistral's tokenizers have in place of their own pattern."""


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """Mistral Nemo's tokenizer with that wrong pattern, in a folder with a config, as it was published."""
    folder = tmp_path_factory.mktemp("mistral")
    source = assets.tokenizer_folder("mistral_nemo")
    data = json.loads((source / "tokenizer.json").read_bytes())
    steps = data["pre_tokenizer"]["pretokenizers"]
    assert steps[0]["type"] == "Split"
    steps[0]["pattern"] = {"Regex": LLAMA_PATTERN}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    (folder / "config.json").write_text('{"model_type": "mistral", "transformers_version": "4.50.0"}')
    (folder / "in.jsonl").write_text('{"text": "The pH of NaOH in 5 mL, from eBay."}\n')
    return folder


def recipe_for(folder, **tokenizer):
    return Recipe.from_dict(
        {
            "tokenizer": {"path": str(folder)} | tokenizer,
            "engine": "reference",
            "output": str(folder / "out"),
            "cluster": {"workers": 1},
            "datasets": [{"input": str(folder / "in.jsonl"), "mode": "text"}],
        }
    )


def test_a_plan_shows_the_flag_off_and_on(mistral):
    """https://github.com/huggingface/transformers/issues/42591"""
    planned = plan(recipe_for(mistral))
    (found,) = planned.to_dict()["settings"]
    assert (found["setting"], found["value"], found["in_force"]) == ("tokenizer.fix_mistral_regex", "not set", "off")
    words = {word["word"]: word for word in found["words"]}
    assert {"eBay", "mL", "NaOH", "pH"} <= words.keys()
    assert found["differing"] == sum(word["differs"] for word in words.values()) > 0
    wrong, right = (
        Backend.from_file(str(place / "tokenizer.json")) for place in (mistral, assets.tokenizer_folder("mistral_nemo"))
    )
    for word, row in words.items():
        assert row["off"] == wrong.encode(word, add_special_tokens=False).tokens
        assert row["on"] == right.encode(word, add_special_tokens=False).tokens
        assert row["differs"] == (row["off"] != row["on"])
    assert len(found["notes"]) == 1, "the library's opinion, once"
    text, drawn = planned.to_text(), planned._repr_html_()
    assert "tokenizer.fix_mistral_regex is not set (off in this run)" in text
    assert "differs" in text
    assert "off, in force" in drawn


def test_the_flag_as_set_turns_the_table(mistral, capfd):
    spec = TokenizerSpec(path=str(mistral), fix_mistral_regex=True)
    fixed = Tokenizer.load(spec, engine="reference")
    assert fixed.digest != Tokenizer.load(TokenizerSpec(path=str(mistral))).digest, "a run's fingerprint knows it"
    (found,) = switches(fixed, spec)
    assert (found.value, found.in_force, found.notes) == ("true", "on", [])
    assert found.differing > 0
    assert "regex" not in "".join(capfd.readouterr()), "the library's opinion is printed nowhere"


def test_tokenizers_whose_ids_hang_on_nothing_show_no_table():
    spec = TokenizerSpec(path=str(assets.tokenizer_folder("qwen3") / "tokenizer.json"))
    assert switches(Tokenizer.load(spec, engine="reference"), spec) == []


def as_class(name, cls, folder):
    """A tokenizer's folder whose configuration names another class."""
    source = assets.tokenizer_folder(name)
    shutil.copytree(source, folder)
    config = json.loads((source / "tokenizer_config.json").read_bytes()) | {"tokenizer_class": cls}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "cls"), [("gpt4o", "GPT2Tokenizer"), ("llama3_1", "Qwen2Tokenizer")])
def test_a_class_that_reads_a_folder_its_own_way_is_shown(name, cls, tmp_path):
    """The reference is what transformers makes of a folder, and that may not be what the model was trained with."""
    folder = as_class(name, cls, tmp_path / "folder")
    spec, file = TokenizerSpec(path=str(folder)), TokenizerSpec(path=str(folder / "tokenizer.json"))
    made = Tokenizer.load(spec, engine="reference")
    (found,) = switches(made, spec)
    assert (found.in_force, found.differing > 0) == ("off", True)
    by_class = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    by_file = Backend.from_file(file.path)
    for word in found.words:
        ids = (
            by_class.encode(word.word, add_special_tokens=False),
            by_file.encode(word.word, add_special_tokens=False).ids,
        )
        assert word.differs == (ids[0] != ids[1])
    assert "".join(found.words[0].on) == found.words[0].word
    text = found.to_text()
    assert "the folder's own tokenizer.json is not what transformers makes of the folder (off in this run)" in text
    assert "name it instead of its folder" in text
    assert len(text.splitlines()) == 2 + len(found.words) + 1, "a word that is a line break is no line of the table"
    assert switches(Tokenizer.load(file, engine="reference"), file) == []


def test_a_folder_whose_class_loses_text_is_refused(tmp_path):
    folder = as_class("gemma3", "GPT2Tokenizer", tmp_path / "folder")
    with pytest.raises(
        TokenizerError, match=r"as GPT2Tokenizer, which makes .* its tokenizer\.json does not: name that"
    ):
        Tokenizer.load(TokenizerSpec(path=str(folder)), engine="reference")
    Tokenizer.load(TokenizerSpec(path=str(folder / "tokenizer.json")), engine="reference")


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "gemma3", "mistral_nemo", "gpt2"])
def test_folders_that_are_read_as_their_file_says_show_nothing(name):
    spec = TokenizerSpec(path=str(assets.tokenizer_folder(name)))
    assert Tokenizer.load(spec, engine="reference").definition.by_file == []


def test_the_audit_shows_what_a_rank_files_normalizer_does(tmp_path):
    recipe = Recipe.from_dict(
        {
            "tokenizer": qwen_tokenizer_spec(),
            "template": {"text": chat_template()},
            "engine": "reference",
            "output": "-",
            "datasets": [{"input": "-"}],
        }
    )
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    audited = audit_input(None, tokenizer=str(tmp_path / "recipe.yaml"))
    (found,) = audited.to_dict()["settings"]
    assert (found["setting"], found["in_force"]) == ("tokenizer.normalizer", "on")
    words = {word["word"]: word for word in found["words"]}
    assert words["cafe"]["differs"] is False
    assert words["cafe\u0301"]["on"] == ["ca", "fé"]
    assert words["cafe\u0301"]["differs"]
    assert "tokenizer.normalizer is NFC (on in this run)" in audited.to_text()
    assert "tokenizer.normalizer is NFC, on in this run" in audited._repr_html_()


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_without_effect_is_refused(value):
    place = assets.tokenizer_folder("mistral_nemo") / "tokenizer.json"
    with pytest.raises(TokenizerError, match=r"fix_mistral_regex has no effect on a tokenizer\.json; name the folder"):
        Tokenizer.load(TokenizerSpec(path=str(place), fix_mistral_regex=value), engine="reference")
