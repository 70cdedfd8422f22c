"""The recipe as a whole: read, checked, written, and what of it changes the output."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from retok_dask.errors import RecipeError, did_you_mean
from retok_dask.recipe.parts import (
    ClusterSpec,
    DatasetSpec,
    DocumentSpec,
    NormalizeSpec,
    Part,
    StorageSpec,
    TemplateSpec,
    TokenizerSpec,
    UnitSpec,
)
from retok_dask.recipe.problems import explain
from retok_dask.recipe.values import refuse_secret

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
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            msg = f"no recipe at {str(path)!r}; check the path, or see the README for a recipe to start from"
            raise RecipeError(msg) from None
        except (OSError, UnicodeDecodeError) as error:
            msg = f"cannot read the recipe {str(path)!r}: {error}"
            raise RecipeError(msg) from error
        return cls.from_yaml(text, source=str(path))

    @classmethod
    def of(cls, recipe: Self | str | Path) -> Self:
        """A recipe as it is, or the one in a YAML file; see :meth:`load` for the errors."""
        return recipe if isinstance(recipe, cls) else cls.load(recipe)  # type: ignore[arg-type]

    @classmethod
    def from_yaml(cls, text: str | bytes, *, source: str = "recipe") -> Self:
        """Check a recipe's YAML text; see :meth:`load` for the errors."""
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            msg = f"cannot read the recipe {source!r}: {error}"
            raise RecipeError(msg) from error
        return cls.from_dict(data, source=source)

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "recipe") -> Self:
        """Check a mapping as read from YAML; see :meth:`load` for the errors."""
        if not isinstance(data, dict):
            msg = f"{source}: a recipe is a mapping with tokenizer, datasets and output, not {type(data).__name__}"
            raise RecipeError(msg)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError(explain(error, cls, source)) from None

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
