"""Conversation -> text and spans, for any chat template."""

from retok_dask.templates.audit import Audit, AuditRow, audit
from retok_dask.templates.frame import control_strings
from retok_dask.templates.history import HistoryCost, history_costs
from retok_dask.templates.learned import TemplateFacts
from retok_dask.templates.normalize import normalize_conversation
from retok_dask.templates.original import require_same_text
from retok_dask.templates.template import ChatTemplate, prompt_end

__all__ = [
    "Audit",
    "AuditRow",
    "ChatTemplate",
    "HistoryCost",
    "TemplateFacts",
    "audit",
    "control_strings",
    "history_costs",
    "normalize_conversation",
    "prompt_end",
    "require_same_text",
]
