"""Errors as HTTP responses, in the words of the dialect that a path speaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from starlette.types import Send

from twofold.api.base import Dialect
from twofold.core.errors import AccessError, BusyError, ForbiddenError, MethodError, QuotaError, TwofoldError

Header = tuple[bytes, bytes]
MAX_RETRY_AFTER_S: Final = 120


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A whole response. ``headers`` are in lower case."""

    status: int
    headers: tuple[Header, ...]
    body: bytes

    async def send(self, send: Send) -> None:
        """Sends it as an ASGI application does."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


class HeadError(TwofoldError):
    """The head of a request is longer than the server takes."""

    exit_code = 2
    status = 431


@dataclass(frozen=True, slots=True)
class Refusals:
    """Makes responses of errors. ``dialect_of`` gives the dialect that is spoken at a path."""

    dialect_of: Callable[[str], Dialect]

    def answer(self, error: TwofoldError, path: str, request_id: str, extra: Sequence[Header] = ()) -> RawResponse:
        """The response that tells ``error``; ``extra`` headers go with it."""
        dialect = self.dialect_of(path)
        body = orjson.dumps(dialect.error(error, request_id))
        headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *error_headers(error),
            *extra,
        )
        return RawResponse(dialect.status(error), headers, body)


def error_headers(error: TwofoldError) -> tuple[Header, ...]:
    """What an error says in headers: when to come again, which methods there are, how to show a key."""
    if isinstance(error, QuotaError | BusyError):
        return retry_headers(error.retry_after_s)
    if isinstance(error, MethodError):
        return ((b"allow", ", ".join(error.allowed).encode("ascii")),)
    if isinstance(error, AccessError) and not isinstance(error, ForbiddenError):
        return ((b"www-authenticate", b"Bearer"),)
    return ()


def retry_headers(seconds: float) -> tuple[Header, ...]:
    """When to come again, in whole seconds from 1 to 120, and in milliseconds for OpenAI's clients."""
    bounded = min(max(seconds, 0.001), MAX_RETRY_AFTER_S)
    return ((b"retry-after", b"%d" % math.ceil(bounded)), (b"retry-after-ms", b"%d" % math.ceil(bounded * 1000)))
