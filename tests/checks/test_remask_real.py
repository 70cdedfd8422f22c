"""On real conversations and the real kernel: a mask from the segments is the mask of a fresh run."""

from __future__ import annotations

import shutil

import pytest
from distributed import Client, LocalCluster
from real_run import demo_recipe, run_recipe

from retok_dask.checks import validate
from retok_dask.checks.encoding import load_encoder
from retok_dask.datasets import diff, export, open_dataset, read_manifest, remask


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


def test_workers_of_a_cluster_do_it_too(original, tmp_path):
    shutil.copytree(original / "out", tmp_path / "out")
    load_encoder.cache_clear()
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        report = validate(str(tmp_path / "out"), full=True, client=client)
        assert report.passed, report.to_text()
        remask(str(tmp_path / "out"), "all", client=client)
        result = export(str(tmp_path / "out-all"), "npy", str(tmp_path / "npy"), shards=3, client=client)
    assert result.loss_tokens == result.tokens == open_dataset(str(tmp_path / "out")).num_tokens
