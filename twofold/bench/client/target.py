"""The server that is measured: its base URL, how its certificate is checked, and the head of requests to it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from twofold.core.errors import NetworkError, ParameterError

PORTS: Final = {"http": 80, "https": 443}
USER_AGENT: Final = "twofold-bench"
JSON: Final = {"content-type": "application/json"}
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

Address: TypeAlias = tuple[socket.AddressFamily, Any]
"""An address family and a socket address."""


@dataclass(frozen=True)
class ServerTarget:
    """A server. ``base_path`` precedes every path; it is empty or begins with a slash.

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
            raise _wrong("is not the URL of an HTTP server") from error
        if parts.scheme not in PORTS or not host:
            raise _wrong("is not the URL of an HTTP server")
        if parts.username is not None or parts.password is not None:
            raise _wrong("holds a user name or a password", hint="Give the key with --api-key.")
        if parts.query or parts.fragment:
            raise _wrong("has a query or a fragment")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if path.endswith(("/completions", "/messages")):
            raise _wrong("names an endpoint", hint="Give the base URL, and choose the endpoint with --endpoint.")
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
            message = f"The file of trusted certificates cannot be used: {self.ca_file}."
            raise ParameterError(message, param="ca_file", hint="It must hold certificates in PEM form.") from error
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
    """The head of a request (RFC 9112) without its end. Raises ParameterError for an invalid header."""
    fields = {
        "host": target.authority,
        "user-agent": USER_AGENT,
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
    }
    fields |= lowered(headers)
    for name, value in fields.items():
        if TOKEN.fullmatch(name) is None or VALUE.fullmatch(value) is None:
            message = f"The header {name!r} contains characters that no header may have."
            raise ParameterError(message, param="headers", hint="A key must be a single line.")
    lines = [f"{method} {target.base_path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1")


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def _wrong(why: str, hint: str = "A URL looks like http://127.0.0.1:8000 or https://host/path/v1.") -> ParameterError:
    return ParameterError(f"The URL of the server {why}.", param="url", hint=hint)
