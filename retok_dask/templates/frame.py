"""Which control strings a template writes around messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retok_dask.types import Conversation, RecordRejected

if TYPE_CHECKING:
    from retok_dask.templates.template import ChatTemplate

_CONTROL = re.compile(r"<\|[^\s|<>]+\|>|<｜[^\s｜<>]+｜>")

_PLAIN = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b")) * 2]


def control_strings(template: ChatTemplate) -> list[str]:
    """Control strings (``<|name|>`` and the like) that frame a plain conversation.

    A tokenizer that belongs to the template knows each of them as one id; one
    that spells them out was loaded by the wrong class, or is another model's.
    """
    try:
        text = template.reference_text(Conversation([dict(message) for message in _PLAIN]))
    except RecordRejected:
        text = "".join((template.facts.header, template.facts.prefill, *template.facts.stops))
    return sorted(set(_CONTROL.findall(text)))
