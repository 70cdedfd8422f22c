"""All errors that retok-dask raises on purpose.

    RetokError
    ├── RecipeError          the recipe cannot be used            (ValueError)
    ├── InputError           an input cannot be listed or opened  (OSError)
    ├── TokenizerError       a tokenizer cannot be loaded or used (ValueError)
    ├── TemplateError        a chat template cannot be used       (ValueError)
    │   └── UnprovenTemplate   its masks cannot be proved
    ├── StorageError         reading or writing a file system failed (OSError)
    ├── OutputError          an output folder cannot be used      (ValueError)
    │   ├── FingerprintMismatch  it belongs to another recipe
    │   ├── OutputLocked         another live client writes to it
    │   └── UnfinishedOutput     it has no manifest yet
    ├── ClusterError         the Dask cluster cannot be used      (RuntimeError)
    └── ValidationFailed     a written run breaks its contract    (RuntimeError)

Each message says what happened, quotes the value, and names the way out. A
record that cannot be used is no error: it becomes a reject (see
:class:`retok_dask.types.Reject`), and the run goes on.

Every class takes one message string, so that all of them survive pickling on
the way from a worker to the client.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RetokError(Exception):
    """Base of every error raised on purpose."""


class RecipeError(RetokError, ValueError):
    """A recipe is missing, unreadable, or asks for something impossible."""


class InputError(RetokError, OSError):
    """An input pattern matches nothing, or a file cannot be opened at all."""


class InputChanged(InputError):
    """An input file is another than the one that was listed."""


class TokenizerError(RetokError, ValueError):
    """A tokenizer cannot be loaded, or cannot give exact ids for this job."""


class TemplateError(RetokError, ValueError):
    """A chat template does not compile, or does something that is not allowed."""


class UnprovenTemplate(TemplateError):
    """No method can prove which text of this template belongs to which message."""


class StorageError(RetokError, OSError):
    """A file system refused, after the retries that make sense."""


class OutputError(RetokError, ValueError):
    """An output folder cannot be used for what was asked."""


class FingerprintMismatch(OutputError):
    """The output folder was written by another recipe, input, tokenizer or template."""


class OutputLocked(OutputError):
    """Another client that is still alive writes to this output folder."""


class UnfinishedOutput(OutputError):
    """The output folder has no manifest: its run has not finished."""


class ClusterError(RetokError, RuntimeError):
    """The scheduler does not answer, or workers do not fit the job."""


class ValidationFailed(RetokError, RuntimeError):
    """A written run breaks its contract."""


NAMES = 30
"""Legal names that a message lists."""


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest legal name, or the list, its first names where it is long.

    >>> did_you_mean("outptu", ["output", "mask"])
    " Did you mean 'output'?"
    """
    names = sorted(legal)
    near = get_close_matches(name, names, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return f" Legal names: {', '.join(names[:NAMES])}{more}."


def count_of(number: int, one: str, more: str = "") -> str:
    """A count with its word: one thing, or several of them (with an ``s``, or as `more` has it).

    >>> count_of(1, "row"), count_of(1200, "row"), count_of(0, "entry", "entries")
    ('1 row', '1,200 rows', '0 entries')
    """
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def first_few(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
