"""``python -m retok_dask.demo FOLDER``: write the demo's completions and recipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from retok_dask.demo import write_demo
from retok_dask.errors import RetokError


def main(
    folder: str,
    conversations: Annotated[int, typer.Option(help="How many good conversations.")] = 3000,
    seed: Annotated[int, typer.Option(help="The same seed writes the same bytes.")] = 0,
    output: Annotated[str | None, typer.Option(help="The recipe's output folder; default FOLDER/tokens.")] = None,
) -> None:
    """Write demo completions, a chat template and a recipe into FOLDER."""
    try:
        facts = write_demo(folder, conversations, seed, output)
    except RetokError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    bad = ", ".join(f"{count} {reason}" for reason, count in facts["bad"].items())
    typer.echo(f"{facts['records']:,} records in {facts['files']:,} files under {facts['folder']}, bad lines: {bad}")
    typer.echo(f"recipe: {facts['recipe']}")


if __name__ == "__main__":
    typer.run(main)
