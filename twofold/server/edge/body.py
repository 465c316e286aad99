"""Request bodies as plain data, limited in bytes, seconds, depth and number of values.

Decoding holds the interpreter, so its cost is bounded beforehand: 4 MiB of empty lists take half a second and 100 MB.
If an object has a field twice, the last one counts, as with OpenAI's and Anthropic's servers.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive

from twofold.api.fields import FieldError, check_depth
from twofold.core.errors import SlowClientError, TooLargeError
from twofold.server.edge.limits import KIB, BodyLimits

FREE_BYTES: Final = 64 * KIB
"""Bytes of each body that do not count for all bodies together; the limit on connections bounds them."""
MAX_DIGITS: Final = 18
JSON_TYPE: Final = "application/json"


class ClientGoneError(Exception):
    """The client disconnected while its body was read."""


async def read_body(
    headers: Headers, receive: Receive, limits: BodyLimits, hold: Callable[[int], None] = lambda _size: None
) -> bytes:
    """All bytes of a body of any type. Calls ``hold`` with the number of new bytes beyond FREE_BYTES.

    Raises TooLargeError, SlowClientError, ClientGoneError, and the errors of ``hold``.
    """
    announced = headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > MAX_DIGITS or int(announced) > limits.bytes):
        raise _too_large(limits)
    body, held, more = bytearray(), FREE_BYTES, True
    try:
        async with asyncio.timeout(limits.seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                body += message.get("body", b"")
                if len(body) > limits.bytes:
                    raise _too_large(limits)
                if len(body) > held:
                    hold(len(body) - held)
                    held = len(body)
                more = message.get("more_body", False)
    except TimeoutError:
        raise SlowClientError(f"The request body did not arrive within {limits.seconds:g} s.") from None
    return bytes(body)


def check_json_type(headers: Headers, *, any_type: bool = False) -> None:
    """Raises FieldError if the headers describe a body that is not JSON, or compressed."""
    kind = headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if kind != JSON_TYPE and not any_type:
        raise FieldError(f"The body must be {JSON_TYPE}; the Content-Type header says otherwise.", param="content-type")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise FieldError(
            "A compressed body is not supported.", param="content-encoding", hint="Send it without Content-Encoding."
        )


def decode_json(body: bytes, limits: BodyLimits) -> Any:
    """Plain data of JSON text. Raises FieldError with the position of a syntax error, and TooLargeError."""
    if not is_countable(body, limits):
        limit = f"{limits.containers:,} objects and lists or {limits.values:,} values"
        raise TooLargeError(f"The body of the request has more than {limit}.")
    try:
        value = orjson.loads(body.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise _not_json(body, error) from None  # the cause holds the body
    check_depth(value, limits.depth)
    return value


def _not_json(body: bytes, error: orjson.JSONDecodeError) -> FieldError:
    if not body.strip():
        return FieldError("The body is empty.", param="body", hint="Send a JSON object.")
    what = error.msg.partition(":")[0]
    return FieldError(f"The body is not valid JSON at line {error.lineno}, column {error.colno}: {what}.", param="body")


def is_countable(text: bytes, limits: BodyLimits) -> bool:
    """Whether JSON text is within the limits of objects, lists and values, which bound the cost of decoding.

    First it counts brackets and commas everywhere; only if they exceed the limits, it counts those outside of strings.
    """
    if _within(text, limits):
        return True
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * limits.values:
        return False
    return _within(b'"'.join(unescaped.split(b'"')[::2]), limits)


def _within(text: bytes, limits: BodyLimits) -> bool:
    return text.count(b"{") + text.count(b"[") <= limits.containers and text.count(b",") <= limits.values


def _too_large(limits: BodyLimits) -> TooLargeError:
    return TooLargeError(f"The body of the request is longer than {limits.bytes:,} bytes.")


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
