"""Errors as HTTP responses, in the API protocol of the path, and the ids of requests."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from starlette.types import Send

from twofold.api.base import Dialect
from twofold.api.body import encode
from twofold.core.errors import AccessError, BusyError, ForbiddenError, MethodError, QuotaError, TwofoldError

Header = tuple[bytes, bytes]
DialectOf = Callable[[str], Dialect]
"""Returns the API protocol of a path."""
MAX_RETRY_AFTER_S: Final = 120
PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A whole response. ``headers`` are in lower case."""

    status: int
    headers: tuple[Header, ...]
    body: bytes

    @classmethod
    def of(cls, status: int, body: bytes, extra: Iterable[Header] = (), kind: bytes = b"application/json") -> Self:
        """A response with the headers of its content, and ``extra`` ones."""
        return cls(status, ((b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra), body)

    async def send(self, send: Send) -> None:
        """Sends it as an ASGI application does."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


class HeadError(TwofoldError):
    """The head of a request is too long."""

    exit_code = 2
    status = 431


def error_response(dialect: Dialect, error: TwofoldError, request_id: str, extra: Sequence[Header] = ()) -> RawResponse:
    """The response for ``error`` in an API protocol, with ``extra`` headers."""
    body = encode(dialect.error(error, request_id))
    return RawResponse.of(dialect.status(error), body, (*error_headers(error), *extra))


def error_headers(error: TwofoldError) -> tuple[Header, ...]:
    """Headers of an error: the delay before a retry, the allowed methods, or the authentication scheme and, for Claude
    Code, which otherwise repeats a request with a wrong key for a minute, that a repetition is of no use."""
    if isinstance(error, QuotaError | BusyError):
        return retry_headers(error.retry_after_s)
    if isinstance(error, MethodError):
        return ((b"allow", ", ".join(error.allowed).encode("ascii")),)
    if isinstance(error, AccessError) and not isinstance(error, ForbiddenError):
        return ((b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false"))
    return ()


def retry_headers(seconds: float) -> tuple[Header, ...]:
    """The delay before a retry, in whole seconds from 1 to 120, and in milliseconds for OpenAI's clients."""
    bounded = min(max(seconds, 0.001), MAX_RETRY_AFTER_S)
    return ((b"retry-after", b"%d" % math.ceil(bounded)), (b"retry-after-ms", b"%d" % math.ceil(bounded * 1000)))


def new_request_id() -> str:
    """A unique id: ``req_`` and 96 random bits."""
    return f"req_{secrets.token_hex(12)}"


def request_id_of(given: str) -> str:
    """The client's id of its request if it is short and plain, else a new one."""
    return given if PLAIN.fullmatch(given) else new_request_id()
