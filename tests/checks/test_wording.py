"""What commands say of one thing and of several: a count and its word agree, and a number that is a name stays whole."""

from __future__ import annotations

import json
import re

import pytest
from real_run import demo_recipe, run_recipe
from typer.testing import CliRunner

from retok_dask.cli import app
from retok_dask.cluster.events import EventLog
from retok_dask.datasets import OutputFolder
from retok_dask.recipe import Recipe
from retok_dask.views import WrittenRun, explore, recipe_summary

ONE_OF_SEVERAL = re.compile(r"(?<![\d,.:/-])1 (?!(?:has|is|was|its|this|does)\b)[a-z]+(?: [a-z]+)?(?<!s)s\b[^:]")
"""As in "1 rows"; not as in "1 rows: ...", a name with its number before it."""


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Recipe:
    """A run of one record, with one reject beside it."""
    folder = tmp_path_factory.mktemp("one")
    recipe = demo_recipe(folder, max_reject_share=1.0, cluster={"workers": 1})
    talk = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]
    (folder / "one.jsonl").write_text(json.dumps({"messages": talk}) + "\n{}\n")
    recipe = recipe.with_changes(datasets=[{"name": "one", "input": str(folder / "one.jsonl")}])
    run_recipe(recipe)
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    return recipe


COMMANDS = [
    ["status", "OUT"],
    ["validate", "OUT"],
    ["plan", "RECIPE"],
    ["rejects", "OUT"],
    ["rejects", "OUT", "--to", "FOLDER/left.jsonl"],
    ["vocabulary", "OUT"],
    ["diff", "OUT", "OUT-all"],
    ["export", "OUT", "--to", "npy", "--output", "FOLDER/npy", "--pack", "8"],
    ["mix", "OUT", "--epochs", "1"],
    ["audit", "INPUT", "-t", "RECIPE"],
    ["doctor", "--recipe", "RECIPE"],
    ["compare", "OUT", "OUT"],
]


def test_one_thing_is_not_called_several(one, tmp_path):
    folder = one.output.removesuffix("out")
    places = {"OUT": one.output, "RECIPE": f"{folder}recipe.yaml", "INPUT": f"{folder}one.jsonl"}
    said = []
    for command in [["remask", "OUT", "--policy", "all"], *COMMANDS]:
        words = [word.replace("FOLDER", str(tmp_path)) for word in command]
        words = [places.get(word, word.replace("OUT-", f"{one.output}-")) for word in words]
        done = CliRunner().invoke(app, words)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert "1" in done.stdout or command[0] in {"doctor", "compare"}, done.output
        said.append(done.output)
    run = WrittenRun(one.output)
    said += [str(view) for view in (run.what(), run.accounting(), run.rejected_records(), run.drift(), explore(one))]
    wrong = [found.group() for text in said for found in ONE_OF_SEVERAL.finditer(text)]
    assert not wrong
    for right in ("1 receipt,", "1 row", "1 record", "1 shard,", "1 unit", "1 worker"):
        assert any(right in text for text in said), right


def test_numbers_that_are_names_stay_whole_and_amounts_do_not(one):
    folder = OutputFolder(one.output)
    log = EventLog(folder)
    log.add("start", host="host", pid=14_220, units=14_220, committed=0)
    log.flush()
    story = WrittenRun(one.output).story().to_text()
    assert "pid 14220" in story
    assert "units 14,220" in story
    seeded = one.with_changes(datasets=[{"name": "one", "input": "x", "seed": 20_261}])
    assert "20,261" not in recipe_summary(seeded).to_text()


def test_shares_say_of_what(one):
    shown = explore(one).summary().to_text()
    assert "share of rejects" in shown
    assert "share of records" in shown
    assert "share of records read" in str(WrittenRun(one.output).rejects())
