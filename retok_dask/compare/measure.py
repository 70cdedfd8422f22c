"""The same texts through two tokenizers."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.compare.language import language_of
from retok_dask.compare.result import EXAMPLES, Comparison, Example, Group
from retok_dask.completions import layout_for, list_inputs, read_records
from retok_dask.doing import doing
from retok_dask.kernel.controls import ControlFinder, control_tokens, document_escapes
from retok_dask.tokenizers.switches import piece_text
from retok_dask.types import Conversation, Document, Kind, Record, RecordRejected, Rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from retok_dask.recipe import DatasetSpec, Recipe
    from retok_dask.tokenizers import Tokenizer
    from retok_dask.types import Item

    Ids = npt.NDArray[np.int32]
    Finder = Callable[[str], list[tuple[int, int]]]

BATCH_CHARACTERS = 1_000_000
SHORTEST = 8
"""Tokens from which on a ratio of two lengths says something."""

SHOWN_PIECES = 6


class Meter:
    """Adds up texts with their ids of both sides.

    Args:
        names: what A and B are called.
        pair: the tokenizers of A and B.
        context: see :class:`Comparison`.
    """

    def __init__(self, names: tuple[str, str], pair: tuple[Tokenizer, Tokenizer], context: int) -> None:
        self._pair = pair
        self._result = Comparison(names, context)
        self._used = [np.zeros(one.vocab_size, np.bool_) for one in pair]
        self._shown: dict[str, int] = {}

    def add(self, dataset: str, text: str, ids: tuple[Ids, Ids], said: str | None = None) -> None:
        """Count one text, whose language is that of `said` where a template has put more around it."""
        language = language_of(text if said is None else said)
        lengths = len(ids[0]), len(ids[1])
        changed = not np.array_equal(*ids)
        size, words = len(text.encode("utf-8", "replace")), len(text.split())
        for groups, name in ((self._result.datasets, dataset), (self._result.languages, language)):
            groups.setdefault(name, Group()).add(size, words, lengths, changed=changed, context=self._result.context)
        for used, one in zip(self._used, ids, strict=True):
            used[one[one < used.size]] = True
        if changed:
            self._keep(text, language, ids)

    def result(self, unmatched: tuple[int, int] = (0, 0)) -> Comparison:
        """What was added up."""
        found = self._result
        found.vocabulary = int(self._used[0].sum()), int(self._used[1].sum())
        found.vocabulary_size = self._pair[0].vocab_size, self._pair[1].vocab_size
        found.unmatched = unmatched
        return found

    def _keep(self, text: str, language: str, ids: tuple[Ids, Ids]) -> None:
        """Keep the text as an example of its language, or among those that grow most."""
        found = self._result
        new = self._shown.get(language, 0) < 2 and len(found.examples) < 4 * EXAMPLES
        growth = len(ids[1]) / max(len(ids[0]), 1)
        grows = len(ids[0]) >= SHORTEST and (len(found.longest) < EXAMPLES or growth > found.longest[-1].growth)
        if not (new or grows):
            return
        example = self._example(text, language, ids)
        if new:
            self._shown[language] = self._shown.get(language, 0) + 1
            found.examples.append(example)
        if grows and all(example.text != one.text for one in found.longest):
            found.longest = sorted([*found.longest, example], key=lambda one: -one.growth)[:EXAMPLES]

    def _example(self, text: str, language: str, ids: tuple[Ids, Ids]) -> Example:
        """Where both cut a text differently: the first place at which their tokens stand for other bytes."""
        bytes_ = [
            [one.decode_bytes([i]) for i in own[:4096].tolist()] for one, own in zip(self._pair, ids, strict=True)
        ]
        pairs = enumerate(zip_longest(*bytes_))
        at = next((n for n, (a, b) in pairs if a != b), int(np.argmax(ids[0][:1] != ids[1][:1])) if len(ids[0]) else 0)
        pieces = [[piece_text(p) for p in side[at : at + SHOWN_PIECES]] for side in bytes_]
        return Example(text[:120], language, (len(ids[0]), len(ids[1])), at, (pieces[0], pieces[1]))


def compare_texts(
    texts: Iterable[tuple[str, str]],
    pair: tuple[Tokenizer, Tokenizer],
    *,
    names: tuple[str, str] = ("A", "B"),
    context: int = 4096,
) -> Comparison:
    """Encode texts with two tokenizers.

    Args:
        texts: (data set, text) of each.
        pair: the tokenizers.
        names: what to call them.
        context: tokens of a training row, to count the cost at.
    """
    meter = Meter(names, pair, context)
    finders = [ControlFinder(control_tokens(tokenizer)).find for tokenizer in pair]
    held: list[tuple[str, str]] = []
    size = 0
    for number, one in enumerate(texts):
        held.append(one)
        size += len(one[1])
        if size >= BATCH_CHARACTERS:
            doing(f"texts encoded by both: {number:,}")
            _measure(meter, held, pair, finders)
            held, size = [], 0
    _measure(meter, held, pair, finders)
    return meter.result()


def _measure(
    meter: Meter, texts: Sequence[tuple[str, str]], pair: tuple[Tokenizer, Tokenizer], finders: Sequence[Finder]
) -> None:
    if not texts:
        return
    both = []
    for tokenizer, find in zip(pair, finders, strict=True):
        # what looks like a control token in a text is text, as in a run
        rows = [Rendered(text, [0], [int(Kind.content)], [-1], _escapes(text, find, tokenizer)) for _, text in texts]
        encoded = tokenizer.encode(rows)
        both.append(np.split(encoded.ids, encoded.row_splits[1:-1]))
    for (dataset, text), one, two in zip(texts, *both, strict=True):
        meter.add(dataset, text, (one, two))


def _escapes(text: str, find: Finder, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    return document_escapes(find(text), len(text), byte_level=tokenizer.byte_level)


def compare_on_input(
    recipe: Recipe,
    pair: tuple[Tokenizer, Tokenizer],
    *,
    names: tuple[str, str] = ("A", "B"),
    records: int | None = 2000,
    context: int = 4096,
) -> Comparison:
    """Compare two tokenizers on the first records of each data set of a recipe.

    A text is a document, or a message's content or reasoning without a
    template: what the data cost, not what a template adds.

    Args:
        recipe: names the data; its tokenizer is not used.
        pair, names, context: see :func:`compare_texts`.
        records: at most so many of each data set; None for all.
    """
    listing = list_inputs(recipe)
    texts = (
        (spec.name, text)
        for spec in recipe.datasets
        for text in _texts(recipe, spec, [unit for unit in listing.units if unit.dataset == spec.name], records)
    )
    found = compare_texts(texts, pair, names=names, context=context)
    found.without_text = [spec.name for spec in recipe.datasets if spec.name not in found.datasets]
    return found


def _texts(recipe: Recipe, spec: DatasetSpec, units: list[Any], records: int | None) -> Iterator[str]:
    layout = layout_for(spec)
    found = (record for unit in units for record in read_records(unit, spec, recipe))
    for record in islice(found, records):
        if not isinstance(record, Record):
            continue
        try:
            items = layout(record)
        except RecordRejected:
            continue
        for item in items:
            yield from texts_of(item)


def texts_of(item: Item) -> Iterator[str]:
    """The texts of a document or of a conversation's messages."""
    if isinstance(item, Document):
        yield item.text
    elif isinstance(item, Conversation):
        for message in item.messages:
            values = (message.get(name) for name in ("reasoning_content", "content"))
            yield from (value for value in values if isinstance(value, str) and value)
