"""Reading a tokenizer from a folder, as transformers does.

The only file of the package that imports transformers: what `AutoTokenizer`
makes of a folder depends on more than its ``tokenizer.json`` (model classes
rebuild the pre-tokenizer, the config adds tokens), and it is the reference.
It takes seconds, so what it made is kept for the user's next process.
"""

from __future__ import annotations

import contextlib
import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import orjson
import zstandard

from retok_dask.doing import doing
from retok_dask.errors import TokenizerError
from retok_dask.tokenizers.cache import keep, recall
from retok_dask.tokenizers.definition import FILE_WORDS, WAY_OUT, Definition, adds_bos, digest_of, installed, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retok_dask.recipe import TokenizerSpec

DEFINING_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "*.model",
    "*.tiktoken",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "chat_template.json",
)

KEPT = 2
"""Counts up when what is read from a folder changes, so that kept definitions are made again."""

_MAKERS = ("transformers", "tokenizers", "sentencepiece", "protobuf", "tiktoken", "mistral-common")
"""Libraries that decide what `AutoTokenizer` makes of a folder."""

_SMALL = 64 * 1024 * 1024
"""Bytes of a file that is no model's weights, at most."""


def from_folder(folder: Path, spec: TokenizerSpec) -> Definition:
    """What `AutoTokenizer` makes of a folder, now or in an earlier process.

    Raises:
        TokenizerError: it makes nothing of it, or no tokenizer with a `tokenizers` form.
    """
    name = None if spec.remote_code else _kept_name(folder, spec)  # foreign code may make anything each time
    found = recall(name) if name else None
    if found is not None:
        return Definition(**orjson.loads(zstandard.decompress(found)) | {"source": spec.path})
    doing(f"reading the tokenizer {spec.path} with transformers, once for these files and versions")
    made = _from_transformers(folder, spec)
    if name:
        with contextlib.suppress(TypeError):  # a text that is no Unicode
            keep(name, zstandard.compress(orjson.dumps(made.to_dict()), level=3))
    return made


def _kept_name(folder: Path, spec: TokenizerSpec) -> str | None:
    """Names what is kept by all that decides it: the folder's files, settings and versions; None if one is unreadable."""
    try:
        files = _file_digests(folder)
        for path in folder.iterdir():
            if path.is_file() and path.name not in files:
                size = path.stat().st_size
                files[path.name] = sha256_of(path.read_bytes()) if size <= _SMALL else str(size)
    except OSError:
        return None
    settings = [spec.bos_token, spec.eos_token, spec.fix_mistral_regex]
    decided = orjson.dumps([files, installed(_MAKERS), settings], option=orjson.OPT_SORT_KEYS)
    return f"definitions/{sha256_of(decided)[:32]}-folder-{KEPT}.zst"


def _from_transformers(folder: Path, spec: TokenizerSpec) -> Definition:
    with _transformers_notes() as notes:
        tokenizer = _auto_tokenizer(folder, spec)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        msg = (
            f"{spec.path!r} loads as {type(tokenizer).__name__}, which has no `tokenizers` form; "
            "give its tokenizer.json, or its rank file with pattern and special_tokens"
        )
        raise TokenizerError(msg)
    for name in ("bos_token", "eos_token"):
        if getattr(spec, name) is not None:
            setattr(tokenizer, name, getattr(spec, name))
    by_file = [] if spec.fix_mistral_regex else _ids_by_file(folder, tokenizer, spec)
    files = _file_digests(folder)
    special = {name: str(text) for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    return Definition(
        json=backend.to_str(),
        digest=digest_of(
            files
            | {"settings": sha256_of(orjson.dumps([special, spec.fix_mistral_regex], option=orjson.OPT_SORT_KEYS))}
        ),
        source=spec.path,
        files=files,
        special_tokens_map=dict(tokenizer.special_tokens_map),
        chat_templates=tokenizer.chat_template,
        adds_bos=adds_bos(backend, special.get("bos_token")),
        notes=notes,
        by_file=by_file,
    )


def _ids_by_file(folder: Path, tokenizer: Any, spec: TokenizerSpec) -> list[list[int]]:
    """Ids of probe words by the folder's ``tokenizer.json``, if transformers gives others for one of them.

    A model class may rebuild the pre-tokenizer, and knows it for some models only: the same folder got other ids from
    one version to the next (DeepSeek's lost their blanks in 5.20 and 5.21), and no error says so.

    Raises:
        TokenizerError: transformers loses text that the file's own tokenizer keeps.
    """
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415  native library

    file = folder / "tokenizer.json"
    if not file.is_file():
        return []
    own = Backend.from_file(str(file))  # what this cannot read, transformers has refused before
    made = tokenizer.backend_tokenizer
    by_file = [own.encode(word, add_special_tokens=False).ids for word in FILE_WORDS]
    given = [made.encode(word, add_special_tokens=False).ids for word in FILE_WORDS]
    for word, ids, theirs in zip(FILE_WORDS, given, by_file, strict=True):
        # a blank in front is some tokenizers' own
        back, kept = (
            one.decode(found, skip_special_tokens=False).strip() for one, found in ((made, ids), (own, theirs))
        )
        if ids != theirs and back != word.strip() == kept:
            msg = (
                f"transformers {version('transformers')} loads {spec.path!r} as {type(tokenizer).__name__}, which makes "
                f"{back!r} of {word!r}; its tokenizer.json does not: name that file, or install another transformers"
            )
            raise TokenizerError(msg)
    return by_file if given != by_file else []


def _auto_tokenizer(folder: Path, spec: TokenizerSpec) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415  slow to import, and only folders need it

    options: dict[str, Any] = {"trust_remote_code": spec.remote_code, "local_files_only": True}
    if spec.fix_mistral_regex is not None:
        options["fix_mistral_regex"] = spec.fix_mistral_regex
    try:
        return AutoTokenizer.from_pretrained(str(folder), **options)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        msg = f"cannot load a tokenizer from {spec.path!r} ({type(error).__name__}: {reason}); {WAY_OUT}"
        raise TokenizerError(msg) from error


class _Notes(logging.Handler):
    """Collects what a library wants to tell the user."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.messages:
            self.messages.append(text)


@contextlib.contextmanager
def _transformers_notes() -> Iterator[list[str]]:
    """Use transformers without its advice about PyTorch, and keep its warnings instead of printing them.

    Its warnings about a tokenizer's files come once for every process that
    loads them, right or wrong; here they become notes of the definition, which
    a run records once. Those that it gives once a process are due for each
    definition, since that is kept.
    """
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        import transformers  # noqa: F401, PLC0415  the advice is printed at import
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    once: Any = getattr(logging.Logger, "warning_once", None)
    if hasattr(once, "cache_clear"):
        once.cache_clear()
    logger = logging.getLogger("transformers")
    notes = _Notes()
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [notes], False
    try:
        yield notes.messages
    finally:
        logger.handlers, logger.propagate = handlers, propagate


def _file_digests(folder: Path) -> dict[str, str]:
    paths = {path for pattern in DEFINING_FILES for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): sha256_of(path.read_bytes()) for path in sorted(paths)}
