"""Where a chat template's text comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from retok_dask.errors import TemplateError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retok_dask.recipe import TemplateSpec


class TokenizerFacts(Protocol):
    """What a chat template needs to know of a tokenizer."""

    @property
    def chat_templates(self) -> str | dict[str, str] | None: ...
    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...
    @property
    def added_tokens(self) -> Mapping[str, int]: ...


def template_texts(
    spec: TemplateSpec, tokenizer: TokenizerFacts, options: dict[str, Any] | None = None
) -> dict[str, str]:
    """The template's text, and the one for conversations with tools if that is another.

    Returns:
        ``default`` and perhaps ``tool_use``, as transformers chooses between
        them.

    Raises:
        TemplateError: there is none, or the name is unknown.
    """
    if spec.text is not None:
        return {"default": spec.text}
    if spec.path is not None:
        return {"default": _read(spec.path, options or {})}
    own = tokenizer.chat_templates
    if isinstance(own, str):
        if spec.name not in (None, "default"):
            msg = f"the tokenizer has one chat template without a name, not {spec.name!r}; leave `template.name` out"
            raise TemplateError(msg)
        return {"default": own}
    if not own:
        msg = "the tokenizer has no chat template; give one with `template: {path: FILE}` or `template: {text: ...}`"
        raise TemplateError(msg)
    if spec.name is not None:
        if spec.name not in own:
            msg = f"the tokenizer has no chat template called {spec.name!r}.{did_you_mean(spec.name, own)}"
            raise TemplateError(msg)
        return {"default": own[spec.name]}
    if "default" not in own and "tool_use" not in own:
        msg = (
            f"the tokenizer has chat templates {sorted(own)} but no default; choose one with `template: {{name: ...}}`"
        )
        raise TemplateError(msg)
    return {name: own[name] for name in ("default", "tool_use") if name in own}


def _read(path: str, options: dict[str, Any]) -> str:
    import fsspec  # noqa: PLC0415  most templates come with their tokenizer

    try:
        with fsspec.open(path, "r", encoding="utf-8", newline="", **options) as file:
            text: str = file.read()
    except (OSError, ValueError, ImportError, UnicodeDecodeError) as error:
        msg = f"cannot read the chat template {path!r}: {error}; check the path in `template.path`"
        raise TemplateError(msg) from error
    return text
