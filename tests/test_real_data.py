"""The main job on real conversations: ids of every record equal `apply_chat_template`, masks proved.

Two families: Qwen3.6's tokenizer with the demo's template, and Qwen3's tokenizer with its own template.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import assets
import loaded
import pyarrow.parquet as pq
import pytest
import yaml
from pipelines import trained_text
from transformers import AutoTokenizer

from retok_dask.checks import validate
from retok_dask.cluster import run, status
from retok_dask.completions import layout_for
from retok_dask.datasets import export, mix_runs, open_dataset
from retok_dask.demo import chat_template, qwen_tokenizer_spec
from retok_dask.kernel import UnitStats
from retok_dask.recipe import Recipe
from retok_dask.single import Pipeline
from retok_dask.templates import normalize_conversation
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import Reject

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the real conversations are not beside this checkout")

FILES = {
    # pattern: records, and those that are no conversation to train on
    "messages/tinker_conversations.jsonl": (128, 0),
    "messages/v1_sft_demo.jsonl": (500, 0),
    "messages/reason_tool_use_demo_50.jsonl": (50, 0),
    "messages/kto_en_demo.json": (300, 0),
    "sharegpt/glaive_toolcall_en_demo.json": (300, 0),
    "sharegpt/glaive_toolcall_zh_demo.json": (300, 0),
    "sharegpt/dummy_conversation.json": (500, 0),
    "sharegpt/sharegpt_zh_1K_format.jsonl": (1000, 1),
    "trajectories/tau_bench_airline.json": (200, 0),
    "trajectories/swe_agent/*.traj": (22, 0),
}


@cache
def family(name: str):
    """A pipeline and the reference tokenizer of transformers with the same template."""
    common = {"output": "-", "datasets": [{"input": "-"}], "control_tokens": "allow"}
    if name == "qwen3_6":
        recipe = Recipe.from_dict({"tokenizer": qwen_tokenizer_spec(), "template": {"text": chat_template()}} | common)
        made = _with_fast_engine(recipe)
        reference = loaded.reference(made.tokenizer.definition.json, chat_template=chat_template())
    else:
        folder = assets.tokenizer_folder(name)
        made = _with_fast_engine(Recipe.from_dict({"tokenizer": str(folder)} | common))
        reference = AutoTokenizer.from_pretrained(folder)
    return made, reference


def _with_fast_engine(recipe: Recipe) -> Pipeline:
    """A pipeline whose tokenizer does not leave this little text to the reference."""
    made = Pipeline(recipe)
    made.__dict__["tokenizer"] = Tokenizer.load(recipe.tokenizer)
    assert made.tokenizer.engine == "fastokens"
    return made


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("name", ["qwen3_6", "qwen3"])
def test_every_record_equals_the_reference(name, pattern):
    whole, reference = family(name)
    made = Pipeline(whole.recipe.with_changes(datasets=[{"input": str(DATA / pattern)}]))
    made.__dict__ |= {"tokenizer": whole.tokenizer, "template": whole.template}
    found = list(made.records())
    rows, stats = {}, UnitStats()
    for batch in made.process(found):
        stats += batch.stats
        rows |= {(row["source_file"], row["sample_id"].split("-")[1]): row for row in batch.samples.to_pylist()}
    assert (stats.records_in, stats.records_in - stats.records_out) == FILES[pattern]
    assert stats.balanced
    layout = layout_for(made.dataset)
    compared = 0
    for record in found:
        row = rows.get((record.file, str(record.offset if record.offset >= 0 else record.row)))
        if row is None or isinstance(record, Reject):
            continue
        (item,) = layout(record)
        conversation = normalize_conversation(item, made.recipe.normalize)
        ids = reference.apply_chat_template(
            conversation.messages, tools=conversation.tools, tokenize=True, return_dict=False
        )
        assert row["input_ids"] == ids, record
        trained = "".join(trained_text(row, made.tokenizer))
        for message, flag in zip(conversation.messages, item.flags or [None] * len(conversation.messages), strict=True):
            if message["role"] == "assistant" and flag is not False and isinstance(message["content"], str):
                assert message["content"].strip() in trained, record
        compared += 1
    assert compared == stats.records_out


def check_mixture(output: str) -> None:
    """The ten data sets as one, evened out and some rows several times, in the form that a trainer reads."""
    mixture = mix_runs([output], temperature=2, epochs=1.3, to="mixture.parquet").mixture
    assert all(share.draws for share in mixture.shares.values())
    written = export("mixture.parquet", "trl-assistant", "exported", shards=5)
    assert (written.documents, written.shards) == (len(mixture), 5)
    rows = pq.read_table("exported/data").to_pydict()
    truth = [(row["input_ids"].tolist(), row["loss_mask"].astype(int).tolist()) for row in open_dataset(output)]
    found = zip(rows["input_ids"], rows["assistant_masks"], strict=True)
    assert all(one == truth[number] for one, number in zip(found, mixture.order, strict=True))


@pytest.mark.parametrize("name", ["qwen3_6", "qwen3"])
def test_the_example_recipe_runs_on_a_cluster(name, tmp_path, monkeypatch):
    """`examples/real-conversations.yaml`: ten data sets at once, every record accounted for, valid, as in the README."""
    monkeypatch.chdir(tmp_path)
    whole, _ = family(name)
    example = yaml.safe_load((ROOT / "examples" / "real-conversations.yaml").read_text())
    for spec in example["datasets"]:
        spec["input"] = spec["input"].replace("data/", f"{DATA}/", 1)
    given = whole.recipe.model_dump(mode="json", exclude_unset=True)
    example |= {"tokenizer": given["tokenizer"], "template": given.get("template", {})}
    result = run(Recipe.from_dict(example), progress="none")
    assert result.exit_code == 0, result.to_text()
    data = open_dataset(example["output"])
    assert len(data) == sum(records - bad for records, bad in FILES.values())
    report = validate(example["output"])
    assert report.passed, report.to_text()
    check_mixture(example["output"])
    if name == "qwen3":
        table = status(example["output"]).to_text().splitlines()[: 1 + len(example["datasets"])]
        assert "\n".join(line.rstrip() for line in table) in (ROOT / "README.md").read_text()
