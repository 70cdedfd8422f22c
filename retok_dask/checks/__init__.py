"""Checks that prove a written run, long after it was written."""

from retok_dask.checks.report import Check, ValidationReport
from retok_dask.checks.validation import validate

__all__ = ["Check", "ValidationReport", "validate"]
