"""The recipe: everything that a run is asked to do, in one checked file.

Unknown keys are refused, and the nearest legal one is named. What can change
a token or a row goes into :meth:`Recipe.content_key`; where the output lies
and how many workers there are does not.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from retok_dask.errors import RecipeError, did_you_mean

MiB = 1024 * 1024

PRESETS = (
    "assistant",
    "last_assistant",
    "final_answer",
    "completion",
    "all_but_system",
    "after_first_user",
    "all",
)

MEASURES = (
    "rows",
    "tokens",
    "loss_tokens",
    "mean_tokens",
    "trained_share",
    "reject_share",
    "filter_share",
    "truncated_share",
    "tokens_per_byte",
    "bos_share",
    "stop_share",
    "unknown_share",
    "byte_share",
    "fallback_share",
)
"""What ``checks:`` may bound, as ``min_NAME`` and ``max_NAME``."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: Any) -> Any:
    """Turn ``128MiB`` or ``2 GB`` into a number of bytes; leave numbers as they are."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = (match.group(2) or "B").upper() if match else ""
    if match is None or unit not in _UNITS:
        msg = f"{value!r} is not a size; write a number of bytes or something like 128MiB"
        raise ValueError(msg)
    return int(float(match.group(1)) * _UNITS[unit])


class Part(BaseModel):
    """Base of the recipe and its parts: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TokenizerSpec(Part):
    """Which tokenizer, and how it may be loaded."""

    path: str
    """Hub id, folder, ``tokenizer.json``, or tiktoken rank file (local or any fsspec URL)."""
    revision: str | None = None
    """Hub revision; the resolved digest of the files goes into ``run.json`` either way."""
    pattern: str | None = None
    """Pre-tokenizer pattern of a tiktoken file."""
    special_tokens: dict[str, int] | str | None = None
    """Special tokens of a tiktoken file, as a map or the path of a JSON/YAML file holding one."""
    normalizer: Literal["NFC"] | None = None
    """Unicode normalization that goes with a tiktoken file (Qwen: NFC)."""
    bos_token: str | None = None
    """Text of the BOS token of a tiktoken file, which holds no roles."""
    eos_token: str | None = None
    """Text of its EOS token."""
    remote_code: bool = False
    """Run Python code that comes with the tokenizer. Never needed for the known families."""
    fix_mistral_regex: bool | None = None
    """Passed on to transformers if set; never guessed."""


class TemplateSpec(Part):
    """Which chat template; with nothing set, the tokenizer's own."""

    path: str | None = None
    """A file (local or any fsspec URL) that holds the Jinja text."""
    text: str | None = None
    """The Jinja text itself."""
    name: str | None = None
    """Which of the tokenizer's named templates."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Extra template variables, such as ``enable_thinking: true``."""
    plain_markers: bool = False
    """Accept that the tokenizer spells the template's control strings out as ordinary text."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("path", "text", "name") if getattr(self, name) is not None]
        if len(given) > 1:
            msg = f"a template has one source, but {' and '.join(given)} are set; keep one of them"
            raise ValueError(msg)
        return self


class NormalizeSpec(Part):
    """What is put in order in messages before rendering; each change is counted."""

    reasoning_fields: bool = True
    """Map ``reasoning``, ``thinking``, ... to ``reasoning_content``."""
    inline_reasoning: bool = True
    """Move ``<think>...</think>`` at the start of an assistant's content to ``reasoning_content``."""
    tool_arguments: bool = True
    """Parse tool-call arguments that are JSON text, so that they are never encoded twice."""
    null_content: bool = True
    """Treat null or missing content as empty text."""
    content_parts: bool = True
    """Join lists of text parts."""
    developer_role: bool = True
    """Turn ``developer`` into ``system`` where the template does not know it."""
    tool_schemas: bool = True
    """Drop nulls that columnar storage added to tool schemas and calls."""
    control_markers: Literal["parse", "reject"] = "reject"
    """Assistant content that holds the template's own control markers: parse it, or reject the record."""


class FilterSpec(Part):
    """Which good records are left out on purpose; each is counted by reason."""

    min_tokens: int | None = None
    """Shortest row."""
    max_tokens: int | None = None
    """Longest row; unlike ``max_length``, nothing is cut."""
    min_trained_tokens: int = 1
    """Fewest trained tokens of a row that has an assistant message or is a document."""
    min_trained_share: float | None = None
    """Smallest share of trained tokens."""
    max_trained_share: float | None = None
    """Largest share of trained tokens."""
    roles: list[str] | None = None
    """Keep only conversations whose roles are all in this list."""
    function: str | None = None
    """``module:function`` taking the parsed record, returning True to keep it."""
    duplicates: Literal["keep", "drop"] = "keep"
    """Drop exact duplicates, within and across data sets."""


class DatasetSpec(Part):
    """One data set of the run."""

    name: str = "data"
    """Its name, and its folder in the output."""
    input: str | list[str]
    """Glob, folder, file, list of them, or ``@manifest`` (a file with one path a line)."""
    format: Literal["auto", "jsonl", "json", "parquet", "arrow", "csv", "object", "text", "retok"] = "auto"
    """How files are read. ``object``: one JSON object a file; ``retok``: a folder written by a run."""
    layout: str = "auto"
    """How a record becomes a conversation; a layout's name, ``module:function``, or ``auto``."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Names in the data for the names a layout uses, such as ``messages: dialogue``."""
    roles: dict[str, str] = Field(default_factory=dict)
    """Roles of the data to standard roles, such as ``bing: assistant``."""
    mode: Literal["chat", "text", "tokens", "prompts"] = "chat"
    """Conversations; plain documents; rows of ids; or only the prompts, for regeneration."""
    prefer: Literal["chosen", "rejected", "both"] = "chosen"
    """Which side of a preference pair becomes a conversation."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many records of this data set, the first ones in order."""
    sample: float | None = Field(default=None, gt=0, le=1)
    """Share of the records, chosen by a hash of their position and the seed."""
    seed: int = 0
    """Seed of everything random about this data set."""
    keep: list[str] = Field(default_factory=list)
    """Columns of the data carried to the output, as text (JSON text where nested, base64 where bytes are no text)."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Notes recorded in the manifest; they change no row."""
    weight: float = Field(default=1.0, gt=0)
    """For mixing; recorded, changes no row."""
    filters: FilterSpec = FilterSpec()
    """Which good records are left out."""
    tool_output_markers: tuple[str, str] | None = None
    """Opening and closing text around tool output inside assistant content; it is not trained."""
    source_tokenizer: TokenizerSpec | None = None
    """For ``mode: tokens`` with ids of another tokenizer: that tokenizer."""
    token_map: dict[str, str | None] = Field(default_factory=dict)
    """Control tokens of the source tokenizer to those of this one, by text or pattern with ``*``; an empty
    text leaves a token out, its own text makes ordinary text of it, null rejects rows that hold it."""
    lossy_decode: Literal["reject", "keep"] = "reject"
    """Rows of ids that cut a character in two: reject them, or keep them with U+FFFD in its place."""
    mend: list[Literal["lone_surrogates", "control_characters", "duplicate_keys"]] = Field(default_factory=list)
    """What is mended in a record's JSON, and counted, where it would be rejected: half surrogate
    pairs become U+FFFD, raw control characters stay as text, of a key written twice the last counts."""
    tail: Literal["keep", "cut"] = "keep"
    """A conversation that ends in a user or tool message: keep the untrained tail, or cut it."""

    @field_validator("source_tokenizer", mode="before")
    @classmethod
    def _short_tokenizer(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("tool_output_markers")
    @classmethod
    def _some_text(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        if value is not None and not all(value):
            msg = "a marker of tool output is some text, not an empty one"
            raise ValueError(msg)
        return value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            msg = f"{value!r} cannot name a folder; use letters, digits, dot, dash and underscore"
            raise ValueError(msg)
        return value


class DocumentSpec(Part):
    """How plain text is encoded (``mode: text``)."""

    bos: bool | None = None
    """Put the BOS token in front; None follows the tokenizer's own rule."""
    separator: str | None = None
    """Token that ends each document, by text; None is the tokenizer's EOS, an empty text none."""
    chunk_tokens: int | None = Field(default=None, ge=2)
    """Cut documents into rows of at most so many tokens."""
    overlap_tokens: int = Field(default=0, ge=0)
    """Tokens that two neighbouring chunks share."""
    shuffle: bool = False
    """Shuffle the rows within each unit by the data set's seed."""


class StorageSpec(Part):
    """Where S3 answers. Credentials come from the standard places, never from here."""

    endpoint_url: str | None = None
    """Address of an S3-compatible server."""
    region: str | None = None
    """Region of the bucket."""
    anonymous: bool = False
    """Read public buckets without credentials."""

    @field_validator("endpoint_url")
    @classmethod
    def _no_password(cls, value: str | None) -> str | None:
        if value and ("@" in urlsplit(value).netloc):
            msg = "an endpoint must not hold a password; put credentials in the environment or ~/.aws"
            raise ValueError(msg)
        return value


class UnitSpec(Part):
    """How input is cut into units, and what a unit may cost."""

    bytes: Annotated[int, Field(ge=1)] = 64 * MiB
    """Text a unit, before compression."""
    record_bytes: Annotated[int, Field(ge=1)] = 256 * MiB
    """Largest record that is read; a larger one is rejected with its position."""
    batch_bytes: Annotated[int, Field(ge=1)] = 2 * MiB
    """Text a batch: bounds memory, and the time between two signs of life."""
    seconds_per_record: float = Field(default=120.0, gt=0)
    """A record that takes longer is ended with its worker and rejected as ``too_slow``."""

    _sizes = field_validator("bytes", "record_bytes", "batch_bytes", mode="before")(parse_bytes)


class ClusterSpec(Part):
    """The Dask cluster; nothing here changes the output."""

    scheduler: str | None = None
    """Address of a running scheduler; None makes a LocalCluster and closes it."""
    workers: int | None = Field(default=None, ge=1)
    """Worker processes of the local cluster; None is the cores this process may use."""
    worker_memory: Annotated[int | None, Field(ge=64 * MiB)] = None
    """Memory limit of a local worker; None shares what this process may use."""
    dashboard: str | None = ":0"
    """Dashboard address of the local cluster, loopback unless a host is named; None for none."""

    _sizes = field_validator("worker_memory", mode="before")(parse_bytes)


class Recipe(Part):
    """Everything a run is asked to do.

    Example:
        >>> recipe = Recipe(tokenizer="tok", output="out", datasets=[{"input": "*.jsonl"}])
        >>> recipe.datasets[0].name
        'data'
    """

    tokenizer: TokenizerSpec
    """A path alone, or its parts."""
    template: TemplateSpec = TemplateSpec()
    """A path alone, or its parts; the tokenizer's own template if left out."""
    mask: str | list[str] = "assistant"
    """A preset policy, or a list of segment kinds to train."""
    history: Literal["whole", "per_turn", "auto"] = "whole"
    """One sample a conversation; one for each assistant turn, as the model saw it; or per turn only where
    the template would drop reasoning."""
    control_tokens: Literal["escape", "allow", "reject"] = "escape"
    """Control-token text in user, system and tool messages."""
    system: Literal["reject", "fold", "drop"] = "reject"
    """A system message where the template refuses one."""
    date: dt.date | None = None
    """The day a template that prints the date sees; None freezes the day of the first start."""
    max_length: int | None = Field(default=None, ge=1)
    """Longest row in tokens."""
    truncation: Literal["drop", "message", "right", "left"] = "drop"
    """What happens to a longer row: left out, cut after a message, or cut at a token."""
    engine: Literal["auto", "reference"] = "auto"
    """``auto`` uses certified fast engines, for more than a little text; ``reference`` only the reference ones."""
    normalize: NormalizeSpec = NormalizeSpec()
    """What is put in order in messages."""
    documents: DocumentSpec = DocumentSpec()
    """How plain text is encoded."""
    datasets: list[DatasetSpec] = Field(min_length=1)
    """The data sets, each in its own folder of the output."""
    output: str
    """The output folder: local, ``s3://``, or any fsspec URL."""
    storage: StorageSpec = StorageSpec()
    """Where S3 answers."""
    units: UnitSpec = UnitSpec()
    """How input is cut into units."""
    cluster: ClusterSpec = ClusterSpec()
    """The Dask cluster."""
    max_reject_share: float = Field(default=0.001, ge=0, le=1)
    """A run with a larger share of rejects ends non-zero after everything else is done."""
    checks: dict[str, float] = Field(default_factory=dict)
    """The user's own thresholds for ``retok validate``: ``min_`` or ``max_`` and a number's name, such as
    ``min_trained_share``."""

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _short_tokenizer(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("template", mode="before")
    @classmethod
    def _short_template(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("mask")
    @classmethod
    def _known_policy(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str) and value not in PRESETS:
            msg = f"{value!r} is no mask policy.{did_you_mean(value, PRESETS)}"
            raise ValueError(msg)
        return value

    @field_validator("checks")
    @classmethod
    def _known_bounds(cls, value: dict[str, float]) -> dict[str, float]:
        names = [f"{side}_{name}" for name in MEASURES for side in ("min", "max")]
        for key in value:
            if key not in names:
                msg = f"there is no threshold {key!r}.{did_you_mean(key, names)}"
                raise ValueError(msg)
        return value

    @field_validator("output")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        return refuse_secret(value)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [spec.name for spec in self.datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"two data sets are called {twice[0]!r}; give each its own name"
            raise ValueError(msg)
        for spec in self.datasets:
            for pattern in [spec.input] if isinstance(spec.input, str) else spec.input:
                refuse_secret(pattern)
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a recipe from a YAML file.

        Paths in it that do not exist from here but do from the recipe's own
        folder are left to the user: a recipe means the same wherever it lies.

        Raises:
            RecipeError: the file is missing, is no YAML, or holds an unknown
                key or an impossible value.
        """
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            msg = f"no recipe at {str(path)!r}; check the path, or see the README for a recipe to start from"
            raise RecipeError(msg) from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            msg = f"cannot read the recipe {str(path)!r}: {error}"
            raise RecipeError(msg) from error
        return cls.from_dict(data, source=str(path))

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "recipe") -> Self:
        """Check a mapping as read from YAML; see :meth:`load` for the errors."""
        if not isinstance(data, dict):
            msg = f"{source}: a recipe is a mapping with tokenizer, datasets and output, not {type(data).__name__}"
            raise RecipeError(msg)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError(_explain(error, source)) from None

    def to_yaml(self) -> str:
        """The recipe as YAML, defaults left out."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)

    def with_changes(self, **changes: Any) -> Self:
        """A changed copy, checked again."""
        return self.from_dict(self.model_dump(exclude_unset=True) | changes)

    def content_key(self) -> dict[str, Any]:
        """All settings that can change a token or a row, as plain JSON values.

        Neither the output's place, nor the cluster, nor storage, nor engines
        are in it: they must not change what is written. Files named here by
        path (tokenizer, template, input) enter the run's fingerprint by
        digest, beside this.
        """
        data = self.model_dump(mode="json")
        for name in ("output", "storage", "cluster", "engine", "max_reject_share", "checks"):
            data.pop(name)
        for name in ("batch_bytes", "seconds_per_record"):
            data["units"].pop(name)
        for spec in data["datasets"]:
            spec.pop("weight")
            spec.pop("tags")
        return data

    def _repr_html_(self) -> str:
        from retok_dask.views import recipe_html  # noqa: PLC0415  views draws; a notebook alone needs it

        return recipe_html(self)


def digest(value: Any) -> str:
    """sha256 of a value's canonical JSON, as hex.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def refuse_secret(url: str) -> str:
    """Return the URL, or refuse it if it carries a password or a signed query."""
    parts = urlsplit(url)
    query = parts.query.lower()
    signed = any(word in query for word in ("signature", "token", "secret", "password", "x-amz-", "sig="))
    if parts.password or (parts.scheme and signed):
        shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        msg = f"{shown!r} carries a secret; put credentials in the environment or ~/.aws, not in a recipe"
        raise ValueError(msg)
    return url


def _legal_keys(location: tuple[int | str, ...]) -> list[str]:
    """Field names of the recipe part at a pydantic error location."""
    model: Any = Recipe
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            inner = _inner_model(model.model_fields[step].annotation)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None


def _explain(error: ValidationError, source: str) -> str:
    """One sentence a problem: where, what, and the way out; never the input's secrets."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in item["loc"])
        if item["type"] == "extra_forbidden":
            key = str(item["loc"][-1])
            lines.append(f"unknown key {place!r}.{did_you_mean(key, _legal_keys(item['loc'][:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{place!r} is missing")
        else:
            text = item["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {text}" if place else text)
    return f"{source}: " + "; ".join(lines)
