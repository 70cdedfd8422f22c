"""Proof, before it is used, that the fast engine gives the reference's ids for one tokenizer.

A certificate holds for one tokenizer definition and one set of library
versions. It is made at first use, by comparing both engines on text chosen to
tell them apart, and kept as readable JSON in the user's cache folder. One kind
of difference is known and can be told from the text alone (see
:data:`GUARDS`); a certificate that needs it sends such rows to the reference.
Any other difference, and the fast engine is not used for this tokenizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import orjson

from retok_dask.errors import count_of
from retok_dask.tokenizers import probes
from retok_dask.tokenizers.cache import cache_folder
from retok_dask.tokenizers.definition import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from retok_dask.tokenizers.engines import Engine

FORMAT = 4
Tier = Literal["quick", "full"]
GUARDS = ("'\u017f",)
"""Substrings on which engines are known to differ: case folding of ``'ſ`` in contractions (o200k)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One group of texts that both engines encoded.

    Attributes:
        name: what the texts are.
        texts, bytes: how many, and how large.
        differences: texts whose ids differ and that hold no guard.
        guarded: texts whose ids differ and that hold a guard.
        examples: the first few differing texts, shortened.
    """

    name: str
    texts: int
    bytes: int
    differences: int = 0
    guarded: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was compared, for which tokenizer and which libraries, and what came out.

    Attributes:
        tokenizer: sha256 of the definition that both engines loaded.
        versions: library to version.
        passed: no difference beyond the guarded ones.
        guards: substrings whose rows go to the reference.
        reason: why it did not pass, in words; empty if it did.
        checks: see :class:`Check`.
        tier: how much was compared.
        seconds: how long making it took.
    """

    tokenizer: str
    versions: dict[str, str]
    passed: bool
    guards: list[str] = field(default_factory=list)
    reason: str = ""
    checks: list[Check] = field(default_factory=list)
    tier: Tier = "quick"
    seconds: float = 0.0
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for ``run.json``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        return cls(**{**data, "checks": [Check(**check) for check in data["checks"]]})

    def holds_for(self, tokenizer: str) -> bool:
        """Whether it is about this definition and the libraries of this process."""
        return self.format == FORMAT and self.tokenizer == tokenizer and self.versions == library_versions()


def library_versions() -> dict[str, str]:
    """Versions of the libraries whose ids are compared; a missing one is left out."""
    return installed(("tokenizers", "fastokens"))


def certify(
    tokenizer: str,
    reference: Engine,
    fast: Engine,
    *,
    added_tokens: Sequence[str],
    token_texts: Sequence[str],
    sample: Iterable[str] = (),
    tier: Tier = "quick",
) -> Certificate:
    """Compare two engines on everything that tells engines apart.

    Args:
        tokenizer: sha256 of the definition both were made from.
        reference, fast: the two engines.
        added_tokens: text of each added token.
        token_texts: text of each vocabulary entry that is valid text.
        sample: texts of the user's own data.
        tier: ``quick`` for first use, ``full`` for every code point in more
            contexts and more of everything else; see :func:`probes.groups`.
    """
    begin = time.perf_counter()
    checks = []
    for name, texts in probes.groups(added_tokens, token_texts, full=tier == "full"):
        checks.append(_compare(name, texts, reference, fast))
        if checks[-1].differences:  # decided; the rest would only cost time
            break
    else:
        own = list(sample)
        if own:
            checks.append(_compare("sample of the user's data", own, reference, fast))
    failed = [check for check in checks if check.differences]
    return Certificate(
        tokenizer=tokenizer,
        versions=library_versions(),
        passed=not failed,
        guards=list(GUARDS),
        reason=f"other ids for {count_of(failed[0].differences, 'text')} of '{failed[0].name}'" if failed else "",
        checks=checks,
        tier=tier,
        seconds=round(time.perf_counter() - begin, 2),
    )


def refused(tokenizer: str, reason: str) -> Certificate:
    """The certificate of a tokenizer that the fast engine cannot load."""
    return Certificate(tokenizer=tokenizer, versions=library_versions(), passed=False, reason=reason)


def _compare(name: str, texts: Sequence[str], reference: Engine, fast: Engine) -> Check:
    differing = [texts[row] for row in differing_rows(reference.encode(texts), fast.encode(texts))]
    guarded = [text for text in differing if any(guard in text for guard in GUARDS)]
    return Check(
        name=name,
        texts=len(texts),
        bytes=sum(len(text.encode()) for text in texts),
        differences=len(differing) - len(guarded),
        guarded=len(guarded),
        examples=[ascii(text[:80]) for text in differing[:5]],
    )


def differing_rows(one: Any, other: Any) -> list[int]:
    """Rows whose ids differ between two flat encodings of the same texts."""
    (ids, splits), (other_ids, other_splits) = one, other
    if np.array_equal(splits, other_splits):
        places = np.flatnonzero(ids != other_ids)
        return [int(row) for row in np.unique(np.searchsorted(splits, places, side="right") - 1)]
    return [
        row
        for row in range(splits.size - 1)
        if not np.array_equal(ids[splits[row] : splits[row + 1]], other_ids[other_splits[row] : other_splits[row + 1]])
    ]


# --- keeping them ----------------------------------------------------------


def _path(tokenizer: str) -> Path:
    about = hashlib.sha256(orjson.dumps([FORMAT, library_versions()], option=orjson.OPT_SORT_KEYS)).hexdigest()
    return cache_folder() / "certificates" / f"{tokenizer[:32]}-{about[:12]}.json"


def stored(tokenizer: str) -> Certificate | None:
    """The kept certificate of this tokenizer and these libraries, if there is a sound one."""
    try:
        found = Certificate.from_dict(orjson.loads(_path(tokenizer).read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return found if found.holds_for(tokenizer) else None


def store(certificate: Certificate) -> None:
    """Keep a certificate for the next process, in place of the one there was.

    A cache that cannot be written is no error: the next process makes its own.
    """
    path = _path(certificate.tokenizer)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_bytes(orjson.dumps(certificate.to_dict(), option=orjson.OPT_INDENT_2))
        partial.replace(path)
