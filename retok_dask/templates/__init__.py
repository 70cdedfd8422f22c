"""Conversation -> text and spans, for any chat template."""

from retok_dask.templates.normalize import normalize_conversation
from retok_dask.templates.template import ChatTemplate, TemplateFacts

__all__ = ["ChatTemplate", "TemplateFacts", "normalize_conversation"]
