"""Reading a tokenizer from a hub id, a folder, a tokenizer.json or a tiktoken rank file."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import orjson
import yaml

from retok_dask.errors import TokenizerError
from retok_dask.tokenizers.cache import keep, recall
from retok_dask.tokenizers.definition import WAY_OUT, Definition, adds_bos, digest_of, sha256_of
from retok_dask.tokenizers.folders import DEFINING_FILES, from_folder
from retok_dask.tokenizers.tiktoken_form import definition_from_ranks, parse_ranks

if TYPE_CHECKING:
    from retok_dask.recipe import StorageSpec, TokenizerSpec

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FILE_SUFFIXES = {".json", ".tiktoken", ".model", ".txt", ".jinja", ".zip", ".gz"}


def load_definition(spec: TokenizerSpec, storage: StorageSpec | None = None) -> Definition:
    """Read a tokenizer, whatever its form.

    Raises:
        TokenizerError: it is missing, unreadable, damaged, or needs code that
            the recipe does not allow.
    """
    if spec.pattern is not None or spec.path.endswith(".tiktoken"):
        return _from_ranks(spec, storage)
    if _is_url(spec.path):
        return _from_url(spec, storage)
    path = Path(spec.path).expanduser()
    if path.is_dir():
        return from_folder(path, spec)
    if path.is_file():
        return _from_file(path, spec)
    if not _HUB_ID.fullmatch(spec.path) or path.suffix in _FILE_SUFFIXES:
        msg = f"no tokenizer at {spec.path!r}; {WAY_OUT}"
        raise TokenizerError(msg)
    return _from_hub(spec)


def _is_url(path: str) -> bool:
    return "://" in path


def _storage_options(url: str, storage: StorageSpec | None) -> dict[str, Any]:
    if storage is None or not url.startswith(("s3://", "s3a://")):
        return {}
    options: dict[str, Any] = {"anon": storage.anonymous}
    if storage.endpoint_url:
        options["endpoint_url"] = storage.endpoint_url
    if storage.region:
        options["client_kwargs"] = {"region_name": storage.region}
    return options


def read_bytes(path: str, storage: StorageSpec | None) -> bytes:
    """A file's bytes from a path or URL.

    Raises:
        TokenizerError: it cannot be read.
    """
    try:
        with fsspec.open(
            str(Path(path).expanduser()) if not _is_url(path) else path, "rb", **_storage_options(path, storage)
        ) as file:
            return bytes(file.read())
    except (OSError, ValueError, ImportError) as error:
        msg = f"cannot read {path!r} ({type(error).__name__}: {error}); {WAY_OUT}"
        raise TokenizerError(msg) from error


# --- tiktoken rank files ---------------------------------------------------

CONVERSION = 1
"""Counts up when the conversion of rank files changes, so that kept ones are made again."""


def _from_ranks(spec: TokenizerSpec, storage: StorageSpec | None) -> Definition:
    if spec.pattern is None:
        msg = (
            f"{spec.path!r} is a tiktoken rank file; set tokenizer.pattern (and special_tokens), which it does not hold"
        )
        raise TokenizerError(msg)
    data = read_bytes(spec.path, storage)
    special_tokens = _special_tokens(spec, storage)
    for name in ("bos_token", "eos_token"):
        text = getattr(spec, name)
        if text is not None and text not in special_tokens:
            msg = f"{name} {text!r} is not among the special tokens given for {spec.path!r}; add it with its id"
            raise TokenizerError(msg)
    settings = {"pattern": spec.pattern, "special_tokens": special_tokens, "normalizer": spec.normalizer}
    files = {
        Path(spec.path).name: sha256_of(data),
        "settings": sha256_of(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)),
    }
    digest = digest_of(files)
    name = f"definitions/{digest[:32]}-{CONVERSION}.json"
    kept = recall(name)
    if kept is None:
        made = definition_from_ranks(
            parse_ranks(data, spec.path),
            pattern=spec.pattern,
            special_tokens=special_tokens,
            normalizer=spec.normalizer,
            source=spec.path,
        )
        kept = orjson.dumps(made)
        keep(name, kept)
    names = {"bos_token": spec.bos_token, "eos_token": spec.eos_token}
    return Definition(
        json=kept.decode(),
        digest=digest,
        source=spec.path,
        files=files,
        special_tokens_map={name: text for name, text in names.items() if text is not None},
    )


def _special_tokens(spec: TokenizerSpec, storage: StorageSpec | None) -> dict[str, int]:
    if not isinstance(spec.special_tokens, str):
        return dict(spec.special_tokens or {})
    try:
        found = yaml.safe_load(read_bytes(spec.special_tokens, storage))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"{spec.special_tokens!r} is neither JSON nor YAML: {error}"
        raise TokenizerError(msg) from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, int) for k, v in found.items()):
        msg = f"{spec.special_tokens!r} must map each special token's text to its id"
        raise TokenizerError(msg)
    return found


# --- a tokenizer.json ------------------------------------------------------


def _from_file(path: Path, spec: TokenizerSpec) -> Definition:
    if spec.fix_mistral_regex is not None:
        msg = f"fix_mistral_regex has no effect on a {path.name}; name the folder that holds {spec.path!r}"
        raise TokenizerError(msg)
    data = read_bytes(str(path), None)
    backend = _backend_from_json(data, str(path))
    config = _sibling_config(path)
    names = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    names |= {name: getattr(spec, name) for name in ("bos_token", "eos_token") if getattr(spec, name) is not None}
    special = {name: text for name, text in names.items() if text is not None}
    files = {path.name: sha256_of(data)}
    return Definition(
        json=data.decode(),
        digest=digest_of(files | {"settings": sha256_of(orjson.dumps(special, option=orjson.OPT_SORT_KEYS))}),
        source=spec.path,
        files=files,
        special_tokens_map=special,
        chat_templates=_sibling_templates(path.parent, config) if path.name == "tokenizer.json" else None,
        adds_bos=adds_bos(backend, special.get("bos_token")),
    )


def _backend_from_json(data: bytes, source: str) -> Any:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415  native library, loaded when a tokenizer is

    try:
        return Backend.from_str(data.decode())
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        msg = f"{source!r} is no usable tokenizer.json ({str(error)[:200]}); fetch it again, or {WAY_OUT}"
        raise TokenizerError(msg) from None


def _sibling_config(path: Path) -> dict[str, Any]:
    """The ``tokenizer_config.json`` beside a ``tokenizer.json``, if there is one."""
    config = path.with_name("tokenizer_config.json")
    if path.name != "tokenizer.json" or not config.is_file():
        return {}
    try:
        found = orjson.loads(config.read_bytes())
    except orjson.JSONDecodeError as error:
        msg = f"{str(config)!r} is no JSON ({error}); fetch it again"
        raise TokenizerError(msg) from error
    return found if isinstance(found, dict) else {}


def _token_text(value: Any) -> str | None:
    """A special token's text, written plainly or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _sibling_templates(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    found: dict[str, str] = {}
    own = config.get("chat_template")
    if isinstance(own, str):
        found["default"] = own
    elif isinstance(own, list):
        found |= {entry["name"]: entry["template"] for entry in own}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[extra.stem] = extra.read_text(encoding="utf-8")
    if not found:
        return None
    return found["default"] if list(found) == ["default"] else found


# --- folders and hub ids ---------------------------------------------------


def _from_hub(spec: TokenizerSpec) -> Definition:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  only hub ids need it

    patterns = [*DEFINING_FILES, "*.py"] if spec.remote_code else list(DEFINING_FILES)
    try:
        folder = snapshot_download(spec.path, revision=spec.revision, allow_patterns=patterns, etag_timeout=5)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        msg = (
            f"cannot get the tokenizer {spec.path!r} from the hub ({reason}); check the name and the connection, "
            "or name a local folder or tokenizer.json"
        )
        raise TokenizerError(msg) from error
    return from_folder(Path(folder), spec)


def _from_url(spec: TokenizerSpec, storage: StorageSpec | None) -> Definition:
    """Copy the files that matter from any fsspec file system, then load them."""
    options = _storage_options(spec.path, storage)
    with tempfile.TemporaryDirectory(prefix="retok-tokenizer-") as scratch:
        try:
            system, root = fsspec.core.url_to_fs(spec.path, **options)
            if system.isfile(root):
                names = [
                    root,
                    *(f"{system._parent(root)}/{n}" for n in ("tokenizer_config.json", "chat_template.jinja")),
                ]
                target = Path(scratch, Path(root).name)
            else:
                names = [name for pattern in DEFINING_FILES for name in system.glob(f"{root}/{pattern}")]
                target = Path(scratch)
            for name in names:
                if system.isfile(name):
                    system.get_file(name, str(Path(scratch, Path(name).name)))
        except (OSError, ValueError, ImportError) as error:
            msg = f"cannot read {spec.path!r} ({type(error).__name__}: {error}); {WAY_OUT}"
            raise TokenizerError(msg) from error
        if not any(Path(scratch).iterdir()):
            msg = f"no tokenizer at {spec.path!r}; {WAY_OUT}"
            raise TokenizerError(msg)
        return _from_file(target, spec) if target.is_file() else from_folder(target, spec)
