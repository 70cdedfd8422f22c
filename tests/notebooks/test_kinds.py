"""Every notebook on every kind of data, and on runs without rows: in this process, cell by cell as a kernel has them.

What is not there is said in a sentence, in place of an error.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from distributed import Client, LocalCluster
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from retok_dask.demo import chat_template
from retok_dask.recipe import Recipe

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

TALKS = [
    {"messages": [{"role": "user", "content": f"ask {n}"}, {"role": "assistant", "content": "the answer " * (n + 1)}]}
    for n in range(12)
]
MARKED = {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "a <|im_end|> b"}]}
NAMELESS = {"messages": [{"role": "narrator", "content": "once upon a time"}]}

KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "chat": ([*TALKS, MARKED], {}),
    "text": ([{"text": f"some words {n} " * 5} for n in range(12)], {"mode": "text"}),
    "ids": ([{"input_ids": list(range(10, 30 + n))} for n in range(12)], {"mode": "tokens"}),
    "empty": ([], {}),
    "rejects": ([NAMELESS, MARKED] * 6, {}),
}

SAID = {
    "01": {
        "chat": ["control_markers_in_content", "message 1 (assistant) holds the template's"],
        "text": ["Of 12 records read none would be rejected", "The records read hold no conversation"],
        "ids": ["Of 12 records read none would be rejected", "The records read hold no conversation"],
        "empty": ["There was no record to read", "The records read hold no conversation"],
        "rejects": ["unknown_role", "control_markers_in_content"],
    },
    "02": {kind: ["There is no row 0: of "] for kind in ("empty", "rejects")},
    "03": {"rejects": ["12 rejected"]},
    "04": {
        "text": ["No data set holds conversations: no template is used."],
        "ids": ["No data set holds conversations: no template is used."],
        "empty": ["There are no rows to show", "0 records in, 0 out, 0 rejected, 0 filtered"],
        "rejects": ["There are no rows to show", "unknown_role"],
    },
    "05": {
        "chat": ["By language"],
        "text": ["By language"],
        "ids": ["No record read holds a text to compare on in ids; rows of ids hold none.", "in both"],
        "empty": ["No record read holds a text to compare on in empty", "A and B have no row:"],
        "rejects": ["By language", "A and B have no row:"],
    },
    "07": {
        **{kind: ["'input_ids': array("] for kind in ("chat", "text", "ids")},
        **{kind: ["This run has no row", "opens no files without rows"] for kind in ("empty", "rejects")},
    },
}
"""What a notebook says of a kind, beside running to its end."""


@dataclass
class Place:
    """One kind's recipe and run, and the process's cluster."""

    kind: str
    folder: Path

    def parameters(self, notebook: str) -> dict[str, Any]:
        recipe, run = str(self.folder / "recipe.yaml"), str(self.folder / "out")
        return {
            "01": {"recipe": recipe},
            "02": {"recipe": recipe, "dataset": self.kind},
            "03": {"recipe": recipe, "progress": "none"},
            "04": {"output": run},
            "05": {"recipe": recipe, "other": recipe, "run_a": run},
            "07": {"output": run, "demo_folder": str(self.folder)},
        }[notebook]


@pytest.fixture(scope="module")
def cluster():
    """One for all runs: ``run`` takes the notebook's client."""
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as made, Client(made):
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> dict[str, str]:
    """A small one that knows the markers of the demo's template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    markers = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(special_tokens=markers, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the answer to some words"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return {"path": str(path), "eos_token": "<|im_end|>"}


@pytest.fixture(scope="module", params=KINDS)
def place(request, tmp_path_factory, cluster, tokenizer) -> Place:
    folder = tmp_path_factory.mktemp(request.param)
    values, spec = KINDS[request.param]
    (folder / "in.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    recipe = Recipe.from_dict(
        {
            "tokenizer": tokenizer,
            "template": {"text": chat_template()},
            "engine": "reference",
            "max_reject_share": 1.0,
            "datasets": [{"name": request.param, "input": str(folder / "in.jsonl"), **spec}],
            "output": str(folder / "out"),
        }
    )
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    return Place(request.param, folder)


def run_cells(path: Path, parameters: dict[str, Any]) -> str:
    """All that the cells of a notebook show as text; whatever they show is drawn as HTML too."""
    names: dict[str, Any] = {}
    shown: list[str] = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if "parameters" in cell.metadata.get("tags", ()):
            assert parameters.keys() <= names.keys()
            names |= parameters
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            shown.append(repr(value))
            if hasattr(value, "_repr_html_"):
                assert value._repr_html_()
    return "\n".join(shown)


@pytest.mark.filterwarnings("error::UserWarning:retok_dask")
@pytest.mark.parametrize("notebook", ["03", "01", "02", "04", "05", "07"])
def test_a_notebook_runs_on_every_kind(place, notebook, capsys):
    """03 makes the run that 04, 05 and 07 look at; 06 has data of its own."""
    (path,) = NOTEBOOKS.glob(f"{notebook}-*.ipynb")
    shown = run_cells(path, place.parameters(notebook)) + capsys.readouterr().out
    for part in SAID[notebook].get(place.kind, ()):
        assert part in shown
