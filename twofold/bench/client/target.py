"""The measured server: its address, and single requests, each on its own connection."""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from twofold.bench.client.response import MAX_BODY, Event, EventReader, ProtocolError, ResponseReader
from twofold.core.errors import NetworkError, ParameterError

PORTS: Final = {"http": 80, "https": 443}
USER_AGENT: Final = "twofold-bench"
JSON: Final = {"content-type": "application/json"}
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
CONNECT_S: Final = 10.0
PROBE_S: Final = 60.0
LOOK_S: Final = 0.1
"""Interval at which a wait for bytes checks whether the caller has stopped."""
SILENCE_S: Final = 900.0
"""Maximum time without bytes: the server may have to load the model first."""

REASONS: Final = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: "reset the connection",
    errno.EPIPE: "closed the connection while the request was sent",
    errno.ETIMEDOUT: "did not respond in time",
    errno.EHOSTUNREACH: "cannot be reached",
    errno.ENETUNREACH: "cannot be reached: there is no network to it",
    errno.EADDRNOTAVAIL: "cannot be reached: all local ports are in use",
    errno.EMFILE: "cannot be reached: this process may not open more files",
    errno.ENFILE: "cannot be reached: the system limit of open files is reached",
}
HINTS: Final = {
    errno.ECONNREFUSED: "Is it running, and on this port?",
    errno.EADDRNOTAVAIL: "Allow connections to be reused, or lower the rate.",
    errno.EMFILE: "Raise the limit with `ulimit -n`, or lower --concurrency.",
}
NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""Reasons of OpenSSL for bytes that are not TLS."""

Reply: TypeAlias = tuple[int, Mapping[str, str], bytes]
"""Status, headers (names in lower case) and body."""

Exchange: TypeAlias = Callable[[str, str, bytes | None, Mapping[str, str]], Reply]
"""Sends one request (method, path, body, headers) outside of a load. Raises NetworkError without a response."""

Address: TypeAlias = tuple[socket.AddressFamily, Any]
"""An address family and a socket address."""


@dataclass(frozen=True)
class ServerTarget:
    """The address of a server. ``base_path`` precedes every path; it is empty or begins with a slash.

    verify   whether the certificate of an https server must be trusted
    ca_file  certificates to trust instead of the system's (PEM)
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""
    verify: bool = True
    ca_file: Path | None = None

    @classmethod
    def of(cls, url: str, *, verify: bool = True, ca_file: Path | None = None) -> ServerTarget:
        """Parses a base URL as OpenAI's clients do: ``/v1`` at the end and http:// are optional.

        Raises ParameterError.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _bad_url("is not the URL of an HTTP server") from error
        if parts.scheme not in PORTS or not host:
            raise _bad_url("is not the URL of an HTTP server")
        if parts.username is not None or parts.password is not None:
            raise _bad_url("contains a user name or a password", hint="Give the key with --api-key.")
        if parts.query or parts.fragment:
            raise _bad_url("has a query or a fragment")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if path.endswith(("/completions", "/messages")):
            raise _bad_url("names an endpoint", hint="Give the base URL, and choose the endpoint with --endpoint.")
        return cls(parts.scheme, host, port or PORTS[parts.scheme], path, verify, ca_file)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None for http. Raises ParameterError for an unusable ``ca_file``."""
        if self.scheme == "http":
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            message = f"The file of trusted certificates, {self.ca_file}, cannot be used."
            raise ParameterError(message, param="ca_file", hint="It must be in PEM format.") from error
        context.set_alpn_protocols(["http/1.1"])
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def addresses(self) -> tuple[Address, ...]:
        """The addresses of the host, best first. Raises NetworkError if there are none."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            message = f"No address is known for the host {self.host!r}."
            raise NetworkError(message, hint="Check the URL and the network connection.") from error
        return tuple((socket.AddressFamily(family), address) for family, _, _, _, address in found)


def head(target: ServerTarget, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request (RFC 9112) without its empty line. Raises ParameterError for an invalid header."""
    fields = {
        "host": target.authority,
        "user-agent": USER_AGENT,
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
    }
    fields |= lowered(headers)
    for name, value in fields.items():
        if TOKEN.fullmatch(name) is None or VALUE.fullmatch(value) is None:
            message = f"The header {name!r} contains characters that are not allowed in headers."
            raise ParameterError(message, param="headers", hint="A key must be a single line.")
    lines = [f"{method} {target.base_path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1")


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def _bad_url(why: str, hint: str = "A URL looks like http://127.0.0.1:8000 or https://host/path/v1.") -> ParameterError:
    return ParameterError(f"The URL of the server {why}.", param="url", hint=hint)


def reachable(target: ServerTarget) -> Address:
    """The first address of the host that accepts a connection. Raises NetworkError if none does."""
    failure: OSError = TimeoutError()
    for address in target.addresses():
        try:
            _connect(address).close()
        except OSError as error:
            failure = error
        else:
            return address
    raise network_error(failure, target) from failure


def exchange(
    target: ServerTarget,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_s: float = PROBE_S,
) -> Reply:
    """Sends a request and reads its whole response. Raises NetworkError if there is no complete response."""
    with _sent(target, method, path, body, headers, timeout_s) as sock:
        response = IncomingResponse(sock, lambda: False, time.monotonic() + timeout_s)
        assert response.status is not None
        return response.status, response.headers, response.body()


@contextmanager
def streamed(
    target: ServerTarget, path: str, body: bytes, headers: Mapping[str, str], stopped: Callable[[], bool]
) -> Iterator[IncomingResponse]:
    """Posts ``body``. Leaving the context closes the connection, which cancels the request.

    stopped  whether the caller no longer wants the response

    Raises NetworkError if the connection fails, also while the response is read.
    """
    with _sent(target, "POST", path, body, headers, CONNECT_S) as sock:
        yield IncomingResponse(sock, stopped)


class IncomingResponse:
    """A response that is read as it arrives. ``status`` is None if the caller stopped before the head was complete."""

    def __init__(self, sock: socket.socket, stopped: Callable[[], bool], deadline: float = math.inf) -> None:
        self._sock = sock
        self._stopped = stopped
        self._deadline = deadline
        self._response = ResponseReader()
        self._pieces = self._received()
        self._first = b""
        for piece in self._pieces:
            self._first = piece
            if self._response.status is not None:
                break

    @property
    def status(self) -> int | None:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def body(self) -> bytes:
        """The whole body. Raises OSError, EOFError or ProtocolError."""
        body = bytearray(self._first)
        for piece in self._pieces:
            body += piece
            if len(body) > MAX_BODY:
                raise ProtocolError(f"The body of the response is longer than {MAX_BODY} bytes.")
        return bytes(body)

    def events(self) -> Iterator[Event]:
        """Server-sent events as they arrive, until the end or until the caller stops."""
        reader = EventReader()
        yield from reader.feed(self._first)
        for piece in self._pieces:
            yield from reader.feed(piece)
        yield from reader.end()

    def _received(self) -> Iterator[bytes]:
        """Bytes of the body; empty pieces until the head is complete."""
        heard = time.monotonic()
        while not self._response.complete and not self._stopped():
            left = min(self._deadline, heard + SILENCE_S) - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(min(LOOK_S, left))
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError:
                continue
            heard = time.monotonic()
            if not data:
                if self._response.status is None:
                    raise EOFError
                self._response.end()
                return
            yield self._response.feed(data)


def network_error(error: Exception, target: ServerTarget) -> NetworkError:
    """The error for a failed connection to ``target``: one sentence and a hint."""
    hint = "Check the URL, and that the server is running."
    match error:
        case ssl.SSLCertVerificationError():
            why = f"has a certificate that is not accepted: {error.verify_message.rstrip('.')}"
            hint = "Trust the certificate with --ca-file, or skip the check with --insecure."
        case ssl.SSLError():
            why = f"and this client could not agree on TLS ({(error.reason or 'no reason given').lower()})"
            why = "does not speak TLS on this port" if error.reason in NO_TLS else why
            hint = "If it has no certificate, its URL begins with http://."
        case ProtocolError():
            hint = "Is this the port of an HTTP server? With TLS, its URL begins with https://."
            return NetworkError(str(error), hint=hint)
        case OSError():
            number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno or 0
            why = REASONS.get(number, f"cannot be reached ({error})")
            hint = HINTS.get(number, hint)
        case ValueError():
            return NetworkError(f"The response does not match its API: {error}", hint=hint)
        case EOFError():
            why = "closed the connection without a response"
        case _:
            why = f"cannot be reached ({error})"
    return NetworkError(f"The server at {target} {why}.", hint=hint)


@contextmanager
def _sent(
    target: ServerTarget, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Iterator[socket.socket]:
    """A new connection on which the request was sent. Raises NetworkError if the connection fails."""
    kind, length = ({}, b"") if body is None else (JSON, b"\r\ncontent-length: %d" % len(body))
    request = head(target, method, path, {**kind, **lowered(headers), "connection": "close"}) + length + b"\r\n\r\n"
    tls = target.tls  # unusable certificates are reported before any connection
    address = reachable(target)
    try:
        with _connect(address, tls, target.host) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(request + (body or b""))
            yield sock
    except (OSError, EOFError, ProtocolError) as error:
        raise network_error(error, target) from error


def _connect(address: Address, tls: ssl.SSLContext | None = None, host: str = "") -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(where)
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise
