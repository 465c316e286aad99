"""A server of one page on loopback, for ``twofold bench view``: no engine, no key, nothing else at any path."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from twofold.core.errors import UsageError

HOST: Final = "127.0.0.1"


def page_server(page: bytes, port: int = 0) -> ThreadingHTTPServer:
    """A server that gives ``page`` to GET / until it is shut down; port 0 takes a free one.

    Other hosts than loopback are refused, so that no page of another site reads it under a name of its own.
    Raises UsageError if the port cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.headers.get("host", "").partition(":")[0]
            status = 403 if name not in (HOST, "localhost") else 200 if self.path == "/" else 404
            body = page if status == 200 else b""
            self.send_response(status)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", "no-store")
            self.send_header("content-security-policy", "frame-ancestors 'none'")
            self.send_header("cross-origin-resource-policy", "same-origin")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Requests are not logged."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UsageError(
            f"Port {port} cannot be used: {error.strerror}.", hint="Choose another --port; 0 takes a free one."
        ) from error
