"""Functions of the user's own on the worker processes of a run, from a file in the folder where the command runs."""

from __future__ import annotations

import json
import subprocess
import sys

from retok_dask import validate

RULES = """
from retok_dask.types import Conversation, FilterReason, RecordFiltered

print("a line at import")

def talk(record):
    print("a line for each record")
    if record["id"] == "interrupted":
        raise KeyboardInterrupt
    if record["id"] == "generator":
        return (message for message in record["talk"])
    if record["id"] == "short":
        raise RecordFiltered(FilterReason.too_short, "says nothing")
    return Conversation(record["talk"])

def wanted(record):
    if record["id"] == "private":
        raise RecordFiltered("private", "may not be used")
    return True
"""


def retok(folder, *arguments):
    """The command as it is installed: Python adds no folder of its own to what is imported."""
    command = [sys.executable, "-P", "-m", "retok_dask.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_functions_beside_the_recipe_cost_no_more_than_their_records(make_recipe, tmp_path):
    (tmp_path / "rules.py").write_text(RULES)
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    names = ["one", "interrupted", "generator", "short", "private", "two"]
    lines = [json.dumps({"id": name, "talk": talk}) for name in names]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines))
    spec = {"input": str(tmp_path / "talks.jsonl"), "layout": "rules:talk", "filters": {"function": "rules:wanted"}}
    recipe = make_recipe(tmp_path, datasets=[spec], cluster={"workers": 1, "dashboard": None})
    (tmp_path / "recipe.yaml").write_text(recipe.with_changes(max_reject_share=1.0).to_yaml())

    done = retok(tmp_path, "run", "recipe.yaml", "--json")
    assert json.loads(done.stdout)["exit_code"] == 0  # what functions print is not among it
    assert "a line for each record" in done.stderr
    assert "died" not in done.stderr
    stats = json.loads((tmp_path / "out/_retok/manifest.json").read_text())["total"]
    assert (stats["records_in"], stats["records_out"]) == (6, 2)
    assert stats["rejected"] == {"user_function_failed": 2}
    assert stats["filtered"] == {"private": 1, "too_short": 1}

    report = validate(str(tmp_path / "out"))  # in a folder without the module
    assert report.passed, report.to_text()
    (unmade,) = (check for check in report.checks if check.name == "re_encoding")
    assert "'rules:talk' cannot be imported" in unmade.detail

    (tmp_path / "rules.py").write_text(RULES.replace('== "short"', '== "two"'))
    again = retok(tmp_path, "run", "recipe.yaml")
    assert again.returncode == 2
    assert "the module of the function 'rules:talk' has changed" in again.stderr
