"""Our side of a comparison: one data set of JSON lines to committed Parquet, in this process."""

from __future__ import annotations

import datetime as dt
import hashlib
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from benchmarks.child import measured
from retok_dask import ChatTemplate, Recipe, Tokenizer
from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import OutputFolder, UnitWriter
from retok_dask.demo import chat_template, qwen_tokenizer_spec
from retok_dask.kernel import Kernel, UnitStats

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec


def recipe_for(source: str, output: str, **changes: Any) -> Recipe:
    """The recipe of one data set with the demo's tokenizer and template."""
    return Recipe.from_dict(
        {
            "tokenizer": qwen_tokenizer_spec(),
            "template": {"text": chat_template()},
            "datasets": [{"input": source}],
            "output": output,
            **changes,
        }
    )


class Pipeline:
    """Tokenizer, template and kernel of a recipe, loaded as a worker loads them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.dataset: DatasetSpec = recipe.datasets[0]
        self.tokenizer = Tokenizer.load(recipe.tokenizer, engine=recipe.engine)
        day = dt.date(2026, 1, 1)
        self.template = ChatTemplate.load(recipe.template, tokenizer=self.tokenizer, recipe=recipe, date=day)
        self.kernel = Kernel(recipe, self.dataset, self.tokenizer, self.template)

    def run(self) -> UnitStats:
        """Read, encode and commit every unit; the stages' seconds with ``write`` among them."""
        folder = OutputFolder(self.recipe.output)
        total = UnitStats()
        for unit in list_inputs(self.recipe).units:
            writing = 0.0
            with UnitWriter(folder, unit) as writer:
                for batch in self.kernel.process(read_records(unit, self.dataset, self.recipe)):
                    started = perf_counter()
                    writer.write(batch)
                    writing += perf_counter() - started
                    total += batch.stats
                started = perf_counter()
            writing += perf_counter() - started
            total.seconds["write"] += writing
        return total


def end_to_end(source: str, **changes: Any) -> dict[str, Any]:
    """Encode a file; cost, counts, seconds a stage, and the digests that the peers give too."""
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "out")
        pipeline = Pipeline(recipe_for(source, str(output), **changes))
        with measured(answer):
            stats = pipeline.run()
        if stats.records_in != stats.samples:
            msg = f"{stats.records_in} records gave {stats.samples} samples: {dict(stats.rejected)}"
            raise RuntimeError(msg)
        digests = _digests(output)
        written = sum(path.stat().st_size for path in output.glob("data/**/*.parquet"))
    return answer | {
        "rows": stats.samples,
        "tokens": stats.tokens,
        "trained": stats.loss_tokens,
        "bytes": Path(source).stat().st_size,
        "written": written,
        "seconds": dict(stats.seconds),
        "engines": [pipeline.tokenizer.engine, pipeline.template.engine],
        **digests,
    }


def _digests(output: Path) -> dict[str, str]:
    """sha256 of all ids (int32) and of all loss masks (one byte a token), rows in the order of the input."""
    ids, mask = hashlib.sha256(), hashlib.sha256()
    for path in sorted(output.glob("data/**/*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["input_ids", "loss_mask"]):
            ids.update(batch.column("input_ids").flatten().to_numpy())
            mask.update(batch.column("loss_mask").flatten().to_numpy(zero_copy_only=False))
    return {"ids_digest": ids.hexdigest(), "mask_digest": mask.hexdigest()}
