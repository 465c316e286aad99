"""Host names and web origins that the server accepts.

A web page can make a browser send requests to a server on the same machine or network: through a name of its own that
resolves there (DNS rebinding), or as a cross-origin request. Against the first, the Host header must be an address, a
name of this machine or a configured name: only names can be rebound. Against the second, a request with an Origin must
come from the server's own pages or from an allowed origin; programs send none. Browsers send no Origin with simple GET
requests, but they mark those of other sites: Sec-Fetch-Site (https://www.w3.org/TR/fetch-metadata/).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from twofold.core.errors import ForbiddenError, ParameterError
from twofold.server.edge.quotas import RATES
from twofold.server.edge.refusals import Header, RawResponse

ANY: Final = "*"
PREFLIGHT_AGE_S: Final = 600
MAX_ASKED_HEADERS: Final = 1024
METHODS: Final = b"GET, HEAD, POST, DELETE, OPTIONS"
EXPOSED: Final = ", ".join(
    (
        *("x-request-id", "request-id", "retry-after", "retry-after-ms"),
        *(f"x-ratelimit-{name}-{rate}" for rate in RATES for name in ("limit", "remaining", "reset")),
        *("x-twofold-cache", "x-twofold-warning"),
    )
).encode()
SECURITY_HEADERS: Final[tuple[Header, ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Headers that are added to each response, unless it sets them itself."""

HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?")
ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]*")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Accepted names besides localhost and addresses; ``*.name``: all names below ``name``, ``*``: all names."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> Hosts:
        """Raises ParameterError for an invalid host name."""
        for name in names:
            if name != ANY and not HOST.fullmatch(name.removeprefix("*.")):
                raise ParameterError(f"{name!r:.100} is not the name of a host.", param="allowed_hosts")
        return cls(frozenset(_plain_name(name) for name in names))

    def check(self, host: str | None) -> None:
        """Raises ForbiddenError if the Host header has another name. HTTP/1.0, which browsers do not use, lacks it."""
        if host is None or ANY in self.names:
            return
        parts = HOST.fullmatch(host)
        if parts is None or not self._knows(_plain_name(parts["name"])):
            raise ForbiddenError(
                "This server does not answer to the name in the Host header.",
                hint="Use its address or localhost, or start it with --allowed-hosts.",
            )

    def _knows(self, name: str) -> bool:
        if name == "localhost" or name.endswith(".localhost") or name in self.names or _is_address(name):
            return True
        return any(name.endswith(known[1:]) for known in self.names if known.startswith("*."))


@dataclass(frozen=True, slots=True)
class Origins:
    """Web origins that may use the server from a browser, such as ``https://app.example``; ``*`` for all.

    No credentials are allowed with them: keys travel in headers that the page itself sets.
    """

    allowed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, origins: Iterable[str]) -> Origins:
        """Raises ParameterError for an invalid origin."""
        for origin in origins:
            if origin != ANY and not ORIGIN.fullmatch(origin.lower()):
                raise ParameterError(
                    f"{origin!r:.100} is not an origin.",
                    param="allowed_origins",
                    hint="Write scheme://host or scheme://host:port, nothing else.",
                )
        return cls(frozenset(origin.lower() for origin in origins))

    def check(self, origin: str | None, host: str | None) -> None:
        """Raises ForbiddenError for an origin that is neither allowed nor the server's own."""
        if origin is None or self.allows(origin) or _same(origin, host):
            return
        raise ForbiddenError(
            "Requests from this Origin are not allowed.", hint="Start the server with --allowed-origins ORIGIN."
        )

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Raises ForbiddenError for a request that a page of another site makes, except from allowed origins. A link to
        this server that a person follows is a navigation of the whole page; a frame is none."""
        origin, marks = headers.get("origin"), [headers.get(f"sec-fetch-{name}") for name in ("mode", "dest")]
        navigates = marks[0] == "navigate" and marks[1] in (None, "document")
        if headers.get("sec-fetch-site") != "cross-site" or navigates or ANY in self.allowed:
            return
        if origin is None or not self.allows(origin):
            raise ForbiddenError(
                "Requests from pages of other sites are not allowed.",
                hint="Start the server with --allowed-origins ORIGIN.",
            )

    def allows(self, origin: str) -> bool:
        return ANY in self.allowed or origin.lower() in self.allowed

    def headers(self, origin: str | None) -> tuple[Header, ...]:
        """Headers that allow a page of this origin to read the response."""
        if not self.allowed:
            return ()
        vary = ((b"vary", b"origin"),)
        if origin is None or not self.allows(origin):
            return vary
        return (
            *vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED),
        )

    def preflight(self, asked: bytes) -> RawResponse:
        """The response to a CORS preflight request; ``asked`` are the headers that the page wants to send."""
        allowed = asked if len(asked) <= MAX_ASKED_HEADERS and HEADER_NAMES.fullmatch(asked) else b"authorization"
        headers = (
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
        )
        return RawResponse(204, headers, b"")


def _plain_name(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(origin: str, host: str | None) -> bool:
    """Whether the page is the server's own; the scheme differs behind a proxy that ends TLS."""
    return host is not None and origin.partition("://")[2].lower() == host.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    name = _plain_name(host)
    if name == "localhost":
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def outward_address() -> str:
    """The address of this machine in its network, found without sending a packet; its host name if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved by RFC 5737
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
