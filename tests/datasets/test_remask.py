"""Another mask from the segments equals a fresh run with that policy."""

from __future__ import annotations

import pytest
from factory import FakeBatch, FakeUnit, make_batch, make_run, write_unit

from retok_dask.datasets import (
    OutputFolder,
    open_dataset,
    read_fingerprint,
    read_manifest,
    read_receipts,
    remask,
    write_manifest,
)
from retok_dask.errors import FingerprintMismatch, OutputError, RecipeError
from retok_dask.kernel import UnitStats
from retok_dask.masks import LossMaskPolicy
from retok_dask.types import Kind


def trained_kinds(row: dict) -> set[str]:
    return {kind for start, end, kind, _ in row["segments"] if row["loss_mask"][start:end].any()}


def test_the_same_policy_gives_the_same_content(tmp_path):
    folder = make_run(tmp_path / "a", names=("x", "y"), rejects=1)
    first = remask(folder.url, "all", str(tmp_path / "all")).manifest
    back = remask(str(tmp_path / "all"), "assistant", str(tmp_path / "back")).manifest
    once = remask(folder.url, "assistant", str(tmp_path / "once")).manifest
    assert first.total.loss_tokens == first.total.tokens
    assert back.content_digest == once.content_digest
    assert back.total.to_dict() | {"seconds": None} == once.total.to_dict() | {"seconds": None}
    assert back.fingerprint == read_manifest(folder).fingerprint


@pytest.mark.parametrize("policy", ["final_answer", "last_assistant", ["content"], "all_but_system"])
def test_every_row_has_the_mask_of_the_policy(tmp_path, policy):
    folder = make_run(tmp_path / "a", units=2)
    remask(folder.url, policy, str(tmp_path / "b"))
    old = {row["sample_id"]: row for row in open_dataset(folder.url)}
    kinds = {kind.name for kind in LossMaskPolicy(policy).kinds}
    new = list(open_dataset(str(tmp_path / "b")))
    for row in new:
        assert trained_kinds(row) <= kinds
        assert row["num_loss_tokens"] == row["loss_mask"].sum() > 0
        before = old[row["sample_id"]]
        assert row["input_ids"].tolist() == before["input_ids"].tolist()
        assert row["segments"] == before["segments"]
    if policy == ["content"]:
        assert all(trained_kinds(row) == {"content"} for row in new)


def test_rows_without_trained_tokens_are_left_out_and_counted(tmp_path):
    folder = make_run(tmp_path / "a", rows=60, rejects=1, units=2)
    manifest = remask(folder.url, "assistant", str(tmp_path / "b")).manifest
    zero = sum(row["num_loss_tokens"] == 0 for row in open_dataset(folder.url))
    assert zero > 0
    assert manifest.total.filtered == {"no_trained_tokens": zero}
    assert manifest.total.balanced
    assert manifest.total.records_in == 122
    rejects = OutputFolder(str(tmp_path / "b")).sizes("rejects")
    assert len(rejects) == 2
    assert all(receipt.output("rejects") for receipt in read_receipts(OutputFolder(str(tmp_path / "b"))).values())


def test_flags_of_the_data_win_and_per_turn_rows_keep_their_turn(tmp_path):
    folder = make_run(tmp_path / "a", units=0, manifest=False)
    batch = make_batch(2, seed=3, length=(50, 60))
    rows = batch.samples.to_pylist()
    rows[0]["message_flags"] = "[null, false]"
    rows[1]["sample_id"] += "-t3"
    samples = batch.samples.from_pylist(rows, schema=batch.samples.schema)
    write_unit(folder, FakeUnit("u"), [FakeBatch(samples, batch.rejects, batch.stats)])
    write_manifest(folder, read_receipts(folder))
    remask(folder.url, "assistant", str(tmp_path / "b"))
    first, second = open_dataset(str(tmp_path / "b"))
    messages = [{m for s, e, _, m in row["segments"] if row["loss_mask"][s:e].any()} for row in (first, second)]
    assert 1 not in messages[0]
    assert 3 in messages[0]
    assert messages[1] == {3}


def test_the_default_folder_is_named_after_the_policy(tmp_path):
    folder = make_run(tmp_path / "a", units=1)
    remask(folder.url, ["content", "stop"])
    assert open_dataset(f"{folder.url}-content-stop").recipe.mask == ["content", "stop"]
    assert read_fingerprint(OutputFolder(f"{folder.url}-content-stop")).recipe["mask"] == ["content", "stop"]


def test_it_resumes_and_refuses_what_it_must(tmp_path):
    folder = make_run(tmp_path / "a", units=3)
    target = OutputFolder(str(tmp_path / "b"))
    remask(folder.url, "all", target.url)
    receipt = target.read_bytes("_retok/receipts/data-00000.json")
    target.remove(["data/data/data-00001.parquet", "_retok/manifest.json"])
    remask(folder.url, "all", target.url)
    assert target.read_bytes("_retok/receipts/data-00000.json") == receipt
    assert len(open_dataset(target.url)) == 60
    with pytest.raises(FingerprintMismatch, match=r"recipe\.mask"):
        remask(folder.url, "assistant", target.url)
    with pytest.raises(OutputError, match="itself"):
        remask(folder.url, "all", folder.url)
    with pytest.raises(RecipeError, match="no mask policy"):
        remask(folder.url, "assistent")


def test_statistics_follow_the_new_mask(tmp_path):
    folder = make_run(tmp_path / "a", units=1, rows=40)
    manifest = remask(folder.url, "all", str(tmp_path / "b")).manifest
    assert manifest.total.shares == {"19": 40}
    assert manifest.total.kind_tokens == read_manifest(folder).total.kind_tokens
    assert manifest.total.bos_rows == 40
    assert manifest.total.kind_tokens[Kind.bos.name] == 40


@pytest.mark.parametrize("gone", [True, False])
def test_counts_that_no_row_holds_fall_in_proportion_to_what_is_left(tmp_path, gone):
    """Bytes of text and tokens of bytes by tokens, rows of the reference engine by rows; exact where no row goes."""
    folder = make_run(tmp_path / "a", units=0, manifest=False)
    batch = make_batch(40, seed=5)
    batch.stats += UnitStats(byte_tokens=101, unknown_tokens=3, fallback_rows=40)
    write_unit(folder, FakeUnit("u"), [batch])
    write_unit(folder, FakeUnit("none"), [make_batch(0)])
    write_manifest(folder, read_receipts(folder))
    old = read_manifest(folder).total
    new = remask(folder.url, "assistant" if gone else "all", str(tmp_path / "b")).manifest.total
    assert (new.samples < old.samples) == gone
    assert new.tokens == sum(row["num_tokens"] for row in open_dataset(str(tmp_path / "b")))
    assert new.text_bytes == 4 * new.tokens, "each token of these has four"
    assert new.byte_tokens == 101 * new.tokens // old.tokens
    assert new.unknown_tokens == 3 * new.tokens // old.tokens
    assert new.fallback_rows == 40 * new.samples // old.samples
    if not gone:
        numbers = ("text_bytes", "byte_tokens", "unknown_tokens", "fallback_rows")
        assert [getattr(new, name) for name in numbers] == [getattr(old, name) for name in numbers]
