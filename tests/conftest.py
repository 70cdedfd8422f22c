"""Fixtures that several rooms' tests use. This folder is on the import path of the tests."""

from __future__ import annotations

from s3server import s3, s3_server

__all__ = ["s3", "s3_server"]
