"""What is done with a written run: vocabularies, mixtures, differences, and a step of training."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from factory import VOCABULARY, FakeUnit, make_batch, make_fingerprint, make_recipe, make_run, write_unit
from hypothesis import given
from hypothesis import strategies as st

from retok_dask.datasets import (
    OutputFolder,
    diff,
    differences,
    draft_vocabulary,
    mix,
    mixing,
    open_dataset,
    read_receipts,
    remask,
    rows,
    start_run,
    token_counts,
    write_manifest,
)
from retok_dask.datasets import TokenCounts as Counts
from retok_dask.datasets.exits.base import IGNORED, shifted_targets
from retok_dask.datasets.vocabulary import coverage_curve, total_counts
from retok_dask.errors import OutputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    make_run(path, names=("a", "b"), units=2, rows=30)
    return str(path)


# vocabulary tables


def by_hand(rows) -> tuple[Counter, Counter]:
    every, trained = Counter(), Counter()
    for row in rows:
        every.update(row["input_ids"].tolist())
        trained.update(row["input_ids"][row["loss_mask"]].tolist())
    return every, trained


def test_token_counts_come_from_the_run_itself(run):
    data = open_dataset(run)
    found = token_counts(data)
    for name in ("a", "b"):
        every, trained = by_hand(data.filter(name))
        assert {n: c for n, c in enumerate(found[name].count.tolist()) if c} == every
        assert {n: c for n, c in enumerate(found[name].trained.tolist()) if c} == trained
    total = total_counts(found.values())
    assert total.count.sum() == data.num_tokens
    assert total.trained.sum() == data.num_loss_tokens


def test_units_without_their_own_counts_are_read(run):
    data = open_dataset(run)
    counted = token_counts(data)["a"]
    from dataclasses import replace

    bare = [replace(unit, outputs=tuple(f for f in unit.outputs if f.role == "samples")) for unit in data.units]
    read = token_counts(data._with(units=tuple(bare)))["a"]
    assert read.count.tolist() == counted.count.tolist()
    assert read.trained.tolist() == counted.trained.tolist()


def test_a_draft_vocabulary_by_the_drafters_own_convention(run):
    total = total_counts(token_counts(open_dataset(run)).values())
    draft = draft_vocabulary(total, 100, VOCABULARY, always=[0, 999])
    assert {0, 999} <= set(draft.tokens.tolist())
    # what EAGLE-3 code does with the maps
    target_of = np.arange(100) + draft.d2t
    assert target_of.tolist() == draft.tokens.tolist()
    assert np.flatnonzero(draft.t2d).tolist() == draft.tokens.tolist()
    assert len(draft.t2d) == VOCABULARY
    assert draft.coverage == pytest.approx(total.trained[draft.tokens].sum() / total.trained.sum())
    best = draft_vocabulary(total, 100, VOCABULARY)
    assert best.coverage == pytest.approx(coverage_curve(total.trained, [100])[0])
    assert best.coverage >= draft.coverage


def test_a_draft_vocabulary_larger_than_what_occurs_is_filled_up(tmp_path):
    draft = draft_vocabulary(Counts(np.array([0, 0, 5, 1]), np.array([0, 0, 5, 1])), 3, 10)
    assert draft.tokens.tolist() == [0, 2, 3]
    assert draft.coverage == 1.0
    draft.save(tmp_path)
    assert np.load(tmp_path / "d2t.npy").tolist() == [0, 1, 1]
    with pytest.raises(OutputError, match="does not fit"):
        draft_vocabulary(Counts(), 11, 10)


@given(st.lists(st.integers(0, 50), max_size=30))
def test_coverage_grows_to_one(counts):
    curve = coverage_curve(np.array(counts, np.int64), range(len(counts) + 1))
    assert curve == sorted(curve)
    assert curve[-1] in (0.0, 1.0)


# mixing


def owners(data, mixture) -> Counter:
    per_row = np.repeat([unit.dataset for unit in data.units], data.rows_by_unit())
    return Counter(per_row[mixture.order].tolist())


def test_a_plain_mixture_is_every_row_once(run):
    data = open_dataset(run)
    mixture = mix(data)
    assert sorted(mixture.order.tolist()) == list(range(len(data)))
    assert mixture.order.tolist() != list(range(len(data)))
    assert mixture[0]["sample_id"] == data[int(mixture.order[0])]["sample_id"]


def test_weights_temperature_and_epochs(run):
    data = open_dataset(run)
    assert owners(data, mix(data, {"a": 1, "b": 3}, by="rows")) == {"a": 30, "b": 90}
    double = mix(data, {"a": 1.0}, by="rows", epochs=1.0)
    assert owners(data, double) == {"a": 120}
    assert double.shares["a"].epochs == 2.0
    assert Counter(double.order.tolist()) == dict.fromkeys(range(60), 2)
    uneven = data.filter("b")
    assert len(mix(uneven, epochs=2.5, by="rows")) == 150


def test_temperature_evens_sizes_out(tmp_path):
    folder = make_run(tmp_path, names=("a", "b"), units=1, rows=80, manifest=False)
    folder.remove([folder.data("b", "b-00000"), folder.receipt("b-00000")])
    write_unit(
        folder,
        FakeUnit("b-00000", "b"),
        [make_batch(20, dataset="b")],
        fingerprint=read_receipts(folder)["a-00000"].fingerprint,
    )
    write_manifest(folder, read_receipts(folder))
    data = open_dataset(folder.url)
    assert owners(data, mix(data, by="rows")) == {"a": 80, "b": 20}
    warm = owners(data, mix(data, by="rows", temperature=2.0))
    hot = owners(data, mix(data, by="rows", temperature=1e9))
    assert warm == {"a": 67, "b": 33}
    assert hot == {"a": 50, "b": 50}


def test_shares_can_be_of_tokens(run):
    data = open_dataset(run)
    mixture = mix(data, {"a": 1, "b": 3}, by="tokens", epochs=3)
    sizes = {name: sum(u.summary["tokens"] for u in data.units if u.dataset == name) for name in ("a", "b")}
    wanted = {"a": sizes["a"], "b": 3 * sizes["b"]}
    tokens = Counter()
    names = np.repeat([unit.dataset for unit in data.units], data.rows_by_unit())
    lengths = np.array([row["num_tokens"] for row in data])
    for place in mixture.order.tolist():
        tokens[names[place]] += lengths[place]
    share = tokens["b"] / tokens.total()
    assert share == pytest.approx(wanted["b"] / sum(wanted.values()), abs=0.02)
    assert tokens.total() == pytest.approx(3 * sum(sizes.values()), rel=0.03)


def test_the_order_is_the_same_for_the_same_seed_and_resumable(run):
    data = open_dataset(run).select(["sample_id"])
    assert mix(data, seed=3).order.tolist() == mix(data, seed=3).order.tolist() != mix(data, seed=4).order.tolist()
    mixture = mix(data)
    whole = [row["sample_id"] for row in mixture.iterate(rank=1, world_size=3)]
    assert [row["sample_id"] for row in mixture.iterate(rank=1, world_size=3, start=5)] == whole[5:]
    everything = [row["sample_id"] for r in range(3) for row in mixture.iterate(rank=r, world_size=3)]
    assert sorted(everything) == sorted(row["sample_id"] for row in data)


def plain(row: dict) -> dict:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


@pytest.mark.parametrize("tokens", [1, 300, 1 << 23])
def test_a_mixture_is_gone_through_in_its_order_however_far_it_reads_ahead(run, tmp_path, monkeypatch, tokens):
    other = tmp_path / "other"
    make_run(other, names=("c",), units=3, rows=12)
    mixture = mix([open_dataset(run).filter(min_tokens=20), open_dataset(str(other))], epochs=1.7, seed=5)
    wanted = [plain(mixture[place]) for place in range(len(mixture))]
    monkeypatch.setattr(mixing, "AHEAD_TOKENS", tokens)
    assert [plain(row) for row in mixture.iterate()] == wanted
    assert [plain(row) for row in mixture.iterate(rank=1, world_size=3, start=4)] == wanted[1::3][4:]


def test_the_next_rows_of_a_mixture_are_read_a_row_group_once(run, monkeypatch):
    data = open_dataset(run)
    mixture = mix(data, epochs=3, seed=2)
    opened = Counter()
    open_input = OutputFolder.open_input

    def counted(folder, path):
        opened[path] += 1
        return open_input(folder, path)

    monkeypatch.setattr(OutputFolder, "open_input", counted)
    monkeypatch.setattr(rows, "CACHED_GROUPS", 1)
    assert sum(1 for _ in mixture.iterate()) == len(mixture) > len(data)
    assert len(opened) == len(data.units)
    assert max(opened.values()) == 2  # for its footer, and for its only row group


def test_mixtures_that_make_no_sense_are_refused(run):
    data = open_dataset(run)
    for weights, changes in (({"c": 1.0}, {}), ({"a": -1.0}, {}), ({"a": 0.0}, {}), (None, {"temperature": 0})):
        with pytest.raises(OutputError):
            mix(data, weights, **changes)


# differences


def test_the_same_run_twice_differs_in_nothing(run, tmp_path):
    other = make_run(tmp_path, names=("a", "b"), units=2, rows=30)
    found = diff(run, other.url)
    assert found.same_rows
    assert found.asked == []
    assert found.counted == {}
    assert "rows: the same" in found.to_text()


def test_another_mask_changes_masks_alone(run, tmp_path, monkeypatch):
    remask(run, "all", str(tmp_path / "all"))
    found = diff(run, str(tmp_path / "all"))
    assert found.asked == ["recipe.mask: was assistant, is all"]
    assert (found.only_first, found.only_second) == (0, 0)
    assert found.changed_parts == {"loss_mask": found.changed}
    assert f"changed in loss_mask: {found.changed} rows\n" in found.to_text()
    monkeypatch.setattr(differences, "LOOKED_AT", 2)
    few = diff(run, str(tmp_path / "all"))
    assert few.changed == found.changed
    assert "changed in loss_mask: 2 rows, of 2 that were looked at" in few.to_text()
    assert found.changed == 120
    assert found.counted["a.loss_tokens"][0] < found.counted["a.loss_tokens"][1]
    assert "recipe.mask" in found.to_text()
    assert found.to_dict()["same_rows"] is False


def test_rows_that_are_gone_or_new_are_named(tmp_path):
    urls = []
    for name, first in (("x", 0), ("y", 4)):
        folder = OutputFolder(str(tmp_path / name))
        recipe = make_recipe(folder.url)
        start_run(folder, make_fingerprint(recipe), recipe)
        whole = make_batch(20, seed=1)
        whole.samples = whole.samples.slice(first, 16)
        part = make_batch(16, seed=1)
        part.stats.samples, part.stats.tokens = 16, sum(whole.samples.column("num_tokens").to_pylist())
        part.stats.loss_tokens = sum(whole.samples.column("num_loss_tokens").to_pylist())
        part.samples = whole.samples
        write_unit(folder, FakeUnit("u"), [part])
        write_manifest(folder, read_receipts(folder))
        urls.append(folder.url)
    found = diff(*urls)
    assert (found.only_first, found.only_second, found.changed) == (4, 4, 0)
    assert len(found.examples["only_first"]) == 4


# a step of training


class TinyModel:
    """Next-token prediction by one table: the row of a token holds the scores of what follows."""

    def __init__(self, vocabulary: int) -> None:
        self.scores = np.zeros((vocabulary, vocabulary))
        self.touched = np.zeros(vocabulary, bool)

    def step(self, ids, targets, rate: float) -> tuple[float, int]:
        """One gradient step on one row; gives the loss summed over targets, and their number."""
        places = np.flatnonzero(targets != IGNORED)
        if not len(places):
            return 0.0, 0
        scores = self.scores[ids[places]]
        scores = scores - scores.max(axis=1, keepdims=True)
        chance = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        wanted = targets[places]
        loss = -np.log(chance[np.arange(len(places)), wanted]).sum()
        chance[np.arange(len(places)), wanted] -= 1
        np.subtract.at(self.scores, ids[places], rate * chance)
        self.touched[wanted] = True
        return float(loss), len(places)


def test_a_model_overfits_the_trained_tokens_and_sees_no_others(tmp_path):
    folder = make_run(tmp_path, units=1, rows=12)
    data = open_dataset(folder.url).select(["input_ids", "loss_mask", "num_loss_tokens"])
    model = TinyModel(VOCABULARY)
    losses = []
    for _ in range(60):
        total, count = 0.0, 0
        for row in data.iterate():
            loss, targets = model.step(row["input_ids"], shifted_targets(row["input_ids"], row["loss_mask"]), rate=2.0)
            total, count = total + loss, count + targets
        losses.append(total / count)
    assert count == sum(row["num_loss_tokens"] for row in data)
    assert losses[0] == pytest.approx(np.log(VOCABULARY), rel=0.05)
    assert losses[-1] < losses[0] / 20
    trained = {t for row in data for t in row["input_ids"][row["loss_mask"]].tolist()}
    assert set(np.flatnonzero(model.touched).tolist()) == trained
    untrained = {t for row in data for t in row["input_ids"].tolist()} - trained
    assert untrained
    # scores of a token that is never a target only ever went down
    assert (model.scores[:, sorted(untrained)] <= 0).all()
