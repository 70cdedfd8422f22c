"""A template with ``{% generation %}`` tags beside the tokenizer's own, which it may be a copy of.

Who adds tags by hand changes the text easily: a newline after a block tag is
swallowed, and nothing says so. Both templates render the same conversations
here, and the first difference is named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from retok_dask.errors import TemplateError
from retok_dask.recipe import TemplateSpec
from retok_dask.templates.loading import template_texts
from retok_dask.templates.probes import probes
from retok_dask.templates.template import ChatTemplate
from retok_dask.types import Conversation, RecordRejected

if TYPE_CHECKING:
    from retok_dask.templates.loading import TokenizerFacts

AROUND = 24
"""Characters shown on both sides of a difference."""


@dataclass(frozen=True)
class Original:
    """The tokenizer's own template, to compare a tagged one with.

    Attributes:
        own, tagged: the two.
    """

    own: ChatTemplate
    tagged: ChatTemplate

    def difference(self, conversation: Conversation) -> str:
        """The first place at which the two render a conversation differently; empty if they do not."""
        texts = [_text(one, conversation) for one in (self.own, self.tagged)]
        if texts[0] == texts[1]:
            return ""
        at = next((k for k, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        own, other = (text[max(0, at - AROUND) : at + AROUND] for text in texts)
        return f"at character {at}: own {own!r}, tagged {other!r}"

    @cached_property
    def probed(self) -> dict[str, str]:
        """The first difference of each probe in which there is one."""
        found = {probe.name: self.difference(Conversation(probe.messages, probe.tools)) for probe in probes()}
        return {name: difference for name, difference in found.items() if difference}

    @cached_property
    def blanks_only(self) -> bool:
        """Whether they differ, and in blanks alone: what becomes of a copy when tags swallow newlines."""
        return bool(self.probed) and all(
            "".join(_text(self.own, talk).split()) == "".join(_text(self.tagged, talk).split())
            for talk in (Conversation(probe.messages, probe.tools) for probe in probes())
        )


def original_of(template: ChatTemplate, tokenizer: TokenizerFacts) -> Original | None:
    """The tokenizer's own template, where a recipe gives another one with generation tags.

    None as well where the own one cannot be used, which may be why there is another.
    """
    if not template.facts.generation_tags or not tokenizer.chat_templates:
        return None
    try:
        texts = template_texts(TemplateSpec(), tokenizer)
        if template.text in texts.values():
            return None
        own = ChatTemplate.restore(replace(template.reduce(), texts=texts, learned={}))
        own.engine  # noqa: B018  compiled and proved here, not at the first conversation
    except TemplateError:
        return None
    return Original(own, template)


def require_same_text(template: ChatTemplate, tokenizer: TokenizerFacts) -> None:
    """Refuse a tagged copy of the tokenizer's template that lost or won blanks by its tags.

    A template whose text differs in more than blanks is another one, and
    meant to be.

    Raises:
        TemplateError: it is such a copy; with the first difference.
    """
    original = original_of(template, tokenizer)
    if original is not None and original.blanks_only:
        name, difference = next(iter(original.probed.items()))
        msg = (
            "the template with generation tags renders the text of the tokenizer's own one, but for blanks "
            f"(probe {name!r}, {difference}); a newline right after a tag is swallowed: write it inside the "
            "tagged text, or take the tags out, which no mask needs"
        )
        raise TemplateError(msg)


def _text(template: ChatTemplate, conversation: Conversation) -> str:
    try:
        return template.reference_text(conversation)
    except RecordRejected as refused:
        return f"[refused: {refused.reason}: {refused.detail}]"
