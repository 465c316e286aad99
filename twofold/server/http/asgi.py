"""The words of ASGI, and small answers in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import orjson

from twofold.server.edge.refusals import Header

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final[Header] = (b"content-type", b"application/json")
STREAMED: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""What a stream is sent with beside its type; proxies shall not hold it back."""
OBJECTS: Final = 16
"""Of a list that are written in one go: vectors have up to some thousand numbers."""


def json_bytes(body: Mapping[str, object]) -> bytes:
    """An object in JSON, its lists in pieces: writing one holds the interpreter."""
    parts = []
    for name, value in body.items():
        data = json_list(value, OBJECTS) if isinstance(value, list) else orjson.dumps(value)
        parts.append(orjson.dumps(name) + b":" + data)
    return b"{" + b",".join(parts) + b"}"


def json_list(values: Sequence[object], piece: int) -> bytes:
    """A list in JSON, ``piece`` values at a time."""
    pieces = (orjson.dumps(values[start : start + piece])[1:-1] for start in range(0, len(values), piece))
    return b"[" + b",".join(pieces) + b"]"


async def send_body(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """Answers with these bytes."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def done_before_leaving(work: asyncio.Task[T], receive: Receive) -> bool:
    """Waits for ``work``, which is cancelled when the client disconnects; whether it was done before."""
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        done = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    finally:
        gone.cancel()
        work.cancel()
    return done


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
