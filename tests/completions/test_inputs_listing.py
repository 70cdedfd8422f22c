"""Listing: found by every way to name files, cut the same way each time, compared with what was there before."""

from __future__ import annotations

import json
import os

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_all, recipe_for, values

from retok_dask.completions import FileEntry, Listing, Part, Unit, compare_listings, list_inputs
from retok_dask.completions.units import FIRST_UNIT, group_parts
from retok_dask.errors import InputError
from retok_dask.recipe import Recipe


def fill(folder, names, size=100):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"a":"' + b"x" * (size - 9) + b'"}\n')


def names_of(listing, folder):
    return [entry.url.removeprefix(f"{folder}/") for entry in listing.files]


def test_globs_folders_files_lists_and_manifests(tmp_path, monkeypatch):
    fill(tmp_path, ["a.jsonl", "b.jsonl", "s/c.jsonl", "s/t/d.ndjson", "s/e.json", ".hidden/x.jsonl", "_m/y.jsonl"])
    (tmp_path / "README.md").write_text("no data")
    (tmp_path / "_part.jsonl").write_text("no data")
    found = {"a.jsonl", "b.jsonl", "s/c.jsonl", "s/e.json", "s/t/d.ndjson"}

    def listed(source):
        return names_of(list_inputs(recipe_for(source)), tmp_path)

    assert listed(tmp_path / "*.jsonl") == ["_part.jsonl", "a.jsonl", "b.jsonl"]
    assert listed(tmp_path / "**" / "*.jsonl").count("s/c.jsonl") == 1
    assert listed(f"{tmp_path}/[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert set(listed(tmp_path)) == found
    assert "left aside" in list_inputs(recipe_for(tmp_path)).notes[0]
    assert listed([tmp_path / "b.jsonl", tmp_path / "*.jsonl", tmp_path / "s"])[-3:] == [
        "s/c.jsonl",
        "s/e.json",
        "s/t/d.ndjson",
    ]
    (tmp_path / "list.txt").write_text("# files\na.jsonl\n\n  s/c.jsonl\r\n")
    assert listed(f"@{tmp_path}/list.txt") == ["a.jsonl", "s/c.jsonl"]
    monkeypatch.chdir(tmp_path)
    assert listed("a.jsonl") == ["a.jsonl"]
    assert listed("s") == ["s/c.jsonl", "s/e.json", "s/t/d.ndjson"]
    assert listed("./*.jsonl")[1:] == ["a.jsonl", "b.jsonl"]


def test_names_with_odd_characters(tmp_path):
    odd = ["a b.jsonl", "x[1].jsonl", "ü#?.jsonl", "100%.jsonl"]
    fill(tmp_path, odd)
    assert sorted(names_of(list_inputs(recipe_for(tmp_path)), tmp_path)) == sorted(odd)
    for name in odd:
        assert len(read_all(recipe_for(tmp_path / name))) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{0}/none.jsonl", ["there is no", "none.jsonl"]),
        ("{0}/none/*.jsonl", ["no file matches", "none' does not exist"]),
        ("{0}/*.parquet", ["no file matches", "exists, so check the pattern"]),
        ("{0}/empty", ["no data file in the folder"]),
        ("@{0}/none.txt", ["there is no", "none.txt"]),
        ("@{0}/blank.txt", ["names no file"]),
        ("{0}/part-0001", ["does not tell its format", "set format"]),
    ],
)
def test_what_is_missing_is_named(tmp_path, source, words):
    fill(tmp_path, ["a.jsonl", "part-0001"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("# nothing\n")
    with pytest.raises(InputError) as caught:
        list_inputs(recipe_for(source.format(tmp_path)))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_format_that_is_set_is_taken(tmp_path):
    fill(tmp_path, ["part-0001", "part-0002"])
    assert len(values(read_all(recipe_for(tmp_path / "part-*", format="jsonl")))) == 2
    assert len(values(read_all(recipe_for(tmp_path, format="jsonl")))) == 2


def test_small_files_are_grouped_and_large_ones_cut(tmp_path):
    fill(tmp_path, [f"s{n:04d}.jsonl" for n in range(600)])
    fill(tmp_path, ["t-large.jsonl"], 10_000)
    fill(tmp_path, ["u.jsonl", "v.jsonl"])
    units = list_inputs(recipe_for(tmp_path, units={"bytes": 4_000})).units
    small = [unit for unit in units if unit.parts[0].url.rpartition("/")[2].startswith("s")]
    assert [len(unit.parts) for unit in small] == [40] * 15
    large = [part for unit in units for part in unit.parts if "t-large" in part.url]
    assert [(part.start, part.end) for part in large] == [(0, 5000), (5000, 10_000)]
    assert sum(unit.bytes for unit in units) == 600 * 100 + 10_000 + 200
    many = list_inputs(recipe_for(tmp_path)).units
    assert [len(unit.parts) for unit in many] == [256, 256, 91]


def test_the_first_unit_is_small_and_rows_keep_their_numbers(tmp_path):
    """So that something is committed soon, whatever the size of the input."""
    line = orjson.dumps({"text": "x" * 1000}) + b"\n"
    (tmp_path / "a.jsonl").write_bytes(b"\n" + line * (2 * FIRST_UNIT // len(line) + 1))
    (tmp_path / "b.jsonl").write_bytes(line * (FIRST_UNIT // len(line)))
    recipe = recipe_for(f"{tmp_path}/*.jsonl")
    units = list_inputs(recipe).units
    assert [[(part.url[-7:], part.start) for part in unit.parts] for unit in units] == [
        [("a.jsonl", 0)],
        [("a.jsonl", FIRST_UNIT), ("b.jsonl", 0)],
    ]
    rows = [record.row for record in read_all(recipe)]
    assert rows == [*range(1, 2 * FIRST_UNIT // len(line) + 2), *range(FIRST_UNIT // len(line))]
    assert [len(unit.parts) for unit in list_inputs(recipe_for(f"{tmp_path}/b.jsonl")).units] == [1]
    fill(tmp_path, [f"{n}.jsonl.gz" for n in range(9)], FIRST_UNIT // 16)
    assert [len(unit.parts) for unit in list_inputs(recipe_for(f"{tmp_path}/*.gz")).units] == [4, 5]


def test_fifty_thousand_small_files_become_a_few_hundred_small_units():
    parts = [
        ("d", Part(f"s3://bucket/some/folder/run-{n:06d}.traj", 0, 20_000, 20_000, "object")) for n in range(50_000)
    ]
    units = group_parts(parts, 128 << 20)
    assert 150 < len(units) < 400
    assert max(len(orjson.dumps(unit.to_dict())) for unit in units) < 12_000
    jsonl = [("d", Part("s3://b/x.jsonl", n << 27, (n + 1) << 27, 1 << 40, "jsonl")) for n in range(8192)]
    assert max(len(orjson.dumps(unit.to_dict())) for unit in group_parts(jsonl, 128 << 20)) < 300


def test_a_listing_survives_json(tmp_path):
    fill(tmp_path, [f"{n}.jsonl" for n in range(5)], 3_000)
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.parquet").write_bytes(b"")
    recipe = Recipe.from_dict(
        {
            "tokenizer": "t",
            "output": "o",
            "units": {"bytes": 1000},
            "datasets": [
                {"name": "one", "input": f"{tmp_path}/*.jsonl"},
                {"name": "two", "input": str(other), "limit": 3},
            ],
        }
    )
    listing = list_inputs(recipe)
    again = Listing.from_json(listing.to_json())
    assert again == listing
    assert json.loads(listing.to_json())
    half = listing.units[0].halves(10)[1]
    assert Unit.from_dict(half.to_dict()) == half
    with pytest.raises(InputError, match="no input listing"):
        Listing.from_json(b'{"version": 0}')


def test_unit_ids_do_not_depend_on_what_lies_beside(tmp_path):
    fill(tmp_path, ["b.jsonl", "c.jsonl"], 9_000)
    before = list_inputs(recipe_for(tmp_path, units={"bytes": 3_000}))
    fill(tmp_path, ["a.jsonl", "d.jsonl"], 9_000)
    after = list_inputs(recipe_for(tmp_path, units={"bytes": 3_000}))
    assert {unit.id for unit in before.units} < {unit.id for unit in after.units}
    assert len({unit.id for unit in after.units}) == len(after.units) == 12
    other = list_inputs(recipe_for(tmp_path, units={"bytes": 3_000}, name="other"))
    assert not {unit.id for unit in after.units} & {unit.id for unit in other.units}
    assert all(unit.id.isascii() and "/" not in unit.id for unit in after.units)


def test_new_files_are_added_without_touching_old_units(tmp_path):
    fill(tmp_path, ["b.jsonl", "c.jsonl"])
    old = list_inputs(recipe_for(tmp_path))
    fill(tmp_path, ["a.jsonl", "d.jsonl"])
    change = compare_listings(old, list_inputs(recipe_for(tmp_path)))
    assert names_of(Listing(list(change.new)), tmp_path) == ["a.jsonl", "d.jsonl"]
    assert not change.changed
    assert not change.removed
    extended = change.extended()
    assert extended.units[: len(old.units)] == old.units
    assert [len(unit.parts) for unit in extended.units] == [2, 2]
    again = compare_listings(extended, list_inputs(recipe_for(tmp_path)))
    assert not again
    assert "unchanged" in again.describe()


def test_changed_and_removed_files_refuse_and_are_named(tmp_path):
    fill(tmp_path, ["a.jsonl", "b.jsonl", "c.jsonl"])
    old = list_inputs(recipe_for(tmp_path))
    fill(tmp_path, ["a.jsonl"], 101)
    os.utime(tmp_path / "b.jsonl", (1, 1))
    (tmp_path / "c.jsonl").unlink()
    fill(tmp_path, ["d.jsonl"])
    change = compare_listings(old, list_inputs(recipe_for(tmp_path)))
    assert [e.url[-7:] for e in change.changed] == ["a.jsonl", "b.jsonl"]
    assert [e.url[-7:] for e in change.removed] == ["c.jsonl"]
    with pytest.raises(InputError, match=r"2 changed: .*a\.jsonl.*1 gone: .*c\.jsonl.*1 new: .*d\.jsonl"):
        change.extended()


def test_an_etag_says_more_than_a_time():
    one = FileEntry("s3://b/k", 5, "e", 1.0, "d")
    assert one.same_content(FileEntry("s3://b/k", 5, "e", 2.0, "d"))
    assert not one.same_content(FileEntry("s3://b/k", 5, "f", 1.0, "d"))


@settings(max_examples=30, deadline=None)
@given(limit=st.integers(1, 40), unit_bytes=st.integers(20, 300))
def test_a_limit_takes_the_first_records_in_order(tmp_path_factory, limit, unit_bytes):
    folder = tmp_path_factory.mktemp("limit")
    rows = [{"n": n} for n in range(30)]
    for number in range(3):
        lines = [orjson.dumps(row) for row in rows[number * 10 : number * 10 + 10]]
        (folder / f"{number}.jsonl").write_bytes(b"\n".join(lines))
    recipe = recipe_for(folder, units={"bytes": unit_bytes}, limit=limit)
    assert values(read_all(recipe)) == rows[:limit]
    listing = list_inputs(recipe)
    assert {entry.url for entry in listing.files} == {part.url for unit in listing.units for part in unit.parts}
    assert Listing.from_json(listing.to_json()) == listing


def test_a_data_set_with_a_limit_takes_no_new_files(tmp_path):
    fill(tmp_path, ["b.jsonl"])
    old = list_inputs(recipe_for(tmp_path, limit=5))
    fill(tmp_path, ["a.jsonl"])
    change = compare_listings(old, list_inputs(recipe_for(tmp_path, limit=5)))
    with pytest.raises(InputError, match="has a limit"):
        change.extended()


def test_a_file_that_shrank_since_the_listing_is_no_silent_loss(tmp_path):
    from retok_dask.completions import read_records

    fill(tmp_path, ["a.jsonl"], 1000)
    recipe = recipe_for(tmp_path)
    (unit,) = list_inputs(recipe).units
    (tmp_path / "a.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes()[:500])
    assert [r.reason.value for r in read_records(unit, recipe.datasets[0], recipe)][-1:] == ["cut_file"]
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match="there is no"):
        list(read_records(unit, recipe.datasets[0], recipe))
