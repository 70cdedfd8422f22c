"""Reading from a real S3 server: many files, blocks fetched ahead, faults, and errors that name the way out."""

from __future__ import annotations

import gzip
import pickle
import time

import orjson
import pyarrow.parquet as pq
import pytest
import stamina
from faultproxy import FaultProxy
from reading import read_all, recipe_for, rejects, values
from s3server import KEY, SECRET
from test_inputs_columnar import chats

from retok_dask.completions import compare_listings, list_inputs, open_fs, read_records
from retok_dask.completions.storage import forget_sessions, is_transient, retrying
from retok_dask.errors import InputChanged, InputError, StorageError

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def _fresh_sessions(s3):
    forget_sessions(s3.url(""))
    yield
    forget_sessions(s3.url(""))


@pytest.fixture
def faults(s3):
    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def short_pauses():
    with stamina.set_testing(True, attempts=6):
        yield


def rows(count, start=0):
    return [{"n": n, "t": "é" * (n % 50)} for n in range(start, start + count)]


def jsonl(values):
    return b"\n".join(map(orjson.dumps, values)) + b"\n"


def source(s3, pattern, **kwargs):
    return recipe_for(s3.url(pattern), storage=s3.storage, **kwargs)


def test_the_drafters_shape_many_jsonl_files(s3, monkeypatch):
    monkeypatch.setattr("retok_dask.completions.blocks.REMOTE_BLOCK", 3_000)
    for number in range(30):
        s3.put(f"completions/part-{number:04d}.jsonl", jsonl(rows(50, 50 * number)))
    s3.put("completions/other/x.jsonl", jsonl(rows(1)))
    for unit_bytes in ("1kB", "128MiB"):
        found = read_all(source(s3, "completions/*.jsonl", units={"bytes": unit_bytes}))
        assert values(found) == rows(1500)
        assert not rejects(found)
    listing = list_inputs(source(s3, "completions/*.jsonl"))
    assert len(listing.files) == 30
    assert all(entry.etag and entry.mtime and entry.url.startswith("s3://") for entry in listing.files)


def test_download_goes_on_while_records_are_worked_on(s3, faults, monkeypatch):
    monkeypatch.setattr("retok_dask.completions.blocks.REMOTE_BLOCK", 20_000)
    for number in range(30):
        s3.put(f"small/{number:02d}.jsonl", jsonl(rows(10)))
    s3.put("large/x.jsonl", jsonl(rows(5000)))
    for folder, least in (("small", 8), ("large", 3)):
        recipe = recipe_for(s3.url(f"{folder}/*"), storage=s3.storage | {"endpoint_url": faults.endpoint})
        (unit,) = list_inputs(recipe).units
        before = len(faults.log)
        records = read_records(unit, recipe.datasets[0], recipe)
        next(records)
        for _ in range(200):
            if len(faults.log) - before >= least:
                break
            time.sleep(0.02)
        assert least <= len(faults.log) - before <= least + 2
        assert sum(1 for _ in records) + 1 == (300 if folder == "small" else 5000)


def test_the_listing_of_many_objects_takes_a_few_requests(s3, faults):
    for number in range(1805):
        s3.put(f"completions/part-{number:04d}.jsonl", b"{}\n")
    recipe = recipe_for(s3.url("completions/*.jsonl"), storage=s3.storage | {"endpoint_url": faults.endpoint})
    assert len(list_inputs(recipe).files) == 1805
    assert len(faults.log) <= 6


def test_all_formats_and_ways_to_name_files(s3, monkeypatch):
    monkeypatch.setattr("retok_dask.completions.blocks.REMOTE_BLOCK", 1_000)
    s3.put("a/x.jsonl.gz", gzip.compress(jsonl(rows(500))))
    s3.put("a/y.json", orjson.dumps(rows(300)))
    pq.write_table(chats(400), s3.folder / "a/z.parquet", row_group_size=37)
    s3.put("list.txt", b"a/x.jsonl.gz\na/y.json\n")
    assert values(read_all(source(s3, "a/x.jsonl.gz"))) == rows(500)
    assert values(read_all(source(s3, "a/y.json"))) == rows(300)
    assert values(read_all(source(s3, "a/z.parquet"))) == chats(400).to_pylist()
    assert values(read_all(source(s3, "a/z.parquet", units={"bytes": 3_000}))) == chats(400).to_pylist()
    assert len(values(read_all(source(s3, "a")))) == 1200
    assert len(values(read_all(recipe_for("@" + s3.url("list.txt"), storage=s3.storage)))) == 800


def test_a_manifest_of_many_files_lists_their_folder_once(s3, faults):
    names = [f"m/{n:03d}.jsonl" for n in range(40)]
    for name in names:
        s3.put(name, jsonl(rows(1)))
    s3.put("list.txt", "\n".join(names).encode())
    recipe = recipe_for("@" + s3.url("list.txt"), storage=s3.storage | {"endpoint_url": faults.endpoint})
    assert len(list_inputs(recipe).files) == 40
    assert len(faults.log) < 12


def test_a_changed_object_is_seen(s3):
    s3.put("a/x.jsonl", jsonl(rows(3)))
    old = list_inputs(source(s3, "a/*"))
    s3.put("a/x.jsonl", jsonl(rows(3, 1)))
    s3.put("a/y.jsonl", jsonl(rows(3)))
    s3.settle()
    change = compare_listings(old, list_inputs(source(s3, "a/*")))
    assert [len(change.changed), len(change.removed), len(change.new)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket/x.jsonl", ["no bucket 'no-such-bucket'", "endpoint"]),
        ("s3://no-such-bucket/*.jsonl", ["no file matches", "'s3://no-such-bucket' does not exist"]),
        ("s3://{0}/none.jsonl", ["there is no", "none.jsonl"]),
        ("s3://{0}/a/*.parquet", ["no file matches", "exists, so check the pattern"]),
    ],
)
def test_what_is_missing_is_named(s3, url, words):
    s3.put("a/x.jsonl", jsonl(rows(1)))
    with pytest.raises(InputError) as caught:
        list_inputs(recipe_for(url.format(s3.bucket), storage=s3.storage))
    assert all(word in str(caught.value) for word in words), caught.value


def test_wrong_and_missing_credentials_say_so_and_show_no_secret(s3, monkeypatch):
    s3.put("a/x.jsonl", jsonl(rows(1)))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
    with pytest.raises(StorageError, match="does not know the credentials") as caught:
        list_inputs(source(s3, "a/*"))
    assert "wrong-secret-value" not in str(caught.value)
    forget_sessions(s3.url(""))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageError, match="no credentials for"):
        list_inputs(source(s3, "a/*"))


def test_an_endpoint_where_nobody_answers(s3, monkeypatch, short_pauses):
    recipe = recipe_for(s3.url("a/*"), storage={"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(StorageError, match=r"reading .* failed"):
        list_inputs(recipe)


# F09
def test_faults_that_pass_are_retried(s3, faults, short_pauses, monkeypatch):
    monkeypatch.setattr("retok_dask.completions.blocks.REMOTE_BLOCK", 2_000)
    s3.put("a/x.jsonl", jsonl(rows(1000)))
    recipe = recipe_for(s3.url("a/*"), storage=s3.storage | {"endpoint_url": faults.endpoint})
    kinds = [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), "cut"]
    listing = list_inputs(recipe)
    begin = len(faults.log)
    faults.script = lambda method, path, number: kinds[number // 3 % 4] if (number - begin) % 3 == 0 else None
    found = [r for unit in listing.units for r in read_records(unit, recipe.datasets[0], recipe)]
    assert values(found) == rows(1000)
    assert {fault for _, _, fault in faults.log[begin:]} >= set(kinds)


def test_a_refusal_that_stays_ends_soon_and_says_what_was_refused(s3, faults, short_pauses):
    s3.put("a/x.jsonl", jsonl(rows(1)))
    recipe = recipe_for(s3.url("a/*"), storage=s3.storage | {"endpoint_url": faults.endpoint})
    faults.script = lambda method, path, number: (403, "AccessDenied")
    with pytest.raises(StorageError, match=r"no permission to read .*a/\*"):
        list_inputs(recipe)
    assert len(faults.log) <= 2  # found when listing, without patience


# F08
def test_expired_credentials_are_renewed_from_where_they_come(s3, faults, short_pauses, monkeypatch):
    s3.put("a/x.jsonl", jsonl(rows(20)))
    recipe = recipe_for(s3.url("a/*"), storage=s3.storage | {"endpoint_url": faults.endpoint})
    listing = list_inputs(recipe)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    forget_sessions(s3.url(""))

    def expired(method, path, number):
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)  # somebody renews them meanwhile
        return (400, "ExpiredToken") if number == begin else None

    begin = len(faults.log)
    faults.script = expired
    (unit,) = listing.units
    assert values(list(read_records(unit, recipe.datasets[0], recipe))) == rows(20)
    faults.script = lambda method, path, number: (400, "ExpiredToken")
    with pytest.raises(StorageError, match=r"credentials for .*x\.jsonl.* have expired; renew"):
        list(read_records(unit, recipe.datasets[0], recipe))


def test_units_and_listings_carry_no_secret_and_no_session(s3):
    s3.put("a/x.jsonl", jsonl(rows(1)))
    listing = list_inputs(source(s3, "a/*"))
    for data in (pickle.dumps(listing), listing.to_json()):
        assert KEY.encode() not in data
        assert SECRET.encode() not in data


def test_one_call_is_tried_a_bounded_number_of_times(short_pauses):
    calls = []

    def call():
        calls.append(1)
        raise TimeoutError

    with pytest.raises(StorageError, match="TimeoutError"):
        retrying(call, "s3://b/k")
    assert len(calls) == 6
    assert not is_transient(FileNotFoundError())
    assert not is_transient(PermissionError(13, "local"))


def test_open_fs_reads_and_names_what_is_not_installed(s3):
    s3.put("a/x.jsonl", b"data")
    fs, path = open_fs(s3.url("a/x.jsonl"), source(s3, "a/*").storage)
    assert fs.cat_file(path) == b"data"
    with pytest.raises(StorageError, match="cannot open"):
        open_fs("nosuchscheme://x/y")


@pytest.mark.parametrize("remote", [True, False])
def test_a_file_that_is_another_than_the_listed_one_is_refused(s3, tmp_path, monkeypatch, remote):
    """A change of equal size shows in its etag, or in the time of its change."""
    monkeypatch.setattr("retok_dask.completions.unchanged.LEAST_REMOTE", 0)
    s3.put("in/a.jsonl", jsonl(rows(20)))
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows(20)))
    recipe = source(s3, "in/a.jsonl") if remote else recipe_for(tmp_path / "a.jsonl")
    (unit,) = list_inputs(recipe).units
    assert type(unit).from_dict(unit.to_dict()) == unit
    assert len(list(read_records(unit, recipe.datasets[0], recipe))) == 20
    other = jsonl(rows(20)).replace(b'"n":7', b'"n":8')
    if remote:
        s3.put("in/a.jsonl", other)
    else:
        (tmp_path / "a.jsonl").write_bytes(other)
    with pytest.raises(InputChanged, match="has changed since the run listed it"):
        list(read_records(unit, recipe.datasets[0], recipe))
