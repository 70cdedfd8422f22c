"""The `retok` command. Every subcommand has ``--json`` and exits non-zero on failure.

Exit codes: 0 done, 1 the work was done and its verdict is bad (too many
rejects, a failed check), 2 it could not be done (one sentence says why).
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer

from retok_dask import __version__
from retok_dask.doing import Onlooker, doing, heard_by
from retok_dask.errors import RetokError
from retok_dask.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

SIGNALLED = (130, 143)
"""Exit codes after Ctrl-C and SIGTERM."""

app = typer.Typer(
    name="retok",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
RecipePath = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler.")]
TokenizerPath = Annotated[
    str, typer.Option("--tokenizer", "-t", help="Hub id, folder, tokenizer.json, or a recipe that names one.")
]
TemplatePath = Annotated[str | None, typer.Option("--template", help="A file with the chat template.")]
OneDataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Which data set of a recipe of several; default: the one with INPUT, else the first."
    ),
]
Output = Annotated[str, typer.Argument(help="A folder written by a run.", show_default=False)]


def main() -> None:
    """Run the command, with what it is doing on standard error; turn our own errors into one sentence and exit code 2."""
    onlooker = Onlooker(sys.stderr)
    try:
        with contextlib.closing(onlooker), heard_by(onlooker):
            app()
    except RetokError as error:
        typer.echo(f"retok: {error}", err=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code in SIGNALLED:  # typer makes the first of Ctrl-C, and says nothing
            typer.echo("retok: stopped; what is committed stays, and the same command goes on from there", err=True)
        raise


def emit(result: Any, *, as_json: bool) -> None:
    """Print a result that has ``to_dict()`` and ``to_text()``."""
    doing("")
    if as_json:
        typer.echo(orjson.dumps(result.to_dict(), option=orjson.OPT_INDENT_2, default=str).decode())
    else:
        typer.echo(result.to_text())


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retok-dask {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Completions and corpora into training tokens with proved loss masks, on Dask."""


@app.command()
def plan(recipe: RecipePath, scheduler: Scheduler = None, json: Json = False) -> None:
    """Read a sample and predict rows, tokens, time, memory and rejects, before the run."""
    from retok_dask.cluster import plan as make_plan

    emit(make_plan(Recipe.load(recipe), scheduler=scheduler), as_json=json)


@app.command()
def run(
    recipe: RecipePath,
    scheduler: Scheduler = None,
    extend: Annotated[bool, typer.Option(help="Take input files that are new since the run began.")] = False,
    restart: Annotated[bool, typer.Option(help="Delete what the output folder holds and start anew.")] = False,
    progress: Annotated[str, typer.Option(help="auto, bar, lines or none.")] = "auto",
    performance_report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write Dask's performance report to this HTML page; needs bokeh.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a recipe, or go on with it: committed units are not done again."""
    from retok_dask.cluster import run as start

    result = start(
        Recipe.load(recipe),
        scheduler=scheduler,
        extend=extend,
        restart=restart,
        progress="none" if json else progress,
        performance_report=performance_report,
    )
    emit(result, as_json=json)
    raise typer.Exit(result.exit_code)


@app.command()
def status(
    outputs: Annotated[list[str], typer.Argument(help="Folders written by runs.", show_default=False)],
    watch: Annotated[bool, typer.Option(help="Show it again every few seconds, until all runs are over.")] = False,
    json: Json = False,
) -> None:
    """Every data set of one or more runs at a glance, also while another process runs them."""
    from retok_dask.cluster import status as read_status
    from retok_dask.cluster import watch_status

    found = watch_status(*outputs) if watch else read_status(*outputs)
    emit(found, as_json=json)
    raise typer.Exit(1 if found.missing else 0)


@app.command()
def validate(
    output: Output,
    full: Annotated[bool, typer.Option(help="Check every row, not a sample.")] = False,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Check a written run against its contract."""
    from retok_dask.checks import validate as check

    with _workers(scheduler) as client:
        report = check(output, full=full, client=client)
    emit(report, as_json=json)
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def report(
    output: Output,
    to: Annotated[str | None, typer.Option(help="Folder for the report; default OUT/report.")] = None,
    json: Json = False,
) -> None:
    """Execute the report notebook by papermill; write .ipynb and one self-contained .html."""
    from retok_dask.views import report as write_report

    result = write_report(output, to=to)
    emit(result, as_json=json)
    raise typer.Exit(0 if result.passed else 1)


@app.command()
def show(
    place: Annotated[str, typer.Argument(help="A folder written by a run, or an input file with --tokenizer.")],
    row: Annotated[int, typer.Option(help="Which row, from 0.")] = 0,
    sample: Annotated[str | None, typer.Option(help="Which sample, by id.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", "-t", help="For an input file: what encodes it, also a recipe that names one."),
    ] = None,
    template: TemplatePath = None,
    dataset: OneDataset = None,
    html: Annotated[Path | None, typer.Option(help="Write a page instead of colouring the terminal.")] = None,
    json: Json = False,
) -> None:
    """One conversation, its tokens coloured by kind and mask."""
    from retok_dask.single import find_sample
    from retok_dask.views import sample_page, show_text
    from retok_dask.views.places import require_places

    require_places(html)
    found = find_sample(place, row=row, sample=sample, tokenizer=tokenizer, template=template, dataset=dataset)
    doing("")
    if json:
        typer.echo(orjson.dumps(found.sample, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
    elif html is not None:
        html.write_text(sample_page(found.sample, found.tokenizer), encoding="utf-8")
        typer.echo(f"wrote {html}")
    else:
        typer.echo(show_text(found.sample, found.tokenizer))


@app.command()
def audit(
    data: Annotated[str | None, typer.Argument(metavar="INPUT", help="Conversations to audit it on.")] = None,
    tokenizer: TokenizerPath = "",
    template: TemplatePath = None,
    dataset: OneDataset = None,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
    json: Json = False,
) -> None:
    """What the chat template does to the data: drops, date, header, stop, roles."""
    from retok_dask.single import audit_input
    from retok_dask.views import audit_page
    from retok_dask.views.places import require_places

    require_places(html)
    found = audit_input(data, tokenizer=tokenizer, template=template, dataset=dataset)
    if html is not None:
        html.write_text(audit_page(found.to_dict()), encoding="utf-8")
        typer.echo(f"wrote {html}")
    else:
        emit(found, as_json=json)


@app.command()
def encode(
    tokenizer: TokenizerPath = "",
    template: TemplatePath = None,
    mask: Annotated[str | None, typer.Option(help="Mask policy; default: the recipe's, else assistant.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="chat, text, tokens or prompts; default: the recipe's, else chat.")
    ] = None,
    dataset: OneDataset = None,
    json: Json = False,  # noqa: ARG001  the output is JSON lines either way
) -> None:
    """JSONL on standard input to JSONL with ids, mask and segments on standard output; no cluster."""
    from retok_dask.single import encode_stream

    rejected = encode_stream(
        cast("BufferedReader", sys.stdin.buffer),
        sys.stdout.buffer,
        tokenizer=tokenizer,
        template=template,
        mask=mask,
        mode=mode,
        dataset=dataset,
    )
    raise typer.Exit(1 if rejected else 0)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A tokenizer, a recipe that names one, or a written run.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same kind of thing.")],
    data: Annotated[str | None, typer.Argument(metavar="INPUT", help="Texts, or a recipe; none for two runs.")] = None,
    mode: Annotated[str, typer.Option(help="What INPUT holds: chat, text or prompts.")] = "text",
    records: Annotated[int, typer.Option(help="Records of each data set to read; 0 for all.")] = 2000,
    context: Annotated[int, typer.Option(help="Tokens of a training row, to count the cost at.")] = 4096,
    html: Annotated[Path | None, typer.Option(help="Write a page with tables and plot.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plot; its ending says the format.")] = None,
    json: Json = False,
) -> None:
    """Two tokenizers on the same texts, or two runs: lengths, ids changed, vocabulary, cost."""
    from retok_dask.compare import compare_places
    from retok_dask.views.places import require_places

    require_places(html, plot)
    found = compare_places(first, second, data, mode=mode, records=records or None, context=context)
    if html is not None:
        html.write_text(found.to_page(), encoding="utf-8")
    if plot is not None:
        found.plot().save(str(plot))
    emit(found, as_json=json)


@app.command()
def remask(
    output: Output,
    policy: Annotated[str, typer.Option(help="A preset, or kinds separated by commas.")],
    to: Annotated[str | None, typer.Option(help="The new folder; default is OUT-POLICY beside the run.")] = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Write another mask from the segments, without encoding."""
    from retok_dask.datasets import remask as write_masks

    chosen = policy.split(",") if "," in policy else policy
    with _workers(scheduler) as client:
        emit(write_masks(output, chosen, output=to, client=client), as_json=json)


@app.command()
def export(
    output: Annotated[
        str, typer.Argument(help="Folder written by a run, or the index of a mixture.", show_default=False)
    ],
    to: Annotated[str, typer.Option(help="A trainer's format; an unknown name lists them.")],
    into: Annotated[str, typer.Option("--output", "-o", help="The folder to write.")],
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    shards: Annotated[int | None, typer.Option(help="How many shards; default by tokens.")] = None,
    pack: Annotated[int | None, typer.Option(help="Pack rows to this many tokens.")] = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Write a finished run, or a mixture of runs, in a trainer's own format; see docs/exits."""
    from retok_dask.datasets import export as write_export

    with _workers(scheduler) as client:
        emit(
            write_export(output, to, into, datasets=dataset or None, shards=shards, pack=pack, client=client),
            as_json=json,
        )


@app.command()
def vocabulary(
    output: Output,
    size: Annotated[int | None, typer.Option(help="Tokens of a draft vocabulary to choose.")] = None,
    to: Annotated[str | None, typer.Option(help="Folder for its maps d2t.npy and t2d.npy.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Embedding rows of the target; default: its tokens.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """How many tokens cover how much of each data set, and a drafter's vocabulary of the most trained."""
    from retok_dask.datasets import vocabulary as cover

    emit(cover(output, datasets=dataset or None, size=size, vocab_size=vocab_size, to=to), as_json=json)


@app.command()
def mix(
    outputs: Annotated[list[str], typer.Argument(help="Folders written by runs.", show_default=False)],
    weights: Annotated[
        str | None, typer.Option(metavar="NAME=W,...", help="Weight of each data set; default: the recipe's.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="1 keeps sizes, more evens them out.")] = 1.0,
    epochs: Annotated[float, typer.Option(help="Tokens of the mixture over those of the runs.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed gives another order.")] = 0,
    to: Annotated[str | None, typer.Option(metavar="FILE", help="Write the index, a Parquet file.")] = None,
    json: Json = False,
) -> None:
    """One order over the rows of runs, by weights; a small index, no token is copied."""
    from retok_dask.datasets import mix_runs, named_weights

    found = mix_runs(
        outputs,
        named_weights(weights) if weights is not None else None,
        temperature=temperature,
        epochs=epochs,
        seed=seed,
        to=to,
    )
    emit(found, as_json=json)


@app.command()
def rejects(
    output: Output,
    to: Annotated[str | None, typer.Option(help="Write the raw records to this JSONL file, for repair.")] = None,
    reason: Annotated[list[str] | None, typer.Option(help="Only this reason; may be repeated.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """What was left out of a run, by reason, with examples; and the lines for repair."""
    from retok_dask.datasets import rejects as summarise

    emit(summarise(output, to=to, reasons=reason or None, datasets=dataset or None), as_json=json)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="OUT1", help="A folder written by a run.")],
    second: Annotated[str, typer.Argument(metavar="OUT2", help="Another one.")],
    json: Json = False,
) -> None:
    """What differs between two runs: what was asked, what was counted, which rows changed."""
    from retok_dask.datasets import diff as find_differences

    found = find_differences(first, second)
    emit(found, as_json=json)
    raise typer.Exit(0 if found.same_rows else 1)


@contextlib.contextmanager
def _workers(scheduler: str | None) -> Iterator[Any]:
    """A client of the scheduler that was named; None where none was."""
    if scheduler is None:
        yield None
        return
    from retok_dask.cluster.connect import open_address

    with open_address(scheduler) as client:
        yield client


@app.command()
def doctor(
    scheduler: Scheduler = None,
    recipe: Annotated[Path | None, typer.Option(help="Check this recipe's tokenizer and storage too.")] = None,
    json: Json = False,
) -> None:
    """Check versions, tokenizer, storage, the dashboard and its websocket, and worker memory."""
    from retok_dask.cluster import doctor as examine

    found = examine(Recipe.load(recipe) if recipe else None, scheduler=scheduler)
    emit(found, as_json=json)
    raise typer.Exit(0 if found.passed else 1)


if __name__ == "__main__":
    main()
