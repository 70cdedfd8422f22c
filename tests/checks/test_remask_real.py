"""On real conversations and the real kernel: a mask from the segments is the mask of a fresh run."""

from __future__ import annotations

import json
import shutil
from itertools import zip_longest
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from real_run import demo_recipe, run_recipe
from typer.testing import CliRunner

from retok_dask.checks import validate
from retok_dask.cli import app
from retok_dask.datasets import diff, export, open_dataset, read_manifest, remask
from retok_dask.datasets.exits import EXITS
from retok_dask.doing import heard_by
from retok_dask.errors import OutputError


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    run_recipe(demo_recipe(folder))
    return folder


@pytest.mark.parametrize("policy", ["last_assistant", "final_answer", "all_but_system", ["content", "stop"]])
def test_remask_equals_a_fresh_run(original, tmp_path, policy):
    recipe = open_dataset(str(original / "out")).recipe.with_changes(mask=policy, output=str(tmp_path / "fresh"))
    fresh = read_manifest(run_recipe(recipe))
    derived = remask(str(original / "out"), policy, str(tmp_path / "derived"))
    assert derived.gone == 0
    assert derived.manifest.content_digest == fresh.content_digest
    assert derived.manifest.fingerprint == fresh.fingerprint
    numbers = [manifest.total.to_dict() | {"seconds": None} for manifest in (derived.manifest, fresh)]
    assert numbers[0] == numbers[1]
    found = diff(str(tmp_path / "fresh"), str(tmp_path / "derived"))
    assert found.same_rows
    assert found.asked == []


FEW = 30
"""So many conversations hold every shape that the demo has; a test that runs them many times needs no more."""

DATA = Path(__file__).parents[3] / "shared" / "data" / "messages"


def flagged(source: Path, target: Path) -> None:
    """A file of conversations again, with flags on messages of every role where it has none of its own."""
    lines = []
    for row, line in enumerate(source.read_text(encoding="utf-8").splitlines()):
        try:
            record = json.loads(line)
            messages = record["messages"]
        except (ValueError, KeyError, TypeError):  # the demo's bad lines
            continue
        for number, message in enumerate(messages):
            if (row + number) % 4 == 1 and not {"weight", "loss_weight"} & message.keys():
                message["train"] = number % 3 != 0
        lines.append(json.dumps(record))
    target.write_text("\n".join(lines) + "\n")


OWN_FLAGS = "v1_sft_demo.jsonl"
"""Real conversations with a `loss_weight` on each message."""

SOURCES = [
    (name, history) for name in ("demo", "reason_tool_use_demo_50.jsonl") for history in ("whole", "per_turn", "auto")
]


@pytest.mark.parametrize(("source", "history"), [*SOURCES, (OWN_FLAGS, "whole")])
def test_flags_and_rows_of_one_turn(tmp_path, source, history):
    """Masked as by a fresh run: flags in the data win over each policy, and a row that trains one turn keeps to it."""
    recipe = demo_recipe(tmp_path, FEW, history=history, max_reject_share=1.0)
    files = sorted((tmp_path / "in").rglob("*.jsonl")) if source == "demo" else [DATA / source]
    if not files[0].exists():
        pytest.skip("the real conversations are not beside this checkout")
    (tmp_path / "flagged").mkdir()
    for number, path in enumerate(files):
        flagged(path, tmp_path / "flagged" / f"{number}.jsonl")
    recipe = recipe.with_changes(datasets=[{"input": str(tmp_path / "flagged" / "*.jsonl")}])
    original = read_manifest(run_recipe(recipe))
    rows = list(open_dataset(recipe.output))
    assert any(row["message_flags"] for row in rows)
    assert any("-t" in row["sample_id"] for row in rows) == (history != "whole")
    for policy in ("final_answer", "all_but_system", ["content", "tool"]):
        name = "-".join(policy) if isinstance(policy, list) else policy
        fresh = read_manifest(run_recipe(recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{name}"))))
        derived = remask(recipe.output, policy, str(tmp_path / f"derived-{name}"))
        assert derived.gone == 0
        assert derived.manifest.content_digest == fresh.content_digest
        assert derived.manifest.total.loss_tokens == fresh.total.loss_tokens
        if source != OWN_FLAGS:  # with a flag on each message, every policy gives the same
            assert fresh.content_digest != original.content_digest


@pytest.mark.parametrize("truncation", ["right", "left", "message"])
def test_rows_that_were_cut(tmp_path, truncation):
    """Which message was the last one is not to be seen in a row that lost its end; what can be told is as afresh."""
    recipe = demo_recipe(tmp_path, FEW, max_length=120, truncation=truncation, max_reject_share=1.0)
    run_recipe(recipe)
    for policy in ("last_assistant", "completion", "final_answer"):
        changed = recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{policy}"))
        fresh = read_manifest(run_recipe(changed))
        assert fresh.total.truncated or (truncation == "message" and policy != "final_answer")
        report = validate(changed.output, full=True)
        assert report.passed, report.to_text()
        if policy == "final_answer" or truncation == "left":
            derived = remask(recipe.output, policy, str(tmp_path / f"derived-{policy}"))
            assert derived.gone or derived.manifest.content_digest == fresh.content_digest
        else:
            with pytest.raises(OutputError, match=f"{policy} would train cannot be known"):
                remask(recipe.output, policy, str(tmp_path / f"derived-{policy}"))
            back = remask(changed.output, "assistant", str(tmp_path / f"back-{policy}"))
            assert back.manifest.total.balanced


def talk(*flags, roles="uauaua", long=3):
    """A conversation with one long message, flagged where a flag is given; ``u`` and ``a`` are its roles."""
    names = {"u": "user", "a": "assistant"}
    messages = [{"role": names[role], "content": f"word {n} "} for n, role in enumerate(roles)]
    messages[long]["content"] *= 60
    return {
        "messages": [
            message if flag is None else message | {"train": flag} for message, flag in zip_longest(messages, flags)
        ]
    }


T, F, N = True, False, None
DECIDED = {
    "prompts": ([talk()], {"mode": "prompts"}, {}),
    "documents": ([{"text": "some words " * 60}], {"mode": "text"}, {}),
    "ids": ([{"input_ids": [40, 41] * 90, "loss_mask": [0, 1] * 90}], {"mode": "tokens"}, {}),
    "rows of one turn": ([talk()], {}, {"history": "per_turn"}),
    "rows of one turn, cut after a message": (
        [talk()],
        {"filters": {"min_trained_tokens": 0}},
        {"history": "per_turn", "truncation": "message"},
    ),
    "an end, a flagged answer in it": ([talk(N, T, N, roles="uau", long=1)], {}, {"truncation": "left"}),
    "flags that leave nothing to the policy": ([talk(F, F, F, F, F, F)], {"filters": {"min_trained_tokens": 0}}, {}),
    "the last answer is begun": ([talk(F, N, N, N, roles="uaua")], {}, {}),
    "the last answer is there, flagged": ([talk(F, F, N, T, roles="uaua")], {}, {}),
    "the last answer is there, a question after it": ([talk(F, N, N, roles="uau", long=2)], {}, {}),
}
UNDECIDED = {
    "no flags": ([talk()], {}, {}),
    "flags, and the end is not there": ([talk(F, N)], {}, {}),
    "a flag that may contradict": ([talk(F, T, F, F, F, F)], {}, {}),
    "an end without the flagged answer": (
        [talk(N, T, N, roles="uau", long=2)], {}, {"truncation": "left", "mask": "all"},
    ),
    "flags that a layout of one's own gives": (
        [talk()], {"layout": "ownlayout:conversation", "filters": {"min_trained_tokens": 0}}, {},
    ),
}  # fmt: skip
"""Rows cut to 130 tokens: records, settings of the data set, and of the recipe."""


def cut_run(original, tmp_path, case):
    values, spec, settings = case
    (tmp_path / "cut.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    sets = [{"input": str(tmp_path / "cut.jsonl"), **spec}]
    changes = {"max_length": 130, "truncation": "right", "max_reject_share": 1.0} | settings
    given = open_dataset(str(original / "out")).recipe
    recipe = given.with_changes(datasets=sets, output=str(tmp_path / "out"), **changes)
    return recipe, read_manifest(run_recipe(recipe))


@pytest.mark.parametrize("case", DECIDED)
def test_cut_rows_that_have_all_a_policy_needs_are_as_afresh(original, tmp_path, case):
    recipe, old = cut_run(original, tmp_path, DECIDED[case])
    assert old.total.truncated
    for policy in ("last_assistant", "completion"):
        fresh = read_manifest(run_recipe(recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{policy}"))))
        derived = remask(recipe.output, policy).manifest
        assert derived.content_digest == fresh.content_digest
        assert (derived.total.filtered, derived.total.rejected) == (fresh.total.filtered, fresh.total.rejected)
        assert derived.total.samples == fresh.total.samples


ANSWERED = {
    "no question can follow": ([talk(roles="uauau", long=3)], {"tail": "cut"}, True),
    "a question follows": ([talk(roles="uau", long=2)], {"filters": {"min_trained_tokens": 0}}, True),
    "a question follows and nothing is trained then": ([talk(roles="uau", long=2)], {}, True),
    "a question may follow": ([talk(roles="uaua", long=3)], {}, False),
    "the answer is not trained": ([talk(N, F, roles="ua", long=1)] * 2, {"filters": {"min_trained_tokens": 0}}, True),
}
"""Rows cut to 130 tokens that train their last answer: records, settings of the data set, what can be told."""


@pytest.mark.parametrize("case", ANSWERED)
def test_cut_rows_with_their_last_answer_tell_what_completes_them(original, tmp_path, case):
    values, spec, told = ANSWERED[case]
    recipe, old = cut_run(original, tmp_path, (values, spec, {"mask": "last_assistant"}))
    assert old.total.truncated
    fresh = read_manifest(run_recipe(recipe.with_changes(mask="completion", output=str(tmp_path / "fresh"))))
    if not told:
        with pytest.raises(OutputError, match=r"^in 1 row so much is cut .* completion would train cannot be known"):
            remask(recipe.output, "completion")
        return
    derived = remask(recipe.output, "completion").manifest
    assert derived.content_digest == fresh.content_digest
    assert (derived.total.filtered, derived.total.samples) == (fresh.total.filtered, fresh.total.samples)


@pytest.mark.parametrize("case", UNDECIDED)
def test_cut_rows_that_lack_what_a_policy_needs_are_refused(original, tmp_path, case, monkeypatch):
    (tmp_path / "ownlayout.py").write_text(
        "from retok_dask.types import Conversation\n"
        "def conversation(record):\n"
        "    return Conversation(record['messages'], flags=[False] * len(record['messages']))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe, old = cut_run(original, tmp_path, UNDECIDED[case])
    assert old.total.truncated == 1
    with pytest.raises(OutputError, match=r"^in 1 row so much is cut .* last_assistant would train cannot be known"):
        remask(recipe.output, "last_assistant")
    assert not (tmp_path / "out-last_assistant").exists()


def test_a_row_cut_in_the_header_of_the_last_answer(original, tmp_path):
    """The last question is there, which `completion` goes by; of the answer nothing is that could be trained."""
    case = [talk(F, N, N, N, roles="uaua")], {}
    (tmp_path / "whole").mkdir()
    whole, _ = cut_run(original, tmp_path / "whole", (*case, {"max_length": None}))
    segments = open_dataset(whole.output)[0]["segments"]
    header = next(start for start, _, kind, message in segments if (kind, message) == ("header", 3))
    recipe, old = cut_run(original, tmp_path, (*case, {"max_length": header + 1}))
    assert old.total.truncated == 1
    with pytest.raises(OutputError, match="last_assistant would train cannot be known"):
        remask(recipe.output, "last_assistant")
    fresh = read_manifest(run_recipe(recipe.with_changes(mask="completion", output=str(tmp_path / "fresh"))))
    assert remask(recipe.output, "completion").manifest.content_digest == fresh.content_digest


def test_workers_of_a_cluster_do_it_too(original, tmp_path):
    shutil.copytree(original / "out", tmp_path / "out")
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        said: list[str] = []
        with heard_by(said.append):
            report = validate(str(tmp_path / "out"), full=True, client=client)
        assert {"units checked", "units encoded again"} <= {text.partition(":")[0] for text in said}
        assert report.passed, report.to_text()
        for command in (["validate", "--full"], ["remask", "--policy", "all"]):
            where = [str(tmp_path / "out"), "--scheduler", cluster.scheduler_address]
            done = CliRunner().invoke(app, [*command, *where])
            assert done.exit_code == 0, done.output
        results = {
            to: export(str(tmp_path / "out-all"), to, str(tmp_path / to), shards=3, client=client) for to in EXITS
        }
    for to, result in results.items():
        assert result.loss_tokens == result.tokens == open_dataset(str(tmp_path / "out")).num_tokens
        export(str(tmp_path / "out-all"), to, str(tmp_path / "here" / to), shards=3)
        there, here = (
            json.loads((folder / to / "_retok_export/export.json").read_text())["files"]
            for folder in (tmp_path, tmp_path / "here")
        )
        assert there == here, to


@pytest.mark.parametrize("truncation", ["right", "left", "message"])
def test_tools_alone_are_no_document(tmp_path, truncation):
    """A row cut to what stands before its messages trains none of it, however short the rows become."""
    tool = {"type": "function", "function": {"name": "f", "description": "says a lot " * 20, "parameters": {}}}
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a good answer " * 9}]
    recipe = demo_recipe(tmp_path)
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk, "tools": [tool]}) + "\n")
    for length in (1, 2, 10, 100, 150):
        out = str(tmp_path / f"out-{length}")
        cut = recipe.with_changes(
            datasets=[{"input": str(tmp_path / "talk.jsonl")}], output=out, max_length=length, truncation=truncation
        )
        total = read_manifest(run_recipe(cut)).total
        assert total.balanced
        assert total.records_out + sum(total.filtered.values()) == 1
        for row in open_dataset(out):
            trained = {kind for start, end, kind, _ in row["segments"] if row["loss_mask"][start:end].any()}
            assert trained <= {"content", "stop"}, (length, trained)


def test_prompts_stay_untrained(original, tmp_path):
    """Whatever the policy: as a fresh run leaves them, and no finding of the validation."""
    given = open_dataset(str(original / "out")).recipe
    sets = [spec.model_dump(exclude_unset=True) | {"mode": "prompts"} for spec in given.datasets]
    recipe = given.with_changes(datasets=sets, output=str(tmp_path / "prompts"))
    run_recipe(recipe)
    assert any(kind == "content" for row in open_dataset(recipe.output) for _, _, kind, _ in row["segments"])
    for policy in ("all", "final_answer"):
        fresh = read_manifest(run_recipe(recipe.with_changes(mask=policy, output=str(tmp_path / f"fresh-{policy}"))))
        derived = remask(recipe.output, policy, str(tmp_path / f"derived-{policy}"))
        assert derived.manifest.content_digest == fresh.content_digest
        assert derived.manifest.total.loss_tokens == 0
        report = validate(derived.url, full=True)
        assert report.check("masks").passed, report.to_text()


def test_rows_of_ids_keep_their_mask_and_it_is_said(original, tmp_path):
    rows = [
        {"input_ids": [40, 41, 42], "segments": [{"start": 0, "end": 3, "kind": "content", "message": 0}]},
        {"input_ids": [40, 41, 42], "loss_mask": [0, 1, 1]},
    ]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = open_dataset(str(original / "out")).recipe
    sets = [{"input": str(tmp_path / "ids.jsonl"), "mode": "tokens"}]
    run_recipe(given.with_changes(datasets=sets, output=str(tmp_path / "ids")))
    derived = remask(str(tmp_path / "ids"), "final_answer")
    assert [row["loss_mask"].tolist() for row in open_dataset(derived.url)] == [[True] * 3, [False, True, True]]
    assert derived.kept == derived.to_dict()["kept"] == 2
    assert "2 rows of ids (mode: tokens) with the mask from before" in derived.to_text()
