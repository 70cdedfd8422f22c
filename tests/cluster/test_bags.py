"""Completions and samples as bags, with and without a cluster."""

from __future__ import annotations

import pickle

import dask
import dask.bag
import pytest
from distributed import Client, LocalCluster
from smalldata import write_data

from retok_dask.cluster import encode, read_completions, run
from retok_dask.datasets import open_dataset
from retok_dask.errors import InputError, RecipeError
from retok_dask.types import Conversation, Reject


def test_completions_of_a_glob(tmp_path):
    data = write_data(tmp_path / "in", files=3, records=10, bad=1)
    with dask.config.set(scheduler="synchronous"):
        bag = read_completions(str(data / "*.jsonl"))
        found = bag.compute()
        assert len(found) == 30
        assert all(isinstance(item, Conversation) for item in found)
        everything = read_completions(str(data / "*.jsonl"), rejects=True).compute()
        assert sum(isinstance(item, Reject) for item in everything) == 3


def test_a_wrong_name_and_a_missing_input(make_recipe, tmp_path):
    with pytest.raises(RecipeError, match="Did you mean 'chat'"):
        read_completions(make_recipe(), dataset="chta")
    with pytest.raises(InputError):
        read_completions(str(tmp_path / "nothing*.jsonl"))


def test_encoded_samples_equal_those_of_a_run(make_recipe, tmp_path):
    recipe = make_recipe()
    run(recipe, progress="none")
    written = sorted(row["input_ids"].tolist() for row in open_dataset(recipe.output))
    settings = {
        "tokenizer": recipe.tokenizer.model_dump(),
        "template": recipe.template.model_dump(exclude_none=True),
        "engine": "reference",
    }
    bag = encode(read_completions(recipe), **settings)
    with dask.config.set(scheduler="synchronous"):
        assert sorted(row["input_ids"].tolist() for row in bag.compute()) == written
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        bag = encode(read_completions(recipe), **settings)
        assert len(pickle.dumps(dict(bag.__dask_graph__()))) < 100_000
        assert sorted(row["input_ids"].tolist() for row in bag.compute()) == written


def test_what_cannot_be_encoded_says_why(make_recipe):
    recipe = make_recipe()
    bad = Conversation([{"role": "nobody", "content": "x"}])
    good = Conversation([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    bag = dask.bag.from_sequence([bad, good], npartitions=1)
    settings = {
        "tokenizer": recipe.tokenizer.model_dump(),
        "template": recipe.template.model_dump(exclude_none=True),
        "engine": "reference",
    }
    with dask.config.set(scheduler="synchronous"):
        found = encode(bag, **settings).compute()
    assert sum("reason" in row for row in found) == 1
    assert sum("input_ids" in row for row in found) == 1
