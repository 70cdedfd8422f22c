"""`retok vocabulary`, `retok mix` and `retok diff`: what they count, what they write, and what they refuse."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from factory import VOCABULARY, make_run
from test_cli import in_process, refused

from retok_dask.datasets import open_dataset, open_mixture
from retok_dask.datasets.manifest import read_manifest
from retok_dask.errors import OutputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "one"
    make_run(path, names=("a", "b"), units=2, rows=30)
    return str(path)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "two"
    make_run(path, names=("b", "c"), units=1, rows=20)
    return str(path)


def said(*arguments):
    done = in_process(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# vocabulary


def test_coverage_is_counted_by_data_set_over_all_and_trained_tokens(run):
    found = said("vocabulary", run)
    data = open_dataset(run)
    for name in ("a", "b"):
        rows = list(data.filter(name))
        every = Counter(token for row in rows for token in row["input_ids"].tolist())
        trained = Counter(token for row in rows for token in row["input_ids"][row["loss_mask"]].tolist())
        about = found["datasets"][name]
        assert (about["tokens"], about["distinct"]) == (every.total(), len(every))
        assert (about["trained"], about["distinct_trained"]) == (trained.total(), len(trained))
        # 1,000 ids in all: the first size covers everything
        assert about["coverage"] == [{"size": 1000, "all": 1.0, "trained": 1.0}]
    assert found["total"]["tokens"] == data.num_tokens
    assert found["draft"] is None
    text = in_process("vocabulary", run, "--dataset", "b").stdout
    assert text.startswith(f"b: {found['datasets']['b']['tokens']:,} tokens")
    assert "a: " not in text


def test_a_draft_vocabulary_is_written_as_drafters_read_it(run, tmp_path):
    found = said("vocabulary", run, "--size", 100, "--vocab-size", VOCABULARY + 24, "--to", tmp_path / "draft")
    data = open_dataset(run)
    trained = Counter(token for row in data for token in row["input_ids"][row["loss_mask"]].tolist())
    best = sorted(sorted(trained, key=lambda token: (-trained[token], token))[:100])
    d2t, t2d = (np.load(tmp_path / "draft" / f"{name}.npy") for name in ("d2t", "t2d"))
    assert (np.arange(100) + d2t).tolist() == np.flatnonzero(t2d).tolist() == best
    assert t2d.shape == (VOCABULARY + 24,)
    share = sum(trained[token] for token in best) / trained.total()
    assert found["draft"]["coverage"] == pytest.approx(share)
    assert sorted(found["draft"]["files"]) == sorted(str(path) for path in (tmp_path / "draft").iterdir())
    text = in_process("vocabulary", run, "--size", 100, "--vocab-size", VOCABULARY).stdout
    assert f"draft vocabulary: 100 of 1,000 tokens, {share:.2%} of what is trained" in text


def test_what_the_vocabulary_command_refuses(run, tmp_path):
    refused(in_process("vocabulary", run, "--to", tmp_path / "x"), "--size")
    refused(in_process("vocabulary", run, "--size", 100), "--vocab-size")
    refused(in_process("vocabulary", run, "--size", 2000, "--vocab-size", 1000), "2,000", "1,000")
    refused(in_process("vocabulary", run, "--dataset", "aa"), "Did you mean 'a'")
    refused(in_process("vocabulary", tmp_path), str(tmp_path))
    assert not (tmp_path / "x").exists()


# mixing


def test_a_mixture_of_runs_is_an_index_of_their_rows(run, other, tmp_path):
    file = tmp_path / "mixture.parquet"
    found = said("mix", run, other, "--weights", "a=1,b=2,c=1", "--epochs", 2, "--seed", 3, "--to", file)
    assert found["file"] == str(file)
    assert found["shares"]["b"]["rows"] == 80
    assert sum(share["share"] for share in found["shares"].values()) == pytest.approx(1.0)
    mixture = open_mixture(str(file))
    assert len(mixture) == found["rows"] == sum(share["draws"] for share in found["shares"].values())
    # every row of the mixture is a row of its run
    rows = [row for url in (run, other) for row in open_dataset(url)]
    for place in (0, 7, len(mixture) - 1):
        assert mixture[place]["input_ids"].tolist() == rows[mixture.order[place]]["input_ids"].tolist()
    names = Counter(row["sample_id"] for row in mixture.select(["sample_id"]).iterate())
    assert names.total() == len(mixture)
    # a weight that wants more of a data set than there is goes through it again and again
    assert max(names.values()) - min(names.values()) >= 1
    assert file.stat().st_size < 100 * len(mixture)
    assert [path.name for path in tmp_path.iterdir()] == ["mixture.parquet"]


def test_an_index_of_a_relative_folder_opens_from_anywhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(run).parent)
    assert said("mix", Path(run).name, "--to", "mixture.parquet")["file"] == "mixture.parquet"
    monkeypatch.chdir(tmp_path)
    assert len(open_mixture(str(Path(run).parent / "mixture.parquet"))) == 120


def test_the_same_seed_writes_the_same_index(run, tmp_path):
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        assert in_process("mix", run, "--seed", seed, "--to", tmp_path / name).returncode == 0
    x, y, z = ((tmp_path / name).read_bytes() for name in "xyz")
    assert x == y != z


def test_shares_are_shown_and_nothing_is_written_without_a_file(run, other):
    flat = said("mix", run, other, "--temperature", 1e9)["shares"]
    assert [round(share["share"], 3) for share in flat.values()] == [0.333] * 3
    plain = said("mix", run, other)
    assert plain["file"] is None
    assert {name: share["epochs"] for name, share in plain["shares"].items()} == {"a": 1.0, "b": 1.0, "c": 1.0}
    text = in_process("mix", run, other, "--weights", "a=1").stdout
    assert "100.00%" in text
    assert "0.00%" in text


def test_what_the_mix_command_refuses(run, tmp_path):
    refused(in_process("mix", run, "--weights", "aa=1"), "Did you mean 'a'")
    refused(in_process("mix", run, "--weights", "a:1"), "NAME=NUMBER")
    refused(in_process("mix", run, "--weights", "a=nan"), "nan")
    refused(in_process("mix", run, "--weights", "a=0"), "nothing can be mixed")
    refused(in_process("mix", run, "--temperature", 0), "above 0")
    refused(in_process("mix", run, run), "named twice")
    refused(in_process("mix", run, tmp_path), str(tmp_path))
    refused(in_process("mix", run, "--to", f"{tmp_path}/"), "give a file")


def test_runs_of_other_tokenizers_or_weights_are_not_mixed_by_themselves(run, other, tmp_path):
    foreign = make_run(tmp_path / "foreign", names=("d",), units=1, rows=4)
    run_json = foreign.read_json("_retok/run.json")
    manifest = foreign.read_json("_retok/manifest.json")
    run_json["content"]["tokenizer"] = manifest["run"]["content"]["tokenizer"] = "u" * 64
    foreign.write_json("_retok/run.json", run_json)
    foreign.write_json("_retok/manifest.json", manifest)
    refused(in_process("mix", run, foreign.url), "different tokenizers")


def test_an_index_is_held_to_the_rows_that_were_mixed(tmp_path):
    folder = make_run(tmp_path / "run", units=1, rows=10)
    file = tmp_path / "mixture.parquet"
    assert in_process("mix", folder.url, "--to", file).returncode == 0
    manifest = folder.read_json("_retok/manifest.json")
    manifest["content_digest"] = "0" * 64
    folder.write_json("_retok/manifest.json", manifest)
    assert read_manifest(folder).content_digest == "0" * 64
    with pytest.raises(OutputError, match="other rows"):
        open_mixture(str(file))
    with pytest.raises(OutputError, match="no index of a mixture"):
        open_mixture(open_dataset(folder.url).files[0])


# differences


def test_diff_ends_non_zero_and_says_which_rows_changed(run, tmp_path):
    assert in_process("remask", run, "--policy", "all", "--to", tmp_path / "all").returncode == 0
    done = in_process("diff", run, tmp_path / "all", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["asked"] == ["recipe.mask: was assistant, is all"]
    assert found["changed"] == 120
    assert found["changed_parts"] == {"loss_mask": 120}
    assert set(found["examples"]["changed"]) <= {row["sample_id"] for row in open_dataset(run)}
