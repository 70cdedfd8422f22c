"""A mixture as one small file: which row of which run comes next."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from retok_dask.datasets.folder import OutputFolder
from retok_dask.datasets.mixing import Mixture, Share, mix
from retok_dask.datasets.reader import open_dataset
from retok_dask.doing import doing
from retok_dask.errors import OutputError, count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retok_dask.recipe import StorageSpec

SCHEMA = pa.schema([pa.field("run", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)])
"""Of the index: one line a row of the mixture; ``run`` counts the runs of the description from 0."""

DESCRIPTION = b"retok-mixture"
"""Key of the Parquet file's metadata where runs, shares and settings are, as JSON."""


@dataclass(frozen=True)
class MixedRuns:
    """A mixture, and where its index was written.

    Attributes:
        mixture: rows in their order.
        file: URL of the index; None if it was not written.
    """

    mixture: Mixture
    file: str | None

    def to_dict(self) -> dict[str, Any]:
        return describe(self.mixture) | {"rows": len(self.mixture), "file": self.file}

    def to_text(self) -> str:
        """The shares, a line a data set."""
        lines = [f"{'data set':<24}{'share':>8}{'epochs':>8}{'rows':>14}{'drawn':>14}"]
        for name, share in self.mixture.shares.items():
            lines.append(f"{name:<24}{share.share:>8.2%}{share.epochs:>8.2f}{share.rows:>14,}{share.draws:>14,}")
        lines.append(f"{count_of(len(self.mixture), 'row')} in all")
        return "\n".join([*lines, f"wrote {self.file}"] if self.file else lines)


def mix_runs(
    urls: Sequence[str],
    weights: Mapping[str, float] | None = None,
    *,
    temperature: float = 1.0,
    epochs: float = 1.0,
    seed: int = 0,
    to: str | None = None,
    storage: StorageSpec | None = None,
) -> MixedRuns:
    """Mix finished runs by tokens, as :func:`retok_dask.datasets.mix` does, and write the index.

    Args:
        urls: the runs.
        weights, temperature, epochs, seed: as of `mix`.
        to: the index, a Parquet file; None writes none.
        storage: where S3 answers.

    Raises:
        UnfinishedOutput: a run has not finished.
        OutputError: a run is named twice, or :func:`~retok_dask.datasets.mix` refuses.
    """
    twice = next((url for number, url in enumerate(urls) if url in urls[:number]), None)
    if twice is not None:
        msg = f"{twice} is named twice; to draw it more often, give its data sets more weight"
        raise OutputError(msg)
    runs = [open_dataset(url, storage=storage) for url in urls]
    doing("drawing the order of the rows")
    mixture = mix(runs, weights, temperature=temperature, epochs=epochs, seed=seed)
    return MixedRuns(mixture, write_mixture(mixture, to, storage=storage) if to is not None else None)


def describe(mixture: Mixture) -> dict[str, Any]:
    """Runs with their digests, shares, and what was asked for."""
    runs = [{"url": _absolute(run.folder), "content_digest": run.manifest.content_digest} for run in mixture.runs]
    shares = {name: asdict(share) for name, share in mixture.shares.items()}
    return {"runs": runs, "shares": shares, "settings": mixture.settings}


def write_mixture(mixture: Mixture, file: str, *, storage: StorageSpec | None = None) -> str:
    """Write the index of a mixture of whole runs, whole or not at all; gives its URL.

    Raises:
        OutputError: a run was filtered, so that row numbers are not those of the run.
    """
    for run in mixture.runs:
        if len(run.units) != len(run.manifest.units) or not run.row_filter.keeps_all:
            msg = f"the rows of {run.folder.url} were filtered; mix the whole run, with weight 0 for what to leave out"
            raise OutputError(msg)
    places, rows = mixture.places()
    about = orjson.dumps(describe(mixture), option=orjson.OPT_SORT_KEYS)
    table = pa.Table.from_arrays([pa.array(places), pa.array(rows)], schema=SCHEMA.with_metadata({DESCRIPTION: about}))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=["run"])
    folder, name = _place(file, storage)
    folder.write_bytes(name, buffer.getvalue())
    return file


def open_mixture(file: str, *, storage: StorageSpec | None = None) -> Mixture:
    """The mixture of an index that :func:`write_mixture` wrote.

    Raises:
        InputError: the file is not there.
        OutputError: it is no such index, or a run holds other rows than when it was mixed.
    """
    folder, name = _place(file, storage)
    with folder.open_input(name) as source:
        try:
            table = pq.read_table(source)
        except pa.ArrowInvalid as error:
            msg = f"{file} is no index of a mixture ({error}); write it with `retok mix`"
            raise OutputError(msg) from error
    about = orjson.loads((table.schema.metadata or {}).get(DESCRIPTION, b"null"))
    if about is None:
        msg = f"{file} is no index of a mixture; write it with `retok mix`"
        raise OutputError(msg)
    runs = [open_dataset(entry["url"], storage=storage) for entry in about["runs"]]
    for run, entry in zip(runs, about["runs"], strict=True):
        if run.manifest.content_digest != entry["content_digest"]:
            msg = f"{run.folder.url} holds other rows than when {file} was written; mix it again"
            raise OutputError(msg)
    mixture = Mixture(
        runs,
        np.empty(0, np.int64),
        {name: Share(**share) for name, share in about["shares"].items()},
        about["settings"],
    )
    mixture.order = table.column("row").to_numpy() + mixture.starts[table.column("run").to_numpy()]
    return mixture


def _absolute(folder: OutputFolder) -> str:
    """A folder's URL that means the same from everywhere on this machine."""
    return folder.path("").rstrip("/") if folder.is_local else folder.url


def _place(file: str, storage: StorageSpec | None) -> tuple[OutputFolder, str]:
    parent, _, name = file.rpartition("/")
    if not name:
        msg = f"{file!r} names a folder; give a file, such as mixture.parquet"
        raise OutputError(msg)
    return OutputFolder(parent or ("/" if file.startswith("/") else "."), storage, temporary="."), name


def named_weights(text: str) -> dict[str, float]:
    """``a=1,b=2.5`` as a dict.

    Raises:
        OutputError: it is not of that form.
    """
    found = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            msg = f"{part!r} is no weight; write NAME=NUMBER, several with commas between"
            raise OutputError(msg) from None
    return found
