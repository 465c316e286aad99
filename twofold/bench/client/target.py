"""Where the server is: a base URL, and how its certificate is checked."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from twofold.core.errors import NetworkError, ParameterError

PORTS: Final = {"http": 80, "https": 443}

Address: TypeAlias = tuple[socket.AddressFamily, Any]
"""A family and the socket address in it."""


@dataclass(frozen=True)
class ServerTarget:
    """A server. ``base_path`` stands before every path, and is empty or begins with a slash.

    verify   whether the certificate of an https server must be one that this machine trusts
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
        """Parses a base URL as clients of OpenAI's take it: with or without ``/v1`` at its end, with or without http://.

        Raises ParameterError where it is none.
        """
        parts, port = _split(url if "://" in url else f"http://{url}")
        host = parts.hostname
        if parts.scheme not in PORTS or not host:
            raise _wrong("is not the URL of an HTTP server")
        if parts.username is not None or parts.password is not None:
            raise _wrong("holds a user name or a password", hint="Give the key with --api-key.")
        if parts.query or parts.fragment:
            raise _wrong("has something behind its path")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if path.endswith(("/completions", "/messages")):
            raise _wrong("names an endpoint", hint="Give the base URL; --endpoint says which endpoint is asked.")
        return cls(parts.scheme, host, port or PORTS[parts.scheme], path, verify, ca_file)

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """How connections are secured; None for plain ones. Raises ParameterError where ``ca_file`` is not usable."""
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
        """What the host's name stands for, best first. Raises NetworkError where nothing is known under it."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            message = f"No address is known for the host {self.host!r}."
            raise NetworkError(message, hint="Check the URL and the network connection.") from error
        return tuple((socket.AddressFamily(family), address) for family, _, _, _, address in found)


def _split(url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise _wrong("is not the URL of an HTTP server") from error


def _wrong(why: str, hint: str = "A URL looks like http://127.0.0.1:8000 or https://host/path/v1.") -> ParameterError:
    return ParameterError(f"The URL of the server {why}.", param="url", hint=hint)
