"""JSON files that lines do not tell: arrays, wrapped arrays, single objects, one object after the other."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_all, recipe_for, rejects, values

from retok_dask.completions import list_inputs

scalars = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(alphabet='a"\\{}[],:é\n\u2028', max_size=8))
objects = st.dictionaries(
    st.text(alphabet='k"\\]', max_size=3),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=6,
    ),
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(objects, max_size=8), indent=st.sampled_from([None, 1]), block=st.integers(3, 60))
def test_elements_are_found_whatever_the_text_and_the_blocks(tmp_path_factory, rows, indent, block):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retok_dask.completions.blocks.LOCAL_BLOCK", block)
        patch.setattr("retok_dask.completions.json_files.HEAD", 4)
        found = read_all(recipe_for(path))
    assert values(found) == rows
    assert [r.row for r in found] == list(range(len(rows)))
    data = path.read_bytes()
    assert all(data[r.offset : r.offset + len(r.raw)] == r.raw for r in found)


@pytest.mark.parametrize("name", ["data", "rows", "records"])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_list_inside_a_wrapping_object_is_what_is_read(tmp_path, name, indent):
    rows = [{"n": n} for n in range(5)]
    (tmp_path / "a.json").write_text(json.dumps({"version": "1.1", "n": 3, name: rows, "after": [1]}, indent=indent))
    assert values(read_all(recipe_for(tmp_path / "a.json"))) == rows


def test_one_object_is_one_record(tmp_path):
    value = {"messages": [{"role": "user", "content": "x"}], "data": "no list"}
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(value, indent=indent))
        assert values(read_all(recipe_for(tmp_path / "a.json"))) == [value]
        assert values(read_all(recipe_for(tmp_path / "a.json", format="object"))) == [value]


def test_objects_one_after_the_other_and_lines_under_the_name_of_json(tmp_path):
    rows = [{"n": n, "t": {"a": "}{"}} for n in range(4)]
    (tmp_path / "a.json").write_text("\n".join(json.dumps(row, indent=2) for row in rows))
    (tmp_path / "b.json").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "c.json").write_text("{broken\n" + "\n".join(json.dumps(row) for row in rows))
    assert values(read_all(recipe_for(tmp_path / "a.json"))) == rows
    assert values(read_all(recipe_for(tmp_path / "b.json"))) == rows
    found = read_all(recipe_for(tmp_path / "c.json"))
    assert values(found) == rows
    assert [r.row for r in rejects(found)] == [0]


def test_large_lines_under_the_name_of_json_are_split(tmp_path):
    (tmp_path / "a.json").write_text("\n".join(json.dumps({"n": n}) for n in range(1000)))
    recipe = recipe_for(tmp_path / "a.json", units={"bytes": 1000})
    assert len(list_inputs(recipe).units) > 5
    assert [v["n"] for v in values(read_all(recipe))] == list(range(1000))


@pytest.mark.parametrize(
    ("text", "good", "reasons"),
    [
        ('[{"n":1},{"n":2', 1, ["cut_file"]),
        ('[{"n":1},{"n":2}', 1, ["cut_file"]),
        ('[{"n":1},{"n":"2', 1, ["cut_file"]),
        ('[{"n":1},{"n":NaN},{"n":3}]', 2, ["not_finite_number"]),
        ('[{"n":1},2,"a,b",{"n":3}]', 2, ["not_an_object", "not_an_object"]),
        ('[{"n":1},,{"n":3}]', 2, ["bad_json"]),
        ('[{"n":1},]', 1, ["bad_json"]),
        ("[]", 0, []),
        ("[ \n ]\n", 0, []),
        ("", 0, []),
        ("  \n", 0, []),
        ('[{"n":1}] x', 1, ["bad_file"]),
        ('[{"n":1}}', 1, ["bad_file"]),
        ('{"data":[{"n":1}]', 1, ["cut_file"]),
        ('{"n":1', 0, ["cut_file"]),
        ('{\n"n":1}\n{"n":\n2', 1, ["cut_file"]),
    ],
)
def test_what_is_wrong_with_an_array_is_said_and_the_rest_read(tmp_path, text, good, reasons):
    (tmp_path / "a.json").write_text(text)
    found = read_all(recipe_for(tmp_path / "a.json"))
    assert len(values(found)) == good
    assert [r.reason.value for r in rejects(found)] == reasons


def test_a_large_array_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "a.json"
    element = json.dumps({"t": "x" * 50_000})
    path.write_text("[" + ",\n".join([element] * 600) + ', {"t": "' + "y" * (8 << 20) + '"}, {"n": 1}]')
    recipe = recipe_for(path, units={"record_bytes": "1MiB"})
    from retok_dask.completions import read_records

    (unit,) = list_inputs(recipe).units
    tracemalloc.start()
    kinds = [type(r).__name__ for r in read_records(unit, recipe.datasets[0], recipe)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kinds == ["Record"] * 600 + ["Reject", "Record"]
    assert peak < 24 << 20


def test_one_object_files_are_grouped_and_each_bad_one_is_a_reject(tmp_path):
    for n in range(300):
        (tmp_path / f"{n:03d}.traj").write_text(json.dumps({"history": [{"role": "user", "content": str(n)}]}))
    (tmp_path / "100.traj").write_text("[1]")
    (tmp_path / "200.traj").write_text('{"history": [')
    (tmp_path / "250.traj").write_text("")
    recipe = recipe_for(tmp_path)
    assert [len(unit.parts) for unit in list_inputs(recipe).units] == [256, 44]
    found = read_all(recipe)
    assert len(values(found)) == 297
    assert [(r.file[-8:], r.reason.value) for r in rejects(found)] == [
        ("100.traj", "not_an_object"),
        ("200.traj", "bad_json"),
        ("250.traj", "bad_json"),
    ]
