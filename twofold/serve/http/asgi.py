"""The words of ASGI, and small answers in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeAlias

import orjson

from twofold.serve.gate.refusals import Header

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final[Header] = (b"content-type", b"application/json")
STREAMED: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""What a stream is sent with beside its type; proxies shall not hold it back."""


async def send_json(send: Send, status: int, body: object, headers: Iterable[Header] = ()) -> None:
    """Answers with a JSON body."""
    await send_body(send, status, orjson.dumps(body), (JSON, *headers))


async def send_body(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """Answers with these bytes."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def until_gone(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
