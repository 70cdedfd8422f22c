"""Every exit gives back the same tokens and masks, read by its consumer's own code where that can be had."""

from __future__ import annotations

import importlib
import itertools
import json
import weakref

import consumers
import numpy as np
import pyarrow.parquet as pq
import pytest
from factory import make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from retok_dask.datasets import OutputFolder, export, open_dataset
from retok_dask.datasets import writer as writer_module
from retok_dask.datasets.exits import EXITS
from retok_dask.datasets.exits.base import IGNORED, Rows, shifted_targets
from retok_dask.datasets.export import plan_shards
from retok_dask.datasets.packing import best_fit, pack
from retok_dask.errors import FingerprintMismatch, OutputError, UnfinishedOutput

# the function of the same name hides it in the package
export_module = importlib.import_module("retok_dask.datasets.export")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_BYTES", 4000)
        make_run(path, names=("a", "b"), rows=23, rejects=1)
    return str(path)


@pytest.fixture(scope="module")
def truth(run):
    return [(row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()) for row in open_dataset(run)]


def labels_of(rows) -> list[list[int]]:
    """Labels by the convention of PyTorch, made the slow way; no label at the first position."""
    return [[t if m and i else IGNORED for i, (t, m) in enumerate(zip(*row, strict=True))] for row in rows]


def as_pairs(rows) -> list[tuple[list[int], list[int]]]:
    return [(list(ids), [int(hit) for hit in mask]) for ids, mask in rows]


def table(folder) -> dict[str, list]:
    return pq.read_table(f"{folder}/data").to_pydict()


# one test an exit


def test_trl_labels(run, truth, tmp_path):
    export(run, "trl", str(tmp_path), shards=2)
    found = table(tmp_path)
    assert found["input_ids"] == [ids for ids, _ in truth]
    assert found["labels"] == labels_of(truth)


@pytest.mark.parametrize(
    ("to", "column"), [("trl-assistant", "assistant_masks"), ("trl-completion", "completion_mask")]
)
def test_trl_masks(run, truth, tmp_path, to, column):
    export(run, to, str(tmp_path))
    found = table(tmp_path)
    assert as_pairs(zip(found["input_ids"], found[column], strict=True)) == truth


def test_axolotl(run, truth, tmp_path):
    export(run, "axolotl", str(tmp_path))
    found = table(tmp_path)
    assert found["labels"] == labels_of(truth)
    assert found["attention_mask"] == [[1] * len(ids) for ids, _ in truth]


def test_model_optimizer(run, truth, tmp_path):
    import datasets

    export(run, "modelopt", str(tmp_path / "out"))
    files = f"{tmp_path}/out/data/*.parquet"
    found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert as_pairs(zip(found["token_ids"][:], found["loss_mask"][:], strict=True)) == truth


@pytest.mark.parametrize("to", ["hf-arrow", "specforge", "speculators"])
def test_save_to_disk_is_loaded_by_datasets(run, truth, tmp_path, to):
    import datasets

    export(run, to, str(tmp_path), shards=3)
    if to == "speculators":
        # its own folder wants torch tensors, and so does ours; the rows can be read without
        state = json.loads((tmp_path / "state.json").read_text())
        assert state["_format_type"] == "torch"
        (tmp_path / "state.json").write_text(json.dumps(state | {"_format_type": None}))
    found = datasets.load_from_disk(str(tmp_path))
    ids, masks = found["input_ids"][:], found["loss_mask"][:]
    if to == "specforge":
        assert found["attention_mask"][:] == [[[1] * len(ids)] for ids, _ in truth]
        ids, masks = [row[0] for row in ids], [row[0] for row in masks]
    if to == "speculators":
        assert found["seq_len"][:] == [len(ids) for ids, _ in truth]
        numpy_rows = found.with_format("numpy")
        assert numpy_rows[0]["input_ids"].dtype == np.int64
    assert as_pairs(zip(ids, masks, strict=True)) == truth
    assert len(list(tmp_path.glob("*.arrow"))) == 3


def test_json_lines_of_prompts(run, truth, tmp_path):
    export(run, "specforge-prompts", str(tmp_path), shards=2)
    paths = sorted(tmp_path.glob("*.jsonl"))
    assert len(paths) == 2
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [(line["input_ids"], line["loss_mask"]) for line in lines] == truth


def test_hf_arrow_is_what_datasets_itself_writes(run, tmp_path):
    import datasets

    export(run, "hf-arrow", str(tmp_path / "ours"), shards=2)
    ours = datasets.load_from_disk(str(tmp_path / "ours"))
    ours.save_to_disk(str(tmp_path / "theirs"), num_shards=2)
    mine, theirs = ({p.name for p in (tmp_path / n).iterdir() if p.is_file()} for n in ("ours", "theirs"))
    assert mine == theirs
    states = [json.loads((tmp_path / n / "state.json").read_text()) for n in ("ours", "theirs")]
    assert states[0].keys() == states[1].keys()
    assert states[0]["_data_files"] == states[1]["_data_files"]


def test_megatron_by_its_own_reader(run, truth, tmp_path):
    export(run, "megatron", str(tmp_path), shards=2)
    rows = consumers.read("megatron-core==0.16.1", consumers.MEGATRON, str(tmp_path), "2")
    assert as_pairs(rows) == truth


def test_mosaic_by_its_own_reader(run, truth, tmp_path, monkeypatch):
    from retok_dask.datasets.exits import mosaic

    monkeypatch.setattr(mosaic, "SIZE_LIMIT", 2000)
    export(run, "mds", str(tmp_path), shards=2)
    assert len(list(tmp_path.glob("*.mds"))) > 4
    assert as_pairs(consumers.read("mosaicml-streaming==0.13.0", consumers.MOSAIC, str(tmp_path))) == truth


def test_datatrove_by_its_own_reader(run, truth, tmp_path):
    export(run, "nanotron", str(tmp_path), shards=2)
    assert as_pairs(consumers.read("datatrove==0.10.1", consumers.DATATROVE, str(tmp_path))) == truth


def test_webdataset_by_its_own_reader(run, truth, tmp_path):
    import webdataset

    export(run, "webdataset", str(tmp_path), shards=2)
    urls = sorted(str(path) for path in tmp_path.glob("*.tar"))
    data = webdataset.WebDataset(urls, shardshuffle=False).decode()
    rows = [(sample["input_ids.npy"].tolist(), sample["loss_mask.npy"].tolist(), sample["json"]) for sample in data]
    assert as_pairs((ids, mask) for ids, mask, _ in rows) == truth
    assert [about["sample_id"] for *_, about in rows] == [row["sample_id"] for row in open_dataset(run)]


def test_numpy_memory_maps(run, truth, tmp_path):
    export(run, "npy", str(tmp_path), shards=2)
    rows = []
    for shard in json.loads((tmp_path / "index.json").read_text())["shards"]:
        names = (f"{tmp_path}/{name}-{shard['suffix']}" for name in ("input_ids", "loss_mask", "documents"))
        ids, mask, documents = (np.load(name, mmap_mode="r") for name in names)
        assert len(ids) == len(mask) == documents[-1] == shard["tokens"]
        rows += [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in itertools.pairwise(documents)]
    assert as_pairs(rows) == truth


# what all exits share


@pytest.mark.parametrize("to", EXITS)
def test_accounting_and_resume(run, truth, tmp_path, to):
    result = export(run, to, str(tmp_path), shards=3)
    assert result.documents == result.rows == len(truth)
    assert result.tokens == sum(len(ids) for ids, _ in truth)
    assert result.loss_tokens == sum(sum(mask) for _, mask in truth)
    files = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and "_retok" not in str(path)
    }
    folder = OutputFolder(str(tmp_path))
    (tmp_path / "_retok_export/shards/00001.json").unlink()
    assert export(run, to, str(tmp_path), shards=3) == result
    again = {path: path.stat().st_mtime_ns for path in files}
    redone = json.loads(folder.read_bytes("_retok_export/shards/00001.json"))["files"]
    for file in json.loads(folder.read_bytes("_retok_export/shards/00000.json"))["files"]:
        path = tmp_path / file["path"]
        assert again[path] == files[path]
    assert all(again[tmp_path / file["path"]] > files[tmp_path / file["path"]] for file in redone)
    about = json.loads((tmp_path / "_retok_export/export.json").read_text())
    assert about["tokens"] == result.tokens
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("to", EXITS)
def test_a_shard_that_fails_midway_leaves_nothing_and_the_next_start_ends_it(run, truth, tmp_path, monkeypatch, to):
    read = export_module.read_batches
    fails = [True]

    def broken(*arguments):
        for number, batch in enumerate(read(*arguments)):
            if number == 1 and arguments[1].endswith("b-00002.parquet") and fails:
                raise OSError(5, "the disk went away")
            yield batch

    monkeypatch.setattr(export_module, "read_batches", broken)
    with pytest.raises(OSError, match="disk went away"):
        export(run, to, str(tmp_path), shards=2)
    receipts = sorted(path.name for path in (tmp_path / "_retok_export/shards").iterdir())
    assert receipts == ["00000.json"]
    whole = {file["path"] for file in json.loads((tmp_path / "_retok_export/shards/00000.json").read_text())["files"]}
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == whole | {"_retok_export/key.json", "_retok_export/shards/00000.json"}
    fails.clear()
    assert export(run, to, str(tmp_path), shards=2).documents == len(truth)
    assert (tmp_path / "_retok_export/export.json").exists()


def test_an_export_holds_one_row_group_at_a_time(run, truth, tmp_path, monkeypatch):
    alive: list[weakref.ref] = []
    most = []
    make = Rows.of

    def counted(batch):
        rows = make(batch)
        alive.append(weakref.ref(rows))
        most.append(sum(ref() is not None for ref in alive))
        return rows

    monkeypatch.setattr(export_module.Rows, "of", counted)
    for to in EXITS:
        alive.clear()
        export(run, to, str(tmp_path / to), shards=1)
        assert len(alive) > 12, to
    # the one that is made, and the one before it that a loop still names
    assert max(most) <= 2


def test_as_many_shards_as_a_drafter_wants(tmp_path):
    import datasets

    make_run(tmp_path / "run", units=50, rows=2)
    result = export(str(tmp_path / "run"), "hf-arrow", str(tmp_path / "out"), shards=47)
    assert result.shards == len(list((tmp_path / "out").glob("data-*-of-00047.arrow"))) == 47
    found = datasets.load_from_disk(str(tmp_path / "out"))
    assert found["input_ids"][:] == [row["input_ids"].tolist() for row in open_dataset(str(tmp_path / "run"))]


def test_every_exit_is_the_same_on_any_day(run, tmp_path):
    for to, spec in EXITS.items():
        digests = []
        for name in ("x", "y"):
            export(run, to, str(tmp_path / name / to), shards=2, pack=64 if spec.packs else None)
            about = json.loads((tmp_path / name / to / "_retok_export/export.json").read_text())
            digests.append([file["sha256"] for file in about["files"]])
        assert digests[0] == digests[1], to


def test_only_some_data_sets(run, truth, tmp_path):
    assert export(run, "trl", str(tmp_path), datasets=["b"]).rows == 69
    assert table(tmp_path)["input_ids"] == [ids for ids, _ in truth[69:]]


def test_what_is_refused(run, tmp_path):
    with pytest.raises(OutputError, match="Did you mean 'megatron'"):
        export(run, "megatrom", str(tmp_path / "a"))
    with pytest.raises(OutputError, match="cannot be packed"):
        export(run, "speculators", str(tmp_path / "a"), pack=100)
    export(run, "npy", str(tmp_path / "b"))
    with pytest.raises(FingerprintMismatch, match="another export"):
        export(run, "trl", str(tmp_path / "b"))
    with pytest.raises(OutputError, match="not empty"):
        export(run, "trl", run)
    make_run(tmp_path / "c", manifest=False)
    with pytest.raises(UnfinishedOutput):
        export(str(tmp_path / "c"), "trl", str(tmp_path / "d"))


def test_a_data_set_without_rows_still_makes_valid_files(tmp_path):
    make_run(tmp_path / "run", units=2, rows=0)
    for to in EXITS:
        assert export(str(tmp_path / "run"), to, str(tmp_path / to)).rows == 0
    assert table(tmp_path / "trl")["input_ids"] == []


@settings(max_examples=50, deadline=None)
@given(tokens=st.lists(st.integers(0, 50), min_size=1, max_size=30), shards=st.integers(1, 40))
def test_shards_cover_all_units_in_order_and_none_is_empty(tokens, shards):
    class Unit:
        def __init__(self, number):
            self.summary = {"tokens": number}

    units = [Unit(number) for number in tokens]
    plan = plan_shards(units, shards)
    assert [unit for shard in plan for unit in shard] == units
    assert len(plan) == min(shards, len(units))
    assert all(plan)


def test_on_object_stores(run, truth, tmp_path):
    url = f"memory://{tmp_path.name}/export"
    export(run, "npy", url, shards=1)
    folder = OutputFolder(url)
    import io

    assert np.load(io.BytesIO(folder.read_bytes("input_ids-00000.npy"))).tolist() == [
        t for ids, _ in truth for t in ids
    ]


# packing


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), max_size=60), context=st.integers(20, 40))
def test_best_fit_fills_bins_and_loses_nothing(lengths, context):
    bins = best_fit(lengths, context)
    assert sorted(n for members in bins for n in members) == list(range(len(lengths)))
    fills = [sum(lengths[n] for n in members) for members in bins]
    assert all(fill <= context for fill in fills)
    # best fit never leaves two bins that would fit into one
    assert sum(fill <= context / 2 for fill in fills) <= 1
    assert bins == best_fit(lengths, context)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), context=st.integers(5, 80))
def test_packing_keeps_every_token_its_mask_and_its_document(seed, context):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, 20)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(splits[-1], dtype=np.int32)
    mask = rng.random(splits[-1]) < 0.5
    packed = pack(Rows(ids, mask, splits, [str(n) for n in range(20)]), context)
    assert sorted(packed.ids.tolist()) == ids.tolist()
    assert (packed.mask == mask[packed.ids]).all()
    assert (packed.lengths <= context).all()
    assert [sum(row) for row in packed.documents] == packed.lengths.tolist()
    firsts = np.minimum.reduceat(packed.ids, packed.splits[:-1]).tolist()
    assert firsts == sorted(firsts), "packed rows stand in the order of their first documents"
    positions = packed.positions()
    start = np.flatnonzero(positions == 0)
    assert len(start) == sum(map(len, packed.documents))
    inside = positions > 0
    assert (packed.ids[inside] == packed.ids[np.flatnonzero(inside) - 1] + 1).all()


def test_packed_exports_report_padding_and_keep_boundaries(run, truth, tmp_path):
    result = export(run, "trl", str(tmp_path / "trl"), pack=64)
    tokens = sum(len(ids) for ids, _ in truth)
    assert result.tokens == tokens
    assert result.documents == len(truth)
    assert result.rows < len(truth)
    assert result.padding == 64 * result.rows - tokens
    assert 0 < result.padding_share < 0.5
    trained = sum(sum(mask) for _, mask in truth) / tokens
    assert result.trained_share == pytest.approx(trained)
    about = json.loads((tmp_path / "trl/_retok_export/export.json").read_text())
    assert (about["trained_share"], about["padding_share"]) == (result.trained_share, result.padding_share)
    assert f"{trained:.1%} trained; packed to 64, {result.padding_share:.1%} padding" in result.to_text()
    found = table(tmp_path / "trl")
    assert [sum(row) for row in found["seq_lengths"]] == [len(row) for row in found["input_ids"]]
    for labels, positions in zip(found["labels"], found["position_ids"], strict=True):
        assert all(label == IGNORED for label, place in zip(labels, positions, strict=True) if place == 0)
    wanted = sorted(label for row in labels_of(truth) for label in row if label != IGNORED)
    assert sorted(label for row in found["labels"] for label in row if label != IGNORED) == wanted


def test_packed_documents_are_documents_to_megatron(run, truth, tmp_path):
    export(run, "megatron", str(tmp_path), pack=64)
    rows = consumers.read("megatron-core==0.16.1", consumers.MEGATRON, str(tmp_path), "1")
    assert sorted(as_pairs(rows)) == sorted(truth)


def test_rows_longer_than_the_context_are_cut_and_counted(run, truth, tmp_path):
    result = export(run, "hf-arrow", str(tmp_path), pack=20)
    assert result.cut == sum(len(ids) > 20 for ids, _ in truth) > 0
    assert result.tokens == sum(len(ids) for ids, _ in truth)


def test_rows_cut_in_pieces_have_names_of_their_own(run, truth, tmp_path):
    import webdataset

    export(run, "webdataset", str(tmp_path), shards=2, pack=10)
    urls = sorted(str(path) for path in tmp_path.glob("*.tar"))
    rows = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    names = [row["__key__"] for row in rows]
    assert names == [row["json"]["sample_id"] for row in rows]
    assert len(set(names)) == len(names) > len(truth)
    ends = [np.cumsum(row["json"]["seq_lengths"])[:-1] for row in rows]
    parts = [
        (ids.tolist(), mask.astype(int).tolist())
        for row, end in zip(rows, ends, strict=True)
        for ids, mask in zip(np.split(row["input_ids.npy"], end), np.split(row["loss_mask.npy"], end), strict=True)
    ]
    assert sorted(parts) == sorted(
        (ids[at : at + 10], m[at : at + 10]) for ids, m in truth for at in range(0, len(ids), 10)
    )


# labels


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=20))
def test_shifted_targets_are_what_a_shifting_model_sees(row):
    ids = np.array([t for t, _ in row], np.int32)
    mask = np.array([m for _, m in row], bool)
    rows = Rows(ids, mask, np.array([0, len(ids)]), ["x"])
    assert shifted_targets(ids, mask)[:-1].tolist() == rows.labels()[1:].tolist()
    assert shifted_targets(ids, mask)[-1:].tolist() == [IGNORED] * bool(len(ids))
