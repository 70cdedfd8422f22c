"""Functions of the user's own: called so that what they do costs one record, and what they give is looked at."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retok_dask.errors import RecipeError, count_of
from retok_dask.types import Conversation, Document, Item, RecordFiltered, RecordRejected, RejectReason, TokenRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from retok_dask.recipe import DatasetSpec

TAKES: dict[str, tuple[type, ...]] = {"text": (Document,), "tokens": (TokenRow,)}
"""What a mode's rows are made of; the other modes take conversations, and documents among them."""


def own_function(name: str, what: str) -> Callable[[dict[str, Any]], Any]:
    """The function that a recipe names as ``module:function``.

    A module that lies in the folder where the command runs is found too, as
    ``python -m`` finds it.

    Raises:
        RecipeError: there is none of this name.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(_module(module), attribute)
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        msg = (
            f"{what} {name!r} cannot be imported: {told}; write module:function, and have the module's file in the "
            "folder where the command runs, or where the Python of every worker finds it (PYTHONPATH)"
        )
        raise RecipeError(msg) from error
    if not callable(function):
        msg = f"{what} {name!r} is no function but of type {type(function).__name__}; name a function of one record"
        raise RecipeError(msg)
    return function  # type: ignore[no-any-return]


def _module(name: str) -> ModuleType:
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            here = str(Path.cwd())
            if error.name != name.partition(".")[0] or here in sys.path:
                raise
            sys.path.append(here)  # last: it hides nothing that is installed
            try:
                return import_module(name)
            except ModuleNotFoundError:
                sys.path.remove(here)
                raise


def function_files(specs: Iterable[DatasetSpec]) -> dict[str, str]:
    """Hex sha256 of the module's file of each function that data sets name, where it can be read here."""
    names = {spec.layout for spec in specs if ":" in spec.layout} | {
        spec.filters.function for spec in specs if spec.filters.function
    }
    found = {}
    for name in sorted(names):
        with contextlib.suppress(Exception):  # built in, of a notebook, or only workers have it: nothing to compare
            path = inspect.getsourcefile(_module(name.partition(":")[0]))
            found[name] = hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    return found


def call_own(function: Callable[[dict[str, Any]], Any], name: str, value: dict[str, Any]) -> Any:
    """What a user's function gives for a record.

    It gets a copy, which it may change: kept columns and rejects show the record as it was read.
    What it prints goes to standard error: the other stream is the command's.

    Raises:
        RecordRejected, RecordFiltered: the function says so.
        RecordRejected: it fails.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return function(copy.deepcopy(value))
    except (RecordRejected, RecordFiltered) as refusal:
        reason: object = refusal.reason
        detail: object = refusal.detail
        if isinstance(reason, str) and isinstance(detail, str):
            raise
        _fail(f"{name} raised {type(refusal).__name__}({reason!r}, {detail!r}); both are texts")
    except BaseException as error:  # a function that exits takes no worker along
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's; in a worker's thread none comes from outside
        told = f"{name}: {type(error).__name__}: {error}"
        raise RecordRejected(RejectReason.user_function_failed, told) from error


def own_answer(made: Any, name: str) -> bool:
    """Whether a filter's answer keeps the record.

    Raises:
        RecordRejected: it is neither yes nor no.
    """
    if _not_run(made):
        _fail(f"{name} gave a {type(made).__name__}, not True or False; return the answer")
    try:
        return bool(made)
    except Exception as error:
        detail = f"{name} gave {type(made).__name__}, which is neither true nor false: {error}"
        raise RecordRejected(RejectReason.user_function_failed, detail) from error


def own_items(made: Any, name: str, mode: str) -> list[Item]:
    """The items that a user's layout gave, held to what such items are.

    Raises:
        RecordRejected: they are something else.
    """
    if _not_run(made):
        _fail(f"{name} gave a {type(made).__name__}, of which nothing has run; return what it would give, as a list")
    items = made if isinstance(made, list) else [made]
    if not all(isinstance(item, Conversation | Document | TokenRow) for item in items):
        _fail(f"{name} gave {type(made).__name__}, not a Conversation, Document, TokenRow or a list of them")
    for item in items:
        wrong = problem_of(item, mode)
        if wrong:
            _fail(f"{name} gave a {type(item).__name__} whose {wrong}")
    return items


def _not_run(made: Any) -> bool:
    """Whether an answer is code that waits to be run; it is closed, so that nobody warns of it later."""
    waits = inspect.iscoroutine(made) or inspect.isgenerator(made)
    if waits:
        made.close()
    return waits


def problem_of(item: Item, mode: str) -> str | None:
    """What is wrong with an item made by somebody's code; None if nothing is. Flags become True, False or None."""
    if not isinstance(item, TAKES.get(mode, (Conversation, Document))):
        return f"kind mode {mode} does not take; set the data set's mode to the one that does"
    parts = {"kept": item.kept, "counts": item.counts, "template_args": getattr(item, "template_args", {})}
    for name, part in parts.items():
        if not isinstance(part, dict):
            return f"{name} is {_type(part)}, not a dict"
    if not all(isinstance(name, str) and type(count) is int for name, count in parts["counts"].items()):
        return f"counts are {parts['counts']!r}, not integers by name"
    if isinstance(item, Conversation):
        return _messages_problem(item) or _flags_problem(item)
    if isinstance(item, Document):
        return None if isinstance(item.text, str) else f"text is {_type(item.text)}, not a text"
    return _row_problem(item)


def _messages_problem(item: Any) -> str | None:
    if isinstance(item.messages, tuple):
        item.messages = [*item.messages]
    if not isinstance(item.messages, list):
        return f"messages are {_type(item.messages)}, not a list"
    for number, message in enumerate(item.messages):
        if not isinstance(message, dict):
            return f"message {number} is {_type(message)}, not a dict"
        if not isinstance(message.get("role"), str):
            return f"message {number} has no role that is a text"
    return None


def _flags_problem(item: Any) -> str | None:
    flags = [] if item.flags is None else item.flags
    if not isinstance(flags, list | tuple):
        return f"flags are {_type(flags)}, not a list"
    if flags and len(flags) != len(item.messages):
        return f"flags are {len(flags)} for {count_of(len(item.messages), 'message')}; give one a message, or none"
    for number, flag in enumerate(flags):
        if flag is not None and not isinstance(flag, bool | np.bool_) and not (type(flag) is int and flag in (0, 1)):
            return f"flag {number} is {flag!r}, not True, False or None"
    item.flags = [None if flag is None else bool(flag) for flag in flags]
    return None


def _row_problem(item: Any) -> str | None:
    ids = np.asarray(item.input_ids)
    if ids.size and ids.dtype.kind not in "iu":
        return f"input_ids are {ids.dtype}, not integers"
    if item.loss_mask is not None:
        mask = np.asarray(item.loss_mask)
        if mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            return f"loss_mask is {mask.dtype} with entries other than 0 and 1"
    return None


def _type(value: Any) -> str:
    return f"of type {type(value).__name__}"


def _fail(detail: str) -> NoReturn:
    raise RecordRejected(RejectReason.user_function_failed, detail)
