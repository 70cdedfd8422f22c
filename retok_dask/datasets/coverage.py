"""How many tokens it takes to cover a run's text, and a drafter's vocabulary from that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from retok_dask.datasets.reader import open_dataset
from retok_dask.datasets.vocabulary import coverage_curve, draft_vocabulary, token_counts, total_counts
from retok_dask.errors import OutputError, count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retok_dask.datasets.reader import TokenDataset
    from retok_dask.datasets.vocabulary import DraftVocabulary, TokenCounts
    from retok_dask.recipe import StorageSpec

SIZES = tuple(1000 << power for power in range(8))
"""Sizes of a draft vocabulary that a curve is drawn at: 1,000 to 128,000 tokens."""


@dataclass(frozen=True)
class Coverage:
    """Of one data set, or all of them.

    Attributes:
        tokens, trained: occurrences.
        distinct, distinct_trained: tokens of the vocabulary that occur, and that are trained.
        curve: for each size the share of all, and of trained, occurrences that the
            most frequent so many (of all, of trained) make up.
    """

    tokens: int
    trained: int
    distinct: int
    distinct_trained: int
    curve: tuple[tuple[int, float, float], ...]

    @classmethod
    def of(cls, counts: TokenCounts) -> Coverage:
        """The curve ends with the first size that covers everything."""
        every, trained = int(np.count_nonzero(counts.count)), int(np.count_nonzero(counts.trained))
        sizes = [SIZES[0], *(size for size in SIZES[1:] if size // 2 < every)]
        shares = zip(coverage_curve(counts.count, sizes), coverage_curve(counts.trained, sizes), strict=True)
        curve = tuple((size, *pair) for size, pair in zip(sizes, shares, strict=True))
        return cls(int(counts.count.sum()), int(counts.trained.sum()), every, trained, curve)

    def to_dict(self) -> dict[str, Any]:
        curve = [{"size": size, "all": every, "trained": trained} for size, every, trained in self.curve]
        return {
            "tokens": self.tokens,
            "trained": self.trained,
            "distinct": self.distinct,
            "distinct_trained": self.distinct_trained,
            "coverage": curve,
        }

    def lines(self, title: str) -> list[str]:
        head = (
            f"{title}: {count_of(self.tokens, 'token')}, {self.distinct:,} different; "
            f"{self.trained:,} trained, {self.distinct_trained:,} different"
        )
        rows = [f"  {size:>10,}{every:>10.2%}{trained:>10.2%}" for size, every, trained in self.curve]
        return [head, f"  {'most frequent':>13}{'all':>7}{'trained':>10}", *rows]


@dataclass(frozen=True)
class VocabularyTable:
    """Which tokens a run uses, by data set.

    Attributes:
        url: the run.
        datasets: coverage of each data set.
        total: of all of them.
        draft: the drafter's vocabulary, if one was asked for.
        files: URLs of its maps, if they were written.
    """

    url: str
    datasets: dict[str, Coverage]
    total: Coverage
    draft: DraftVocabulary | None = None
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        found = {
            "url": self.url,
            "datasets": {name: coverage.to_dict() for name, coverage in self.datasets.items()},
            "total": self.total.to_dict(),
            "draft": None,
        }
        if self.draft is not None:
            sizes = {"size": len(self.draft.tokens), "vocab_size": len(self.draft.t2d)}
            found["draft"] = sizes | {"coverage": self.draft.coverage, "files": self.files}
        return found

    def to_text(self) -> str:
        """A curve a data set, the sum of them, and what was written."""
        lines = [line for name, coverage in self.datasets.items() for line in coverage.lines(name)]
        if len(self.datasets) > 1:
            lines += self.total.lines("all data sets")
        if self.draft is not None:
            size = f"{len(self.draft.tokens):,} of {count_of(len(self.draft.t2d), 'token')}"
            lines.append(f"draft vocabulary: {size}, {self.draft.coverage:.2%} of what is trained")
            lines += [f"  wrote {file}" for file in self.files]
        return "\n".join(lines)


def vocabulary(
    url: str,
    *,
    datasets: Sequence[str] | None = None,
    size: int | None = None,
    vocab_size: int | None = None,
    to: str | None = None,
    storage: StorageSpec | None = None,
) -> VocabularyTable:
    """Coverage curves of a finished run, and a draft vocabulary of its trained tokens.

    Args:
        url: the run.
        datasets: only these data sets.
        size: tokens of a draft vocabulary; None makes none.
        vocab_size: tokens of the target model, which may have more rows than
            its tokenizer has tokens; None takes the tokenizer's.
        to: folder for ``d2t.npy``, ``t2d.npy`` and ``draft_tokens.npy``.
        storage: where S3 answers.

    Raises:
        UnfinishedOutput: the run has not finished.
        OutputError: there is no such data set, or the sizes do not fit.
    """
    data = open_dataset(url, storage=storage)
    if datasets is not None:
        data = data.filter(list(datasets))
    if to is not None and size is None:
        msg = f"nothing can be written to {to!r} without a size of the draft vocabulary; give --size"
        raise OutputError(msg)
    counts = token_counts(data)
    total = total_counts(counts.values())
    draft = None if size is None else draft_vocabulary(total, size, _vocab_size(data, vocab_size))
    files = draft.save(to, data.folder.storage) if draft is not None and to is not None else []
    found = {name: Coverage.of(part) for name, part in counts.items()}
    return VocabularyTable(data.folder.url, found, Coverage.of(total), draft, files)


def _vocab_size(data: TokenDataset, given: int | None) -> int:
    known: int | None = (data.manifest.run.get("tokenizer") or {}).get("vocab_size")
    if given is None:
        if known is None:
            msg = f"{data.folder.url} does not say how many tokens its tokenizer has; give --vocab-size"
            raise OutputError(msg)
        return known
    if known is not None and given < known:
        msg = f"a model of {count_of(given, 'token')} cannot read ids of a tokenizer of {known:,}; give its number of embedding rows"
        raise OutputError(msg)
    return given
