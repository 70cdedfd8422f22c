"""``python -m retok_dask.cluster.replay OUT UNIT RECORD``: one record again, alone, in this process.

For a record that was set aside because it killed its worker: here it may kill
this process, under a debugger or with more memory, and harms nothing else.
"""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from retok_dask.cluster.models import load_models
from retok_dask.completions import Listing, read_records
from retok_dask.datasets import OutputFolder, read_recipe
from retok_dask.datasets.folder import LISTING
from retok_dask.errors import RetokError
from retok_dask.kernel import Kernel, UnitStats

if TYPE_CHECKING:
    from collections.abc import Sequence


def command(output: str, unit: str, ordinal: int) -> str:
    """The shell command that replays one record."""
    return f"python -m retok_dask.cluster.replay {shlex.quote(output)} {shlex.quote(unit)} {ordinal}"


def replay(arguments: Sequence[str]) -> int:
    """Do one record of a run's input again, and print what became of it.

    Args:
        arguments: output folder, unit id, ordinal of the record in the unit.

    Returns:
        0 if the record could be processed, 1 if there is none, 2 if the folder holds no such unit.
    """
    output, name, ordinal = arguments[0], arguments[1], int(arguments[2])
    folder = OutputFolder(output)
    recipe = read_recipe(folder)
    units = {unit.id: unit for unit in Listing.from_json(folder.read_bytes(LISTING)).units}
    if name not in units:
        print(f"{output} has no unit {name!r}", file=sys.stderr)  # noqa: T201  a command's answer
        return 2
    unit = replace(units[name], first=ordinal, last=ordinal + 1)
    spec = next(spec for spec in recipe.datasets if spec.name == unit.dataset)
    tokenizer, template = load_models(recipe, recipe.date or dt.datetime.now(dt.UTC).date())
    records = read_records(unit, spec, recipe)
    total = UnitStats()
    for batch in Kernel(recipe, spec, tokenizer, template).process(records):
        total += batch.stats
        for refused in batch.rejects.to_pylist():
            print(f"{refused['outcome']}: {refused['reason']}: {refused['detail']}", file=sys.stderr)  # noqa: T201
    print(orjson.dumps(total.to_dict(), option=orjson.OPT_INDENT_2).decode())  # noqa: T201
    return 0 if total.records_in else 1


if __name__ == "__main__":
    try:
        sys.exit(replay(sys.argv[1:]))
    except RetokError as error:
        sys.exit(f"retok: {error}")
