"""`retok compare`: two tokenizers on a sample, or two written runs."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
import yaml
from assets import tokenizer_folder
from typer.testing import CliRunner

from retok_dask.cli import app
from retok_dask.compare import compare_on_input, compare_places, compare_texts, compare_written
from retok_dask.compare.language import language_of
from retok_dask.errors import InputError, RetokError
from tests.retokenize.common import plain_ids, recipe, tokenizer
from tests.retokenize.runs import write_run

TEXTS = {
    "Latin": "It is a truth universally acknowledged, that a single man must be in want of a wife.",
    "Chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",
    "Japanese": "吾輩は猫である。名前はまだ無い。",
    "Thai": "สวัสดีครับ วันนี้อากาศดีมาก",
    "Cyrillic": "Все счастливые семьи похожи друг на друга.",
    "code": "for (int i = 0; i < n; i++) { total[i] += x[i]; }",
}


@pytest.mark.parametrize(("language", "text"), TEXTS.items())
def test_languages_are_told_by_their_letters(language, text):
    assert language_of(text) == language


def test_counts_are_those_of_the_library():
    pair = tokenizer("gpt2"), tokenizer("llama3_1")
    found = compare_texts([("d", text) for text in TEXTS.values()], pair, context=10)
    assert set(found.languages) == set(TEXTS)
    for language, text in TEXTS.items():
        one, two = plain_ids("gpt2", text), plain_ids("llama3_1", text)
        group = found.languages[language]
        assert group.tokens == [len(one), len(two)]
        assert (group.bytes, group.words) == (len(text.encode()), len(text.split()))
        assert group.windows == [-(-len(one) // 10), -(-len(two) // 10)]
        assert group.changed == 1
    whole = found.datasets["d"]
    assert whole.tokens[0] == sum(group.tokens[0] for group in found.languages.values())
    used = {index for text in TEXTS.values() for index in plain_ids("gpt2", text)}
    assert found.vocabulary[0] == len(used)
    assert found.longest[0].growth == max(
        len(plain_ids("llama3_1", t)) / len(plain_ids("gpt2", t)) for t in TEXTS.values()
    )
    assert {one.language for one in found.examples} == set(TEXTS)
    chinese = next(one for one in found.examples if one.language == "Chinese")
    assert chinese.pieces[0] != chinese.pieces[1]
    assert chinese.pieces[1][0] in TEXTS["Chinese"]


def test_control_token_text_is_text_here_too():
    pair = tokenizer("gpt2"), tokenizer("llama3_1")
    group = compare_texts([("d", "a <|endoftext|> b <|eot_id|>")], pair).datasets["d"]
    assert group.tokens[0] > len(plain_ids("gpt2", "a <|endoftext|> b <|eot_id|>"))
    assert group.tokens[1] > len(plain_ids("llama3_1", "a <|endoftext|> b <|eot_id|>"))


def test_a_tokenizer_equals_itself():
    pair = tokenizer("gpt2"), tokenizer("gpt2")
    found = compare_texts([("d", text) for text in TEXTS.values()], pair)
    assert found.datasets["d"].changed == 0
    assert not found.examples
    assert found.datasets["d"].rates()["growth"] == 1


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "d.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps({"text": text}) for text in TEXTS.values()))
    return path


def test_the_command_gives_json_page_and_plot(documents, tmp_path):
    names = []
    for name in ("gpt2", "llama3_1"):
        names.append(str(tmp_path / f"{name}.yaml"))
        given = {
            "tokenizer": str(tokenizer_folder(name)),
            "engine": "reference",
            "output": "-",
            "datasets": [{"input": "-"}],
        }
        Path(names[-1]).write_text(yaml.safe_dump(given))
    page, plot = tmp_path / "page.html", tmp_path / "plot.png"
    done = CliRunner().invoke(
        app, ["compare", *names, str(documents), "--json", "--html", str(page), "--plot", str(plot)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["languages"]["Chinese"]["tokens"][0] == len(plain_ids("gpt2", TEXTS["Chinese"]))
    assert found["datasets"]["data"]["texts"] == len(TEXTS)
    assert "Grow most from A to B" in page.read_text(encoding="utf-8")
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = CliRunner().invoke(app, ["compare", *names, str(documents)])
    assert "By language" in text.stdout


def test_chats_count_what_messages_say(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(
        orjson.dumps(
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "hello", "reasoning_content": "think"},
                ]
            }
        )
    )
    made = recipe("gpt2", {"input": str(path), "mode": "chat"})
    found = compare_on_input(made, (tokenizer("gpt2"), tokenizer("llama3_1")))
    assert found.datasets["data"].texts == 3
    assert not found.without_text


def test_data_without_text_is_named_and_no_comparison_by_the_command(tmp_path, documents):
    rows = tmp_path / "ids.jsonl"
    rows.write_bytes(orjson.dumps({"input_ids": [1, 2]}))
    specs = [
        {"name": "docs", "input": str(documents), "mode": "text"},
        {"name": "ids", "input": str(rows), "mode": "tokens"},
    ]
    pair = (tokenizer("gpt2"),) * 2
    found = compare_on_input(recipe("gpt2", specs[0]).with_changes(datasets=specs), pair)
    assert found.to_dict()["without_text"] == ["ids"]
    assert "No record read holds a text to compare on in ids; rows of ids hold none." in str(found)
    assert "docs" in found.to_dict()["datasets"]
    nothing = compare_on_input(recipe("gpt2", specs[1]), pair)
    assert "By language" not in str(nothing)
    assert nothing.plot()._repr_html_()
    place = str(tokenizer_folder("gpt2"))
    with pytest.raises(InputError, match=r"ids\.jsonl' holds a text"):
        compare_places(place, place, str(rows), mode="tokens")


def test_two_runs_are_matched_by_sample_id(documents, tmp_path):
    data = {"input": str(documents), "mode": "text"}
    one = write_run(recipe("gpt2", data).with_changes(output=str(tmp_path / "one")), tokenizer("gpt2"))
    two = write_run(recipe("llama3_1", data).with_changes(output=str(tmp_path / "two")), tokenizer("llama3_1"))
    found = compare_written(one.url, two.url)
    assert found.unmatched == (0, 0)
    assert found.datasets["data"].changed == found.datasets["data"].texts == len(TEXTS)
    same = compare_written(one.url, one.url)
    assert same.datasets["data"].changed == 0
    with pytest.raises(RetokError):
        compare_written(one.url, str(tmp_path))


def test_markers_that_a_run_wrote_are_no_language(tmp_path):
    (tmp_path / "short.jsonl").write_bytes(orjson.dumps({"text": "Guten Tag"}))
    made = recipe("gpt2", {"input": str(tmp_path / "short.jsonl"), "mode": "text"})
    run = write_run(made.with_changes(output=str(tmp_path / "run")), tokenizer("gpt2"))
    found = compare_written(run.url, run.url)
    assert set(found.languages) == {"Latin"}
    assert found.datasets["data"].bytes > len("Guten Tag"), "the separator is counted"


def test_runs_without_a_row_in_common_say_why(documents, tmp_path):
    """Other input, or no rows: in one, in both."""
    (tmp_path / "other.jsonl").write_bytes(orjson.dumps({"text": "Guten Tag"}))

    def run(name, path, **filters):
        data = {"input": str(path), "mode": "text", "filters": filters}
        return write_run(recipe("gpt2", data).with_changes(output=str(tmp_path / name)), tokenizer("gpt2")).url

    one, other = run("one", documents), run("two", tmp_path / "other.jsonl")
    none, nothing = (run(name, documents, min_tokens=1000) for name in ("none", "nothing"))
    with pytest.raises(InputError, match=r"one' and '.*two' have no row in common"):
        compare_written(one, other)
    with pytest.raises(InputError, match=r"^neither '.*none' nor '.*nothing' has a row to compare"):
        compare_written(none, nothing)
    for pair in ((one, none), (none, one)):
        with pytest.raises(InputError, match=r"^'\S*none' has no row to compare"):
            compare_written(*pair)
