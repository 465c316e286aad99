"""The bytes of a request (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from twofold.bench.base import Endpoint
from twofold.bench.client.target import ServerTarget
from twofold.bench.load.base import Ask
from twofold.core.errors import ParameterError

USER_AGENT: Final = "twofold-bench"
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


JSON: Final = {"content-type": "application/json"}


def head(target: ServerTarget, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request, but for its length. Raises ParameterError where a header cannot be sent."""
    fields = {
        "host": target.authority,
        "user-agent": USER_AGENT,
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
    }
    fields |= lowered(headers)
    for name, value in fields.items():
        if TOKEN.fullmatch(name) is None or VALUE.fullmatch(value) is None:
            message = f"The header {name!r} cannot be sent: it has characters that no header may have."
            raise ParameterError(message, param="headers", hint="A key must be a single line.")
    lines = [f"{method} {target.base_path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1")


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The same with names in lower case, by which HTTP tells headers apart."""
    return {name.lower(): value for name, value in headers.items()}


class RequestWriter:
    """Makes the bytes of every request of a load; all but body and length are made once."""

    def __init__(self, target: ServerTarget, endpoint: Endpoint) -> None:
        self._head = head(target, "POST", endpoint.path, JSON | lowered(endpoint.headers)) + b"\r\ncontent-length: "
        self._endpoint = endpoint

    def write(self, ask: Ask) -> bytes:
        body = self._endpoint.body(ask)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
