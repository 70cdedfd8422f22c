"""Exports in their consumers' own code, as published, each in its own environment (`make test-consumers`)."""

from __future__ import annotations

import environments
import pytest
from factory import VOCABULARY, make_run

from retok_dask.datasets import export, open_dataset, vocabulary
from retok_dask.datasets.exits.base import IGNORED

pytestmark = [pytest.mark.consumers, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    make_run(path, names=("a", "b"), rows=70)
    return str(path)


@pytest.fixture(scope="module")
def truth(run):
    return [[row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()] for row in open_dataset(run)]


def labels_of(rows):
    return [[ids, [t if m else IGNORED for t, m in zip(ids, mask, strict=True)]] for ids, mask in rows]


def documents(packed):
    """Ids and labels of each document of packed rows, which begin where a position is 0."""
    for ids, labels, positions in packed:
        starts = [place for place, position in enumerate(positions) if position == 0]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            yield [ids[start:end], labels[start:end]]


def draft_maps(run, folder):
    return vocabulary(run, size=100, vocab_size=VOCABULARY, to=str(folder / "draft")).draft


@pytest.mark.parametrize("name", ["trl", "trl-assistant", "trl-completion"])
def test_trl(run, truth, tmp_path, name):
    export(run, name, str(tmp_path / f"tokens-{name}"), shards=2)
    found = environments.run("trl", "read_trl.py", name, folder=tmp_path)
    assert sorted(row[:2] for row in found["rows"]) == sorted(labels_of(truth))
    # an untrained model guesses among 1,000 tokens
    assert 6 < found["loss"] < 8


@pytest.mark.parametrize("name", ["trl", "trl-assistant", "trl-completion"])
def test_trl_packed(run, truth, tmp_path, name):
    export(run, name, str(tmp_path / f"tokens-{name}"), pack=128)
    found = environments.run("trl", "read_trl.py", name, "packed", folder=tmp_path)
    assert sorted(documents(found["rows"])) == sorted(labels_of(truth))


def test_axolotl(run, truth, tmp_path):
    export(run, "axolotl", str(tmp_path / "tokens-axolotl"), shards=2)
    assert environments.run("axolotl", "read_axolotl.py", folder=tmp_path)["rows"] == labels_of(truth)


def test_axolotl_packed(run, truth, tmp_path):
    export(run, "axolotl", str(tmp_path / "tokens-axolotl"), pack=128)
    found = environments.run("axolotl", "read_axolotl.py", folder=tmp_path)
    assert sorted(documents(found["rows"])) == sorted(labels_of(truth))


def test_model_optimizer(run, truth, tmp_path):
    export(run, "modelopt", str(tmp_path / "tokens-modelopt"), shards=2)
    assert environments.run("modelopt", "read_modelopt.py", folder=tmp_path)["rows"] == truth


def test_specforge(run, truth, tmp_path):
    export(run, "specforge", str(tmp_path / "tokens-specforge"), shards=2)
    export(run, "specforge-prompts", str(tmp_path / "tokens-specforge-prompts"), shards=1)
    draft_maps(run, tmp_path)
    found = environments.run("specforge", "read_specforge.py", folder=tmp_path)
    assert found["rows"] == truth
    # a row without a trained token is nothing to train on, and SpecForge leaves it out
    assert found["online"] == [row for row in truth if any(row[1])]
    # of equally frequent tokens SpecForge takes whichever it met first
    assert found["covered"][0] == found["covered"][1]


def test_speculators(run, truth, tmp_path):
    export(run, "speculators", str(tmp_path / "tokens-speculators"), shards=2)
    draft_maps(run, tmp_path)
    found = environments.run("speculators", "read_speculators.py", folder=tmp_path)
    assert [row[:2] for row in found["rows"]] == truth
    assert all(positions == list(range(len(ids))) for ids, _, positions in found["rows"])
    assert found["lengths"] == [len(ids) for ids, _ in truth]
    assert found["same_maps"] == [True, True]


def test_megatron_nanotron_and_mosaic(run, truth, tmp_path):
    for name in ("megatron", "nanotron", "mds"):
        export(run, name, str(tmp_path / f"tokens-{name}"), shards=1)
    found = environments.run("others", "read_others.py", folder=tmp_path)
    assert found["megatron"] == truth
    assert found["mds"] == truth
    stream = [token for ids, _ in truth for token in ids]
    whole = len(stream) // 4097
    assert whole >= 2
    assert found["nanotron"] == [stream[4097 * n : 4097 * (n + 1)] for n in range(whole)]


def test_torch_reads_a_run_through_its_data_loader(tmp_path):
    """And learns from it the trained tokens alone."""
    run = make_run(tmp_path / "run", units=2, rows=10)
    truth = [[row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()] for row in open_dataset(run.url)]
    torch = environments.python("torch").parents[1]
    found = environments.run(None, "read_loader.py", run.url, torch, folder=tmp_path)
    assert found["map"] == found["plain"] == truth
    assert sorted(found["ranks"]) == sorted(truth)
    trained = {token for ids, mask in truth for token, hit in zip(ids, mask, strict=True) if hit}
    assert found["targets"] == sum(sum(mask) for _, mask in truth)
    assert found["losses"][-1] < found["losses"][0] / 10
    assert set(found["learned"]) == trained
