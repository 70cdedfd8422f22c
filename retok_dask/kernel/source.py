"""Where rows of ids come from: the tokenizer, and for a written run also the template, that made them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson

from retok_dask.completions import open_fs
from retok_dask.errors import InputError, OutputError
from retok_dask.kernel.retokenize import Retokenizer
from retok_dask.recipe import Recipe
from retok_dask.tokenizers import Tokenizer

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec, StorageSpec
    from retok_dask.templates import ChatTemplate


_LEFT_OUT = frozenset(
    {"reasoning_dropped", "content_dropped", "tool_call_dropped", "message_not_rendered", "system_dropped"}
)
"""Counts of what a template does not print."""


@dataclass(slots=True)
class Source:
    """What made the rows of a data set.

    Attributes:
        tokenizer: whose ids they are.
        template: that rendered their conversations; None for rows of ids alone.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    @property
    def digest(self) -> str:
        """What the rows of the data set depend on, as hex."""
        return f"{self.tokenizer.digest}{'-' + self.template.digest if self.template is not None else ''}"

    def pack(self) -> tuple[bytes, Any]:
        """All that another process needs, without files or hub."""
        return self.tokenizer.payload(), self.template.reduce() if self.template is not None else None

    @classmethod
    def unpack(cls, packed: tuple[bytes, Any]) -> Self:
        """Undo :meth:`pack`."""
        from retok_dask.templates import ChatTemplate  # noqa: PLC0415  only conversations of a written run need it

        payload, state = packed
        return cls(Tokenizer.from_payload(payload), ChatTemplate.restore(state) if state is not None else None)


def load_sources(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Source]:
    """Sources of all data sets that have one, by name; each table of control tokens checked to be complete.

    Raises:
        RecipeError: a table is incomplete, or ids of a data set cannot be decoded exactly.
        RetokError: as for :func:`load_source`.
    """
    found = {spec.name: source for spec in recipe.datasets if (source := load_source(recipe, spec)) is not None}
    for spec in recipe.datasets:
        retokenizer_for(spec, found.get(spec.name), tokenizer)
    return found


def retokenizer_for(dataset: DatasetSpec, source: Source | None, tokenizer: Tokenizer) -> Retokenizer | None:
    """What turns a data set's ids into this tokenizer's; None where they are that already, or are no ids.

    Raises:
        RecipeError: see :class:`Retokenizer`.
    """
    if dataset.mode != "tokens" or source is None or source.tokenizer.digest == tokenizer.digest:
        return None
    return Retokenizer(dataset, source.tokenizer, tokenizer)


def load_source(recipe: Recipe, dataset: DatasetSpec) -> Source | None:
    """Load what made the rows of a data set; None for data that are no ids of another tokenizer.

    For a folder written by a run, tokenizer and template are those that its
    ``recipe.yaml`` names, checked against the digests in its ``run.json``.

    Raises:
        InputError: the input is no folder written by a run.
        OutputError: its tokenizer or template is not any more what it was.
        TokenizerError, TemplateError: they cannot be loaded.
    """
    if dataset.source_tokenizer is not None:
        return Source(Tokenizer.load(dataset.source_tokenizer, storage=recipe.storage, engine=recipe.engine))
    if dataset.format != "retok":
        return None
    folders = [dataset.input] if isinstance(dataset.input, str) else list(dataset.input)
    found = [_read_run(folder, recipe.storage) for folder in folders]
    if len({digests for _, _, digests in found}) > 1:
        msg = (
            f"data set {dataset.name!r}: its folders were written with different tokenizers or templates; "
            "make a data set of each"
        )
        raise InputError(msg)
    old, run, _ = found[0]
    tokenizer = Tokenizer.load(old.tokenizer, storage=recipe.storage, engine=recipe.engine)
    _check_digest("tokenizer", tokenizer.digest, run["content"]["tokenizer"], folders[0])
    if dataset.mode not in ("chat", "prompts") or run["content"]["template"] is None:
        return Source(tokenizer)
    from retok_dask.templates import ChatTemplate  # noqa: PLC0415  only conversations of a written run need it

    # each row is checked by rendering it whole, also where the old run cut conversations into turns
    whole = old.with_changes(history="whole", engine=recipe.engine)
    date = dt.date.fromisoformat(run["date"]) if run.get("date") else dt.datetime.now(dt.UTC).date()
    template = ChatTemplate.load(old.template, tokenizer=tokenizer, recipe=whole, date=date)
    _check_digest("chat template", template.digest, run["content"]["template"], folders[0])
    return Source(tokenizer, template)


def _read_run(folder: str, storage: StorageSpec) -> tuple[Recipe, dict[str, Any], tuple[Any, Any]]:
    fs, path = open_fs(folder.rstrip("/"), storage)
    try:
        run = orjson.loads(fs.cat_file(f"{path}/_retok/run.json"))
        recipe = Recipe.from_yaml(fs.cat_file(f"{path}/_retok/recipe.yaml"), source=f"{folder}/_retok/recipe.yaml")
        content = run["content"]
        return recipe, run, (content["tokenizer"], content["template"])
    except FileNotFoundError:
        msg = f"{folder!r} holds no run: format retok wants the output folder of one, without a pattern"
        raise InputError(msg) from None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        msg = f"{folder!r} holds no run that this version can read: {error!r}"
        raise InputError(msg) from error


def left_out_before(dataset: DatasetSpec, storage: StorageSpec) -> dict[str, int]:
    """What the run that wrote a data set's rows left out of its own data, as it counted it: no row says it any more.

    Empty for other data, and for folders whose run has not finished.
    """
    counts: Counter[str] = Counter()
    for folder in (
        ([dataset.input] if isinstance(dataset.input, str) else dataset.input) if dataset.format == "retok" else ()
    ):
        fs, path = open_fs(folder.rstrip("/"), storage)
        try:
            counts += Counter(orjson.loads(fs.cat_file(f"{path}/_retok/manifest.json"))["total"]["counts"])
        except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError):
            continue
    return {name: counts[name] for name in sorted(counts) if name in _LEFT_OUT}


def _check_digest(what: str, now: str, then: str, folder: str) -> None:
    if now != then:
        msg = (
            f"the {what} that {folder!r} was written with has changed since: its digest was {then[:12]}..., "
            f"now it is {now[:12]}...; without the old one its ids cannot be read"
        )
        raise OutputError(msg)
