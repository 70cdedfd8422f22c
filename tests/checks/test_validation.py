"""Each check is shown by a corruption that it, and only what is related to it, catches."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factory import make_batch, make_run, write_unit
from real_run import demo_recipe, run_recipe, train_tokenizer

from retok_dask.checks import ValidationReport, validate
from retok_dask.checks.decoding import CONTINUING, misspelling
from retok_dask.checks.thresholds import METRICS
from retok_dask.datasets import (
    OutputFolder,
    Receipt,
    UnitWriter,
    read_manifest,
    read_receipts,
    remask,
    write_manifest,
)
from retok_dask.errors import RecipeError, ValidationFailed
from retok_dask.kernel import Batch, UnitStats
from retok_dask.recipe import MEASURES, TokenizerSpec
from retok_dask.schema import REJECT_SCHEMA, kept_columns, sample_schema
from retok_dask.tokenizers import Tokenizer
from retok_dask.views import WrittenRun


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    run_recipe(demo_recipe(folder))
    return folder


@pytest.fixture
def run(original, tmp_path):
    """A copy of a real run that may be damaged."""
    shutil.copytree(original / "out", tmp_path / "out")
    return OutputFolder(str(tmp_path / "out"))


def failed(report: ValidationReport) -> set[str]:
    return {check.name for check in report.failed}


def units(folder: OutputFolder) -> list[Receipt]:
    return sorted(read_receipts(folder).values(), key=lambda receipt: -receipt.summary["rows"])


def local(folder: OutputFolder, relative: str) -> Path:
    return Path(folder.path(relative))


@dataclasses.dataclass
class StoredUnit:
    id: str
    dataset: str
    source: dict

    def to_dict(self):
        return self.source


def rewrite(folder: OutputFolder, receipt: Receipt, change, *, unit: str | None = None):
    """Write a unit again with changed rows, receipt and manifest consistent with them: a lie told well."""
    schema = sample_schema()
    rows = change(pq.read_table(local(folder, receipt.outputs[0].path)).to_pylist())
    samples = pa.RecordBatch.from_pylist(rows, schema=schema)
    stats = UnitStats.from_dict(receipt.stats)
    stats.tokens = sum(row["num_tokens"] for row in rows)
    stats.loss_tokens = sum(row["num_loss_tokens"] for row in rows)
    stored = StoredUnit(unit or receipt.unit, receipt.dataset, receipt.source)
    with UnitWriter(folder, stored, (), "9", fingerprint=receipt.fingerprint) as writer:
        writer.write(Batch(samples, stored_rejects(folder, receipt), stats))
    write_manifest(folder, read_receipts(folder))


def stored_rejects(folder: OutputFolder, receipt: Receipt) -> pa.RecordBatch:
    record = receipt.output("rejects")
    rows = pq.read_table(local(folder, record.path)).to_pylist() if record else []
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)


@pytest.mark.parametrize("full", [False, True])
def test_a_good_run_passes(run, full):
    report = validate(run.url, full)
    assert report.passed, report.to_text()
    assert failed(report) == set()
    assert all(check.severity != "info" for check in report.checks)
    rows = read_manifest(run).rows
    assert report.check("content").numbers["rows"] == rows
    assert report.check("re_encoding").numbers["rows"] == rows or not full
    assert report.check("re_encoding").numbers["rows"] > 10
    report.raise_if_failed()


# the corruptions that the issue names


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("full", [False, True])
def test_a_flipped_byte_in_the_footer(run, full):
    path = local(run, units(run)[0].outputs[0].path)
    flip(path, path.read_bytes().rindex(b"parquet-cpp"))
    assert failed(validate(run.url, full)) == {"checksums"}


@pytest.mark.parametrize("full", [False, True])
def test_a_flipped_byte_in_the_data(run, full):
    path = local(run, units(run)[0].outputs[0].path)
    columns = pq.ParquetFile(path).metadata.row_group(0)
    ids = next(c for c in map(columns.column, range(columns.num_columns)) if c.path_in_schema.startswith("input_ids"))
    flip(path, ids.data_page_offset + ids.total_compressed_size // 2)
    found = failed(validate(run.url, full))
    assert "checksums" in found
    assert found <= {"checksums", "readable", "content", "vocabulary", "re_encoding", "lengths"}


def test_swapped_files(run):
    first, second = (local(run, receipt.outputs[0].path) for receipt in units(run)[:2])
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    found = failed(validate(run.url, full=True))
    assert {"files", "checksums", "content", "re_encoding"} <= found
    assert found <= {"files", "checksums", "content", "re_encoding", "rows", "accounting"}


def test_swapped_files_of_one_size_and_number_of_rows(run):
    """Only names are exchanged: receipts and manifest agree with the files, but not with the source."""
    first, second = units(run)[:2]
    rows = [pq.read_table(local(run, receipt.outputs[0].path)).to_pylist() for receipt in (first, second)]
    if first.dataset != second.dataset:
        second = next(r for r in units(run)[1:] if r.dataset == first.dataset)
        rows[1] = pq.read_table(local(run, second.outputs[0].path)).to_pylist()
    size = min(map(len, rows))
    rewrite(run, first, lambda _: rows[1][:size] + rows[0][size:])
    rewrite(run, second, lambda _: rows[0][:size] + rows[1][size:])
    assert failed(validate(run.url, full=True)) == {"re_encoding"}


def shifted(rows: list[dict]) -> list[dict]:
    return [row | {"loss_mask": [*row["loss_mask"][-1:], *row["loss_mask"][:-1]]} for row in rows]


@pytest.mark.parametrize("full", [False, True])
def test_a_shifted_mask(run, full):
    for receipt in units(run):
        rewrite(run, receipt, shifted)
    assert failed(validate(run.url, full)) == {"masks", "re_encoding"}


def other_ids(rows: list[dict]) -> list[dict]:
    """What a worker with another tokenizer of the same size writes: other ids, all of them legal."""
    return [row | {"input_ids": [(n * 7 + 3) % 500 for n in row["input_ids"]]} for row in rows]


def test_a_unit_of_another_tokenizer(run):
    rewrite(run, units(run)[0], other_ids)
    assert failed(validate(run.url, full=True)) == {"decoding", "re_encoding"}
    for receipt in units(run):
        rewrite(run, receipt, other_ids)
    assert failed(validate(run.url)) == {"decoding", "re_encoding"}


def test_a_tokenizer_that_was_exchanged_after_the_run(original, tmp_path):
    shutil.copytree(original / "in", tmp_path / "in")
    run = run_recipe(demo_recipe(tmp_path))
    train_tokenizer(tmp_path / "tokenizer", ["quite another text " * 50], size=400)
    assert failed(validate(run.url)) == {"same_encoder", "re_encoding"}


def test_a_template_that_was_exchanged_after_the_run(original, tmp_path):
    path = tmp_path / "template.jinja"
    text = demo_recipe(tmp_path).template.text
    path.write_text(text)
    run = run_recipe(demo_recipe(tmp_path, template={"path": str(path)}))
    assert failed(validate(run.url)) == set()
    path.write_text(text.replace("<|im_start|>", "<|im_start|> "))
    assert "same_encoder" in failed(validate(run.url))


def test_a_missing_unit(run):
    receipt = units(run)[0]
    run.remove([receipt.outputs[0].path, run.receipt(receipt.unit)])
    assert failed(validate(run.url, full=True)) == {"files", "receipts", "readable"}


def test_a_missing_unit_that_the_manifest_has_lost_too(run):
    receipt = units(run)[0]
    run.remove([*(file.path for file in receipt.outputs), run.receipt(receipt.unit)])
    manifest = json.loads(run.read_bytes("_retok/manifest.json"))
    manifest["units"] = [unit for unit in manifest["units"] if unit["unit"] != receipt.unit]
    run.write_json("_retok/manifest.json", manifest)
    assert failed(validate(run.url, full=True)) == {"accounting"}


def test_a_doubled_unit(run):
    receipt = units(run)[0]
    path = receipt.outputs[0].path.replace(receipt.unit, "copy")
    shutil.copy(local(run, receipt.outputs[0].path), local(run, path))
    outputs = (dataclasses.replace(receipt.outputs[0], path=path), *receipt.outputs[1:])
    run.write_json(run.receipt("copy"), dataclasses.replace(receipt, unit="copy", outputs=outputs).to_dict())
    assert failed(validate(run.url, full=True)) == {"files", "receipts"}
    write_manifest(run, read_receipts(run))
    assert failed(validate(run.url, full=True)) == {"unique_ids"}


def test_a_doubled_row(run):
    receipt = units(run)[0]
    rewrite(run, receipt, lambda rows: [*rows[:-1], rows[0]])
    found = failed(validate(run.url, full=True))
    assert found == {"unique_ids", "re_encoding"}


# the other checks


def change_row(**columns):
    def change(rows):
        return [rows[0] | {name: make(rows[0]) for name, make in columns.items()}, *rows[1:]]

    return change


def test_an_id_beyond_the_vocabulary(run):
    receipt = units(run)[0]
    rewrite(run, receipt, change_row(input_ids=lambda row: [*row["input_ids"][:-1], 99_999]))
    report = validate(run.url, full=True)
    assert failed(report) == {"vocabulary", "re_encoding"}
    assert "99999" in report.check("vocabulary").detail


def test_counts_that_are_not_those_of_the_row(run):
    receipt = units(run)[0]
    rewrite(run, receipt, change_row(num_loss_tokens=lambda row: row["num_loss_tokens"] + 1))
    assert {"lengths"} <= failed(validate(run.url, full=True)) <= {"lengths", "accounting"}


def hole(row: dict) -> list[dict]:
    first, second, *rest = row["segments"]
    return (
        [first, second | {"start": second["start"] + 1}, *rest]
        if second["end"] - second["start"] > 1
        else row["segments"][1:]
    )


def test_segments_with_a_hole(run):
    rewrite(run, units(run)[0], change_row(segments=hole))
    found = failed(validate(run.url, full=True))
    assert {"segments", "re_encoding"} <= found <= {"segments", "re_encoding", "masks"}


def cut_within_a_character(tokenizer, rows: list[dict]) -> list[dict]:
    """One segment cut in two of its kind, before a token that only goes on with a character."""
    for number, row in enumerate(rows):
        for place, segment in enumerate(row["segments"]):
            for token in range(segment["start"] + 1, segment["end"]):
                spelt = tokenizer.decode_bytes(row["input_ids"][token : token + 1])
                if not spelt.strip(CONTINUING):
                    parts = [segment | {"end": token}, segment | {"start": token}]
                    cut = [*row["segments"][:place], *parts, *row["segments"][place + 1 :]]
                    return [*rows[:number], row | {"segments": cut}, *rows[number + 1 :]]
    raise AssertionError("no character of several tokens")


def test_a_segment_that_begins_within_a_character(run, original):
    tokenizer = Tokenizer.load(TokenizerSpec(path=str(original / "tokenizer")))
    rewrite(run, units(run)[0], lambda rows: cut_within_a_character(tokenizer, rows))
    report = validate(run.url, full=True)
    assert failed(report) == {"decoding", "re_encoding"}
    assert "begins within a character" in report.check("decoding").detail


@pytest.mark.parametrize(
    ("spelt", "start", "said"),
    [
        (["a", "\u4f60", "b"], 1, None),
        ([b"a", b"\xe4", b"\xbd\xa0"], 1, None),
        ([b"a", b"\xe4", b"\xbd\xa0"], 2, "within a character"),
        ([b"a", b"\xe4\xbd", b"\xa0", b"b"], 2, "within a character"),
        # a token that spells the end of one text and the beginning of the next belongs to one of them
        ([b" \xe4", b"\xbd\xa0"], 1, None),
        ([b"\xe4\xbd", b"\xa0b"], 1, None),
        ([b"a", b"\xe4\xbd"], 1, "spell no text"),
    ],
)
def test_where_a_segment_may_begin(spelt, start, said):
    class Spelling:
        def decode_bytes(self, ids):
            parts = [spelt[number] for number in ids]
            return b"".join(part.encode() if isinstance(part, str) else part for part in parts)

    found = misspelling(Spelling(), np.arange(len(spelt)), np.array([0, start]))
    assert said in found if said else found is None


def test_a_row_without_trained_tokens(run):
    change = change_row(loss_mask=lambda row: [False] * row["num_tokens"], num_loss_tokens=lambda row: 0)
    rewrite(run, units(run)[0], change)
    assert failed(validate(run.url, full=True)) == {"trained_tokens", "masks", "re_encoding"}


def test_a_file_of_another_schema(run):
    path = local(run, units(run)[0].outputs[0].path)
    pq.write_table(pq.read_table(path).drop_columns(["segments"]), path)
    report = validate(run.url)
    assert {"readable", "files", "checksums"} <= failed(report)
    assert "column 'segments' is missing" in report.check("readable").detail


def test_a_stray_file_and_edited_provenance(run):
    shutil.copy(local(run, units(run)[0].outputs[0].path), local(run, "data/stray.parquet"))
    assert failed(validate(run.url)) == {"files"}
    local(run, "data/stray.parquet").unlink()
    local(run, "_retok/recipe.yaml").write_text("tokenizer: other\n")
    run.write_json("_retok/run.json", run.read_json("_retok/run.json") | {"fingerprint": "0" * 64})
    assert "provenance" in failed(validate(run.url))


def test_numbers_that_do_not_add_up(run):
    manifest = json.loads(run.read_bytes("_retok/manifest.json"))
    manifest["total"]["records_in"] += 1
    run.write_json("_retok/manifest.json", manifest)
    report = validate(run.url)
    assert failed(report) == {"accounting"}
    assert "records_in of the run" in report.check("accounting").detail


def test_a_source_that_is_gone_is_said_and_not_held_against_the_run(original, tmp_path):
    run = run_recipe(demo_recipe(tmp_path))
    shutil.rmtree(tmp_path / "in")
    report = validate(run.url)
    assert report.passed
    # what is stored can still be decoded
    assert report.check("decoding").severity == "error"
    assert report.check("decoding").numbers["rows"] > 10
    assert report.check("re_encoding").severity == "info"
    assert "not checked" in report.check("re_encoding").detail


def test_a_remasked_run_passes_too(run):
    remasked = remask(run.url, "final_answer")
    assert remasked.gone == 0
    report = validate(f"{run.url}-final_answer", full=True)
    assert failed(report) == set(), report.to_text()


# runs of numbers alone: thresholds, canaries, drift


def test_thresholds_of_the_user(tmp_path):
    checks = {"min_rows": 1000, "max_trained_share": 0.9}
    folder = make_run(tmp_path, rejects=1, checks=checks)
    report = validate(folder.url)
    check = report.check("thresholds")
    assert not check.passed
    assert "rows of the run is 60, less than 1000" in check.detail
    assert "trained_share of" not in check.detail


def test_a_threshold_of_no_number_is_refused_with_the_recipe(tmp_path):
    assert set(METRICS) == set(MEASURES)
    with pytest.raises(RecipeError, match=r"no threshold 'min_tokenz'\. Did you mean 'min_tokens'"):
        make_run(tmp_path, checks={"min_tokenz": 1})


def test_too_many_rejects(tmp_path):
    folder = make_run(tmp_path, rejects=2)
    assert "bad_json 6" in validate(folder.url).check("reject_share").detail
    assert not validate(folder.url).passed


def test_drift_between_units_and_canaries_only_warn(tmp_path):
    folder = make_run(tmp_path, units=9)
    receipts = read_receipts(folder)
    unit = receipts["data-00004"]
    with UnitWriter(
        folder, StoredUnit(unit.unit, "data", {}), kept_columns(read_recipe(folder)), "2", fingerprint=unit.fingerprint
    ) as writer:
        batch = make_batch(20, seed=5, length=(900, 1000), file="data/4.jsonl")
        writer.write(batch)
    write_manifest(folder, read_receipts(folder))
    report = validate(folder.url)
    check = report.check("drift")
    assert not check.passed
    assert check.severity == "warning"
    assert "'data-00004'" in check.detail


def test_a_unit_with_other_tokens_a_byte_drifts(tmp_path):
    """Rows as long and trained as elsewhere, of text that the tokenizer hardly knows."""
    folder = make_run(tmp_path, units=9, manifest=False)
    for name, receipt in read_receipts(folder).items():
        size = receipt.stats["tokens"] * (1 if name == "data-00004" else 4)
        stats = receipt.stats | {"text_bytes": size}
        folder.write_json(folder.receipt(name), dataclasses.replace(receipt, stats=stats).to_dict())
    write_manifest(folder, read_receipts(folder))
    check = validate(folder.url).check("drift")
    assert check.detail == "unit 'data-00004' has tokens a byte 1, data set 'data' has 0.25"
    assert check.numbers["data.tokens a byte"] == 0.25
    shown = WrittenRun(folder.url).drift()
    (drawn,) = shown.tables
    assert "how far from the median" in shown.to_text()
    at = drawn.columns.index("tokens a byte")
    assert (drawn.rows[0][1], drawn.rows[0][at]) == ("data-00004", "1.0000")
    assert {row[at] for row in drawn.rows[1:]} == {"0.2500"}
    folder.remove([folder.receipt("data-00000"), folder.receipt("data-00001")])
    assert "data.tokens a byte" not in validate(folder.url).check("drift").numbers


def test_some_rejects_of_each_reason_are_shown(tmp_path):
    """However many there are of one, the others are what a reader has not seen yet."""
    folder = make_run(tmp_path, units=1, rejects=60, manifest=False)
    rare = make_batch(5, seed=9, first=500, file="data/1.jsonl", rejects=1)
    row = rare.rejects.to_pylist()[0] | {"reason": "unknown_role", "raw": b"<script>"}
    rare.stats.rejected = Counter({"unknown_role": 1})
    rare = dataclasses.replace(rare, rejects=pa.RecordBatch.from_pylist([row], schema=REJECT_SCHEMA))
    (receipt,) = read_receipts(folder).values()
    write_unit(folder, StoredUnit("data-00001", "data", {}), [rare], fingerprint=receipt.fingerprint)
    shown = WrittenRun(folder.url).rejected_records(limit=25)
    reasons = [line[3] for line in shown.tables[0].rows]
    assert reasons == ["bad_json (rejected)"] * 24 + ["unknown_role (rejected)"]
    assert shown.tables[0].more == 61 - 25
    assert "<script>" not in shown._repr_html_()


def read_recipe(folder: OutputFolder):
    from retok_dask.datasets import open_dataset

    return open_dataset(folder.url).recipe


def test_rows_that_do_not_begin_alike_are_a_canary(tmp_path):
    folder = make_run(tmp_path, units=1, manifest=False)
    receipt = read_receipts(folder)["data-00000"]
    stats = receipt.stats | {"bos_rows": 7, "first_tokens": {str(n): 1 for n in range(20)}}
    folder.write_json(folder.receipt("data-00000"), dataclasses.replace(receipt, stats=stats).to_dict())
    write_manifest(folder, read_receipts(folder))
    check = validate(folder.url).check("canaries")
    assert not check.passed
    assert check.severity == "warning"
    assert "begin with BOS" in check.detail
    assert "most common first token" in check.detail


# what a report is


def test_an_unfinished_run_fails_by_one_check(tmp_path):
    make_run(tmp_path, manifest=False)
    report = validate(str(tmp_path))
    assert failed(report) == {"finished"}
    with pytest.raises(ValidationFailed, match="finished"):
        report.raise_if_failed()


def test_a_report_is_data_text_and_html(tmp_path):
    folder = make_run(tmp_path, rejects=2)
    report = validate(folder.url)
    assert json.loads(json.dumps(report.to_dict()))["passed"] is False
    text = report.to_text()
    assert all(check.name in text for check in report.checks)
    assert "FAILED" in text
    assert "<" in report._repr_html_()
