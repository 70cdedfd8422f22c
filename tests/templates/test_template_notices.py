"""What must never go by in silence, and hand-tagged templates beside their originals, as users see both."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from templates_common import facts_of, load, public_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

from retok_dask.cli import app
from retok_dask.cluster import plan
from retok_dask.errors import TemplateError
from retok_dask.recipe import Recipe
from retok_dask.single import Pipeline
from retok_dask.templates import audit, require_same_text

TURN = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SILENT = {
    "swallows": [TURN[0], TURN[1], {"role": "tool", "content": "Meanwhile."}, TURN[1]],
    "drops reasoning": [TURN[0], {**TURN[1], "reasoning_content": "the lost thought"}, *TURN],
    "zero trained tokens": [TURN[0], {**TURN[1], "train": False}],
    "unbalanced think tags": [TURN[0], {**TURN[1], "content": "<think>never closed"}],
}
SHOWN = {
    "swallows": "'Meanwhile.'",
    "drops reasoning": "'the lost thought'",
    "zero trained tokens": "<|user|>",
    "unbalanced think tags": "<think>never closed",
}


def small_tokenizer(folder):
    """A tokenizer.json of bytes and control tokens: what is asked here is said of templates, whatever the vocabulary."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [], trainers.BpeTrainer(special_tokens=control, initial_alphabet=alphabet, show_progress=False)
    )
    made.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A recipe with a small tokenizer and a template that drops much and prints BOS twice, and one record of each kind."""
    folder = tmp_path_factory.mktemp("silent")
    lines = [json.dumps({"messages": messages}) for messages in [*SILENT.values(), TURN]]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "tokenizer": {"path": small_tokenizer(folder), "bos_token": "<|endoftext|>"},
        "template": {
            "text": "{{ bos_token }}{{ bos_token }}" + public_texts()["trl/phi3"],
            "plain_markers": True,
        },
        "engine": "reference",
        "output": str(folder / "out"),
        "cluster": {"workers": 1},
        "datasets": [{"name": "talks", "input": str(folder / "in.jsonl")}],
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    return folder


def test_the_audit_counts_each_with_an_example(asked):
    command = ["audit", str(asked / "in.jsonl"), "-t", str(asked / "recipe.yaml")]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["fact"]: row for row in json.loads(done.stdout)["rows"]}
    for fact, example in SHOWN.items():
        assert rows[fact]["count"] == 1, fact
        assert example in rows[fact]["example"]
    assert rows["doubled BOS"]["count"] == 5
    assert "<|endoftext|><|endoftext|>" in rows["doubled BOS"]["example"]
    assert CliRunner().invoke(app, [*command, "--html", str(asked / "page.html")]).exit_code == 0
    html = (asked / "page.html").read_text(encoding="utf-8")
    for fact in (*SHOWN, "doubled BOS"):
        assert fact in html
    assert "Meanwhile." in html


def test_the_plan_says_it_before_the_run(asked):
    planned = plan(Recipe.load(asked / "recipe.yaml"))
    found = planned.datasets[0]
    assert found.noticed["message_not_rendered"] == 1
    assert found.noticed["doubled_bos"] == 5
    assert found.filter_reasons == {"no_trained_tokens": 1}
    text, drawn = planned.to_text(), planned._repr_html_()
    for shown in (text, drawn):
        for fact in (*SHOWN, "doubled BOS", "message_not_rendered", "no_trained_tokens"):
            assert fact in shown
    assert "'the lost thought'" in text


OWN = "\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
TAGGED = (
    "\n{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}{% generation %}"
    "{{- message.content + '<|im_end|>' }}{% endgeneration %}@END@{%- else %}" + OWN + "{%- endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small tokenizer with a real template, in a folder as models come; and that template tagged by hand."""
    folder = tmp_path_factory.mktemp("model")
    small_tokenizer(folder)
    own = public_texts()["trl/qwen2_5"]
    assert own.count(OWN) == 1
    (folder / "chat_template.jinja").write_text(own, encoding="utf-8")
    (folder / "swallowed.jinja").write_text(own.replace(OWN, TAGGED.replace("@END@", "\n")), encoding="utf-8")
    (folder / "kept.jinja").write_text(own.replace(OWN, TAGGED.replace("@END@", "{{- '\\n' }}")), encoding="utf-8")
    (folder / "in.jsonl").write_text(json.dumps({"messages": TURN}) + "\n")
    return folder


def recipe_with(model, template):
    given = {"tokenizer": str(model / "tokenizer.json"), "template": str(model / template), "output": "-"}
    return Recipe.from_dict(given | {"engine": "reference", "datasets": [{"input": str(model / "in.jsonl")}]})


def audited(model, template):
    command = ["audit", str(model / "in.jsonl"), "-t", str(model / "tokenizer.json")]
    done = CliRunner().invoke(app, [*command, "--template", str(model / template), "--json"])
    assert done.exit_code == 0, done.output
    return {row["fact"]: row for row in json.loads(done.stdout)["rows"]}


def test_a_tagged_copy_that_lost_a_newline_is_named_and_refused(model):
    """A19: https://github.com/huggingface/transformers/pull/30650"""
    row = audited(model, "swallowed.jinja")["text against the tokenizer's own template"]
    assert row["value"] == "differs in blanks: a run refuses it"
    assert row["count"] == 1
    assert row["example"].startswith("at character ")
    assert "<|im_end|>\\n" in row["example"]
    with pytest.raises(TemplateError, match=r"but for blanks.*own .*<\|im_end\|>\\n"):
        plan(recipe_with(model, "swallowed.jinja"))


def test_a_tagged_copy_with_the_same_text_runs(model):
    rows = audited(model, "kept.jinja")
    assert rows["text against the tokenizer's own template"]["value"] == "renders the same text"
    assert rows["text against the tokenizer's own template"]["count"] == 0
    assert rows["tags against the default policy"]["count"] == 0
    assert "text against the tokenizer's own template" not in audited(model, "chat_template.jinja")


def test_tags_that_train_something_else_than_the_policy_are_named(model):
    wide = (model / "kept.jinja").read_text().replace("{{- '<|im_start|>assistant\\n' }}{% generation %}", "")
    wide = wide.replace(
        "{{- message.content + '<|im_end|>' }}{% endg",
        "{% generation %}{{- '<|im_start|>assistant\\n' + message.content + '<|im_end|>' }}{% endg",
    )
    (model / "wide.jinja").write_text(wide)
    row = audited(model, "wide.jinja")["tags against the default policy"]
    assert row["count"] == 1
    assert row["example"] == "tagged, not trained by default: header '<|im_start|>assistant\\n'"


def test_another_template_is_meant_to_be_another(model):
    """trl's tagged Qwen3 prints more than Qwen3: no copy gone wrong, and not refused."""
    (model / "other.jinja").write_text(public_texts()["trl/qwen3_training"], encoding="utf-8")
    row = audited(model, "other.jinja")["text against the tokenizer's own template"]
    assert row["value"] == "renders other text"
    assert len(Pipeline(recipe_with(model, "other.jinja")).encode([{"messages": TURN}])) == 1


@pytest.mark.parametrize("own", ["{% for", "{{ messages | length }}", {"a": "{{ 1 }}", "b": "{{ 2 }}"}])
def test_an_own_template_that_cannot_be_used_is_no_hindrance(own):
    text = public_texts()["trl/qwen3_training"]
    tokenizer = replace(facts_of(text), chat_templates=own)
    template = load(text, {"text": text}, tokenizer=tokenizer)
    require_same_text(template, tokenizer)
    facts = [row.fact for row in audit(template, tokenizer=tokenizer).rows]
    assert "text against the tokenizer's own template" not in facts
