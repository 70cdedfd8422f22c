"""The dashboard's address as the person who reads it can open it."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXES = ("JUPYTERHUB_SERVICE_PREFIX", "NB_PREFIX", "JUPYTER_SERVER_PREFIX")
"""Variables in which a hosted notebook server says below which path it answers, in order."""


ANSWER_SECONDS = 15.0
"""Time in which a page answers: the first one waits for its plots to be made, on a busy machine for seconds."""


def proxied(link: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a dashboard link as seen from the reader's browser.

    Behind a hub the browser cannot reach a port of this machine, but the
    notebook server's proxy can: the link is then a path below the server's
    own prefix, with the port that the dashboard really has. A link to another
    machine goes through the proxy by its host name.

    >>> proxied("http://127.0.0.1:8788/status", {"JUPYTERHUB_SERVICE_PREFIX": "/user/jane/"})
    '/user/jane/proxy/8788/status'
    >>> proxied("http://127.0.0.1:8788/status", {})
    'http://127.0.0.1:8788/status'
    """
    environ = os.environ if environ is None else environ
    prefix = next((environ[name] for name in PREFIXES if environ.get(name)), "")
    parts = urlsplit(link)
    if not prefix or parts.port is None:
        return link
    here = (parts.hostname or "") in {"127.0.0.1", "localhost", "::1", "0.0.0.0"}  # noqa: S104  compared, not bound
    place = str(parts.port) if here else f"{parts.hostname}:{parts.port}"
    return f"/{prefix.strip('/')}/proxy/{place}{parts.path or '/status'}"


def answers(link: str, timeout: float = ANSWER_SECONDS) -> bool:
    """Whether anything useful answers at a dashboard link."""
    if not re.match(r"https?://", link):
        return False
    try:
        with urllib.request.urlopen(link, timeout=timeout) as answer:  # noqa: S310  http only, checked above
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False
