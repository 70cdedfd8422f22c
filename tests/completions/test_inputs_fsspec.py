"""Inputs on a file system that is neither local nor S3: whatever fsspec knows."""

from __future__ import annotations

import json

import fsspec

from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.recipe import Recipe


def test_any_fsspec_file_system():
    fs = fsspec.filesystem("memory")
    line = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}) + "\n"
    for name in ("a", "b"):
        fs.pipe(f"/inputs/{name}.jsonl", (line * 50).encode())
    recipe = Recipe.from_dict(
        {
            "tokenizer": "t",
            "output": "memory://out",
            "datasets": [{"input": "memory://inputs/*.jsonl"}],
            "units": {"bytes": 1000},
        }
    )
    listing = list_inputs(recipe)
    assert len(listing.files) == 2
    (spec,) = recipe.datasets
    records = [record for unit in listing.units for record in read_records(unit, spec, recipe)]
    assert len(records) == 100
    assert len({(record.file, record.offset) for record in records}) == 100
    assert len(layout_for(spec)(records[0])[0].messages) == 2
