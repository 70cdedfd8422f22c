"""The parts of a recipe."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from retok_dask.recipe.values import MiB, parse_bytes


class Part(BaseModel):
    """Base of the recipe and its parts: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenizerSpec(Part):
    """Which tokenizer, and how it may be loaded."""

    path: str
    """Hub id, folder, ``tokenizer.json``, or tiktoken rank file (local or any fsspec URL).

    Hub ids and folders are read as transformers reads them, which may be otherwise than their ``tokenizer.json`` says.
    """
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
