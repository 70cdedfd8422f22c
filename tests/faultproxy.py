"""An HTTP proxy in front of a real storage server that fails by script.

The signature of an S3 request covers the Host header, so requests are passed
on unchanged and the real server accepts them; the script decides, request by
request, which are answered with an error instead.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

Fault = tuple[int, str] | str | None
"""Status and S3 error code; ``cut`` for a connection that breaks; None for no fault."""

Script = Callable[[str, str, int], Fault]
"""Method, path with query, and the number of the request, from 0."""

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class FaultProxy:
    """Attributes:
    endpoint: where it answers.
    script: decides the fault of each request; may be set at any time.
    log: method, path and fault of each request so far.
    """

    upstream: str
    script: Script = lambda method, path, number: None
    log: list[tuple[str, str, Fault]] = field(default_factory=list)
    endpoint: str = ""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        proxy = self
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                with lock:
                    fault = proxy.script(self.command, self.path, len(proxy.log))
                    proxy.log.append((self.command, self.path, fault))
                if fault == "cut":
                    self._cut()
                elif isinstance(fault, tuple):
                    self._refuse(*fault)
                else:
                    self._pass_on(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def _cut(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nhalf")
                self.wfile.flush()
                self.close_connection = True

            def _refuse(self, status: int, code: str) -> None:
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} by script</Message></Error>"
                data = b"" if self.command == "HEAD" else text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _pass_on(self, body: bytes) -> None:
                host = urlsplit(proxy.upstream).netloc
                connection = http.client.HTTPConnection(host, timeout=30)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body or None)
                answer = connection.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", size or "0")
                self.end_headers()
                self.wfile.write(data)
                connection.close()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
