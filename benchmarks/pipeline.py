"""Our side of a comparison: one data set of JSON lines to committed Parquet, in this process."""

from __future__ import annotations

import datetime as dt
import gc
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from benchmarks.child import measured
from benchmarks.harness import CACHE
from benchmarks.runs import commits_of, recipe_for
from retok_dask import ChatTemplate, Tokenizer
from retok_dask.completions import list_inputs, read_records
from retok_dask.datasets import OutputFolder, UnitWriter
from retok_dask.kernel import Kernel, UnitStats
from retok_dask.types import Kind, Rendered

if TYPE_CHECKING:
    from retok_dask import Recipe
    from retok_dask.recipe import DatasetSpec


class Pipeline:
    """Tokenizer, template and kernel of a recipe, loaded as a worker loads them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.dataset: DatasetSpec = recipe.datasets[0]
        self.tokenizer = Tokenizer.load(recipe.tokenizer, engine=recipe.engine)
        day = dt.date(2026, 1, 1)
        self.template = ChatTemplate.load(recipe.template, tokenizer=self.tokenizer, recipe=recipe, date=day)
        self.kernel = Kernel(recipe, self.dataset, self.tokenizer, self.template)
        # what a worker does when it starts: load both engines, and keep the collector off what stays
        self.tokenizer.encode([Rendered("warm", [0], [int(Kind.content)], [-1])])
        self.engines = [self.tokenizer.engine, self.template.engine]
        self.template.warm_up()
        gc.collect()
        gc.freeze()

    def run(self) -> UnitStats:
        """Read, encode and commit every unit; the counts of their receipts."""
        return self.run_into(self.recipe)

    def run_into(self, recipe: Recipe) -> UnitStats:
        """The same for another recipe, that differs in input and output alone."""
        folder = OutputFolder(recipe.output)
        total = UnitStats()
        for unit in list_inputs(recipe).units:
            with UnitWriter(folder, unit) as committing:
                for batch in self.kernel.process(read_records(unit, recipe.datasets[0], recipe)):
                    committing.write(batch)
            assert committing.receipt is not None
            total += UnitStats.from_dict(committing.receipt.stats)
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
        "engines": pipeline.engines,
        **digests,
    }


def in_turn(sources: dict[str, str], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Encode several files in one process, in turn and several times over: what each costs a worker that is long at work."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as scratch:
        pipeline = Pipeline(recipe_for(next(iter(sources.values())), str(Path(scratch, "out"))))
        for number in range(repeats):
            for name, source in sources.items():
                answer: dict[str, Any] = {"bytes": Path(source).stat().st_size, "engines": pipeline.engines}
                output = Path(scratch, f"{name}-{number}")
                with measured(answer):
                    stats = pipeline.run_into(recipe_for(source, str(output)))
                answer |= {"tokens": stats.tokens, "trained": stats.loss_tokens, "seconds": dict(stats.seconds)}
                answer["written"] = sum(path.stat().st_size for path in output.glob("data/**/*.parquet"))
                shutil.rmtree(output)
                found[name].append(answer)
    return found


def commits(source: str, **changes: Any) -> dict[str, Any]:
    """Encode a file in this process alone; when each unit was committed."""
    with tempfile.TemporaryDirectory(dir=CACHE / "bench") as scratch:
        pipeline = Pipeline(recipe_for(source, str(Path(scratch, "out")), **changes))
        pipeline.run()
        return {"commits": commits_of(Path(scratch, "out"))}


def _digests(output: Path) -> dict[str, str]:
    """sha256 of all ids (int32) and of all loss masks (one byte a token), rows in the order of the input."""
    ids, mask = hashlib.sha256(), hashlib.sha256()
    for path in sorted(output.glob("data/**/*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["input_ids", "loss_mask"]):
            ids.update(batch.column("input_ids").flatten().to_numpy())
            mask.update(batch.column("loss_mask").flatten().to_numpy(zero_copy_only=False))
    return {"ids_digest": ids.hexdigest(), "mask_digest": mask.hexdigest()}
