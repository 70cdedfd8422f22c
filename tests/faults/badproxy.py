"""A proxy in front of a storage server that answers some requests with a fault, by a seed."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

FAULTS = ("500", "503", "slow", "cut", "403")


class BadProxy:
    """Passes requests on to ``endpoint``; a share of them fails instead.

    Attributes:
        share: share of requests that fail, 0 to 1; may be changed at any time.
        faults: which faults are used.
        seen: how often each fault was given, and how many requests went through.
    """

    def __init__(self, endpoint: str, *, share: float, faults: tuple[str, ...] = FAULTS, seed: int = 0) -> None:
        self.target = urlsplit(endpoint).netloc
        self.share = share
        self.faults = faults
        self.seen: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def handle_any(self) -> None:
                proxy.answer(self)

        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.handle_any)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            fault = self._rng.choice(self.faults) if self._rng.random() < self.share else "none"
            self.seen[fault] += 1
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else None
        if fault == "slow":
            time.sleep(1.5)
        if fault in {"500", "503", "403"}:
            self._refuse(handler, int(fault))
            return
        # the host header is signed: it must stay that of the proxy
        headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
        connection = http.client.HTTPConnection(self.target, timeout=30)
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        data = reply.read()
        handler.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in {"transfer-encoding", "connection"}:
                handler.send_header(name, value)
        if reply.getheader("Content-Length") is None:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
        if fault == "cut":
            handler.close_connection = True
            handler.wfile.flush()
        connection.close()

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int) -> None:
        code = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}[status]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
