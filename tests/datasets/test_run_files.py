"""Fingerprint, lock and manifest: one run a folder, one client a run, and numbers that add up."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os

import pytest
from factory import (
    FakeDigest,
    FakeFile,
    FakeListing,
    FakeUnit,
    make_batch,
    make_fingerprint,
    make_recipe,
    make_run,
    write_unit,
)

from retok_dask.datasets import (
    Fingerprint,
    OutputFolder,
    OutputLock,
    check_fingerprint,
    read_fingerprint,
    read_manifest,
    read_receipts,
    read_recipe,
    read_run,
    start_run,
    write_manifest,
)
from retok_dask.errors import (
    FingerprintMismatch,
    OutputError,
    OutputLocked,
    RecipeError,
    StorageError,
    UnfinishedOutput,
)
from retok_dask.kernel import UnitStats

RECIPE = make_recipe("out")
FILES = [FakeFile("a.jsonl", 10, etag="e1"), FakeFile("b.jsonl", 20, mtime=2.0)]


def fingerprint(recipe=RECIPE, files=FILES, tokenizer="t", template="c", date=None) -> Fingerprint:
    return Fingerprint.of(recipe, FakeListing(list(files)), FakeDigest(tokenizer), FakeDigest(template), date=date)


@pytest.fixture
def started(tmp_path):
    folder = OutputFolder(str(tmp_path))
    start_run(folder, fingerprint(), RECIPE)
    return folder


def test_an_empty_folder_is_free(tmp_path):
    assert check_fingerprint(OutputFolder(str(tmp_path / "new")), fingerprint()) is False


def test_a_folder_with_foreign_data_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.parquet").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"data/x.parquet.*not written by a run"):
        check_fingerprint(OutputFolder(str(tmp_path)), fingerprint())


def test_the_same_run_goes_on(started):
    assert check_fingerprint(started, fingerprint()) is True
    assert read_fingerprint(started) == fingerprint()


CHANGES = {
    "recipe.max_length: was None, is 512": {"recipe": make_recipe("out", max_length=512)},
    "recipe.mask: was assistant, is all": {"recipe": make_recipe("out", mask="all")},
    "recipe.template.kwargs.enable_thinking": {
        "recipe": make_recipe("out", template={"kwargs": {"enable_thinking": True}})
    },
    "tokenizer: was t, is u": {"tokenizer": "u"},
    "template: was c, is d": {"template": "d"},
    "recipe.date: was None, is 2026-01-02": {"date": dt.date(2026, 1, 2)},
    "changed input 'a.jsonl' of data set 'data'": {"files": [FakeFile("a.jsonl", 10, etag="e2"), FILES[1]]},
    "changed input 'b.jsonl'": {"files": [FILES[0], FakeFile("b.jsonl", 20, mtime=3.0)]},
    "missing input 'b.jsonl'": {"files": FILES[:1]},
    "new input 'c.jsonl'": {"files": [*FILES, FakeFile("c.jsonl", 1)]},
    "new data set 'more'": {"recipe": make_recipe("out", ("data", "more"))},
    "missing data set 'data'": {"recipe": make_recipe("out", ("more",))},
    "recipe.datasets.data.mode: was chat, is text": {
        "recipe": make_recipe("out", datasets=[{"name": "data", "input": "data/*.jsonl", "mode": "text"}])
    },
}


@pytest.mark.parametrize("said", CHANGES)
def test_whatever_changes_tokens_refuses_and_is_named(started, said):
    with pytest.raises(FingerprintMismatch, match="--restart") as caught:
        check_fingerprint(started, fingerprint(**CHANGES[said]))
    assert said in str(caught.value)
    assert ("--extend" in str(caught.value)) == said.startswith("new input")


def test_a_new_data_set_is_named_with_a_way_that_keeps_what_is_written(started):
    more = fingerprint(make_recipe("out", ("data", "more")), files=[*FILES, FakeFile("m.jsonl", 1, "more")])
    with pytest.raises(FingerprintMismatch, match="retok mix") as caught:
        check_fingerprint(started, more, extend=True)
    assert "new data set 'more'; new input 'm.jsonl' of data set 'more'" in str(caught.value)


def test_data_sets_in_another_order_are_another_recipe(tmp_path):
    folder = OutputFolder(str(tmp_path))
    start_run(folder, fingerprint(make_recipe("out", ("a", "b"))), make_recipe("out", ("a", "b")))
    with pytest.raises(FingerprintMismatch, match="another order: b, a"):
        check_fingerprint(folder, fingerprint(make_recipe("out", ("b", "a"))))


def test_another_library_version_refuses(started):
    other = dataclasses.replace(fingerprint(), versions=fingerprint().versions | {"tokenizers": "0.1"})
    with pytest.raises(FingerprintMismatch, match=r"version of tokenizers: was .*, is 0\.1"):
        check_fingerprint(started, other)


def test_new_files_extend_a_run_and_nothing_else_does(started):
    more = [*FILES, FakeFile("c.jsonl", 1)]
    assert check_fingerprint(started, fingerprint(files=more), extend=True) is True
    with pytest.raises(FingerprintMismatch):
        check_fingerprint(started, fingerprint(files=more, tokenizer="u"), extend=True)
    assert fingerprint(files=more).digest == fingerprint().digest


@pytest.mark.parametrize(
    "recipe",
    [
        make_recipe("elsewhere"),
        make_recipe("out", cluster={"workers": 3}),
        make_recipe("out", engine="reference"),
        make_recipe("out", max_reject_share=0.5),
    ],
    ids=["output", "cluster", "engine", "limit"],
)
def test_what_cannot_change_tokens_does_not_refuse(started, recipe):
    assert check_fingerprint(started, fingerprint(recipe)) is True


def test_many_changed_files_are_counted(started, tmp_path):
    folder = OutputFolder(str(tmp_path / "many"))
    start_run(folder, fingerprint(files=[FakeFile(f"{i:03}", 1) for i in range(50)]), RECIPE)
    with pytest.raises(FingerprintMismatch, match="changed input: 45 more"):
        check_fingerprint(folder, fingerprint(files=[FakeFile(f"{i:03}", 2) for i in range(50)]))


def test_run_json_says_what_could_change_a_token(started):
    run = read_run(started)
    assert run["content"]["tokenizer"] == "t"
    assert run["inputs"]["bytes"] == 30
    assert {"python", "unicode", "transformers", "tokenizers", "fastokens", "minijinja"} <= run["versions"].keys()


def test_the_recipe_of_a_run_is_read_as_it_was_written(started):
    assert read_recipe(started) == RECIPE


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, OutputError, "holds no recipe.yaml"),
        (b"a: [", RecipeError, "cannot read the recipe '.*recipe.yaml'"),
        (b"\xff", RecipeError, "cannot read the recipe"),
        (b"[]", RecipeError, "recipe.yaml: a recipe is a mapping"),
        (b"tokenizers: x", RecipeError, "Did you mean 'tokenizer'"),
    ],
)
def test_a_recipe_that_a_run_did_not_write_is_refused_with_its_place(started, text, error, said):
    started.remove(["_retok/recipe.yaml"])
    if text is not None:
        started.write_bytes("_retok/recipe.yaml", text)
    with pytest.raises(error, match=said):
        read_recipe(started)


def test_no_secret_of_the_environment_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush-key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAHUSH")
    make_run(tmp_path, storage={"endpoint_url": "http://127.0.0.1:1"})
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hush" not in written
    assert b"AKIAHUSH" not in written


@pytest.mark.parametrize(
    "place",
    [
        {"output": "s3://AKIA:hush-hush@bucket/out"},
        {"output": "https://host/out?X-Amz-Signature=hush-hush"},
        {"datasets": [{"name": "data", "input": ["ok.jsonl", "sftp://me:hush-hush@host/*.jsonl"]}]},
        {"storage": {"endpoint_url": "http://key:hush-hush@127.0.0.1:9000"}},
        {"storage": {"secret": "hush-hush"}},
    ],
)
def test_credentials_in_a_recipe_are_refused_and_not_repeated(place):
    with pytest.raises(RecipeError) as caught:
        make_recipe("out", **place)
    assert "hush" not in str(caught.value)


def test_credentials_in_a_listed_file_are_refused_before_they_are_written():
    with pytest.raises(RecipeError, match="data set 'data'") as caught:
        fingerprint(files=[FakeFile("s3://AKIA:hush-hush@bucket/a.jsonl", 1)])
    assert "hush" not in str(caught.value)


def test_a_foreign_run_json_is_refused(tmp_path):
    (tmp_path / "_retok").mkdir()
    (tmp_path / "_retok/run.json").write_text('{"a": 1}')
    with pytest.raises(OutputError, match=r"no run\.json of retok"):
        check_fingerprint(OutputFolder(str(tmp_path)), fingerprint())


# the lock


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["local", "memory"])
def lock_folder(request, tmp_path):
    return OutputFolder(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/lock")


def test_a_second_client_is_refused_and_told_who_writes(lock_folder):
    first, second = OutputLock(lock_folder), OutputLock(lock_folder)
    first.acquire()
    with pytest.raises(OutputLocked, match=f"process {os.getpid()} on "):
        second.acquire()
    first.release()
    second.acquire()
    assert second.holder().owner == second.owner


def test_a_lock_without_heartbeat_is_taken_over_and_the_old_holder_notices(lock_folder):
    clock = Clock()
    first, second = OutputLock(lock_folder, clock=clock), OutputLock(lock_folder, clock=clock)
    first.acquire()
    clock.now += 50
    first.refresh()
    clock.now += 50
    with pytest.raises(OutputLocked):
        second.acquire()
    clock.now += 11
    second.acquire()
    with pytest.raises(OutputLocked):
        first.refresh()
    first.release()
    assert second.holder().owner == second.owner


def test_the_lock_of_a_dead_process_of_this_host_ends_at_once(lock_folder):
    first = OutputLock(lock_folder)
    first.acquire()
    held = json.loads(lock_folder.read_bytes("_retok/lock.json"))
    lock_folder.write_json("_retok/lock.json", held | {"pid": 2**22 + 1})
    second = OutputLock(lock_folder)
    second.acquire()
    assert second.holder().pid == os.getpid()


def test_a_damaged_lock_does_not_lock_for_ever(lock_folder):
    lock_folder.write_bytes("_retok/lock.json", b"{")
    lock = OutputLock(lock_folder)
    lock.acquire()
    assert lock.holder().owner == lock.owner


def test_a_file_is_created_once_and_a_refusal_is_explained(lock_folder, tmp_path):
    lock_folder.create_bytes("once.json", b"1")
    with pytest.raises(FileExistsError, match=r"once\.json"):
        lock_folder.create_bytes("once.json", b"2")
    assert lock_folder.read_bytes("once.json") == b"1"
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        OutputFolder(str(tmp_path / "file" / "out")).create_bytes("lock.json", b"1")


def test_a_live_lock_can_be_taken_on_purpose(lock_folder):
    first, second = OutputLock(lock_folder), OutputLock(lock_folder)
    first.acquire()
    second.acquire(takeover=True)
    with pytest.raises(OutputLocked):
        first.refresh()


# the manifest


def test_the_manifest_sums_up_the_receipts(tmp_path):
    folder = make_run(tmp_path, names=("a", "b"), units=3, rejects=2)
    manifest = read_manifest(folder)
    receipts = read_receipts(folder)
    assert manifest.rows == sum(r.summary["rows"] for r in receipts.values()) == 120
    assert manifest.total.records_in == 120 + 12
    assert manifest.total.rejected == {"bad_json": 12}
    assert manifest.datasets["a"] + manifest.datasets["b"] == manifest.total
    assert list(manifest.units) == sorted(receipts)
    assert type(manifest).from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_the_content_of_a_run_does_not_depend_on_its_units(tmp_path):
    whole = make_run(tmp_path / "whole", units=0, manifest=False)
    cut = make_run(tmp_path / "cut", units=0, manifest=False)
    first, second = make_batch(10, seed=1), make_batch(10, seed=2, first=10)
    write_unit(whole, FakeUnit("u"), [first, second])
    write_unit(cut, FakeUnit("v"), [second])
    write_unit(cut, FakeUnit("w"), [first])
    digests = {write_manifest(f, read_receipts(f)).content_digest for f in (whole, cut)}
    assert len(digests) == 1


def test_a_missing_unit_is_refused_and_a_failed_one_recorded(tmp_path):
    folder = make_run(tmp_path, units=2, manifest=False)
    receipts = read_receipts(folder)
    expected = [*receipts, "data-00009"]
    with pytest.raises(OutputError, match="'data-00009'"):
        write_manifest(folder, receipts, expected=expected)
    with pytest.raises(UnfinishedOutput, match="not finished"):
        read_manifest(folder)
    write_manifest(folder, receipts, expected=expected, failed={"data-00009": "disk full"})
    assert read_manifest(folder).failed == {"data-00009": "disk full"}


@pytest.mark.parametrize("name", ["records_in", "samples", "tokens", "loss_tokens"])
def test_numbers_that_do_not_add_up_are_refused(tmp_path, name):
    folder = make_run(tmp_path, units=2, manifest=False)
    receipts = read_receipts(folder)
    stats = receipts["data-00001"].stats
    receipts["data-00001"] = dataclasses.replace(receipts["data-00001"], stats=stats | {name: stats[name] + 1})
    with pytest.raises(OutputError, match=r"'data-00001' does not add up"):
        write_manifest(folder, receipts)


def test_a_folder_without_a_run_has_no_manifest(tmp_path):
    folder = OutputFolder(str(tmp_path))
    with pytest.raises(OutputError, match="holds no run"):
        read_manifest(folder)
    with pytest.raises(OutputError, match=r"no run\.json"):
        write_manifest(folder, {})


@pytest.mark.parametrize("text", ['{"format": "other"}', "[]", '{"format": "retok-manifest", "schema_version": 99}'])
def test_foreign_manifests_are_refused(tmp_path, text):
    folder = make_run(tmp_path)
    (tmp_path / "_retok/manifest.json").write_text(text)
    with pytest.raises(OutputError, match="manifest"):
        read_manifest(folder)


def test_statistics_of_a_run_are_those_of_its_units(tmp_path):
    folder = make_run(tmp_path, units=3, manifest=False)
    total = UnitStats()
    for receipt in read_receipts(folder).values():
        total += UnitStats.from_dict(receipt.stats)
    assert write_manifest(folder, read_receipts(folder)).total == total


def test_the_fingerprint_of_the_factory_is_stable():
    assert make_fingerprint(RECIPE).digest == make_fingerprint(make_recipe("other")).digest
