"""The messages of a chat: each field with its type, and which beginnings of the prompt shall stay cached.

What a message means is the chat template's to say, and so is what it refuses; here nothing passes that is no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError, Fields, impossible, unsupported
from twofold.core.errors import named
from twofold.core.request import MAX_PINS, TimeToLive
from twofold.engine.prompts import Message
from twofold.text.templates.messages import MAX_MESSAGES

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "model", "ipython")
TEXTS: Final = ("name", "tool_call_id", "reasoning_content", "thinking")
ECHOED: Final[Mapping[str, tuple[object, ...]]] = {"annotations": ([],), "audio": (), "function_call": ()}
"""Fields of OpenAI's own replies, which clients send back with the values that say nothing."""
CACHE_TTLS: Final[Mapping[str, TimeToLive]] = {"5m": "5m", "30m": "30m", "1h": "1h"}
DEFAULT_TTL: Final = "30m"
MAX_INDEX: Final = 2**31 - 1


def read_messages(fields: Fields) -> tuple[Sequence[Message], tuple[CachePoint, ...]]:
    """The messages without their null fields, and what of them shall stay cached. Raises FieldError."""
    messages = fields.require("messages")
    if not isinstance(messages, list):
        raise impossible("messages", messages, "a list of objects")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise FieldError(
            f"messages holds {len(messages)} messages; the range is 1 to {MAX_MESSAGES}.", param="messages"
        )
    mode, ttl = _cache_options(fields)
    points: list[CachePoint] = []
    found = [_MessageReader(index, ttl or DEFAULT_TTL, points).message(given) for index, given in enumerate(messages)]
    if ttl is not None and mode == "implicit":
        points.append(CachePoint(ttl))
    return found, tuple(points[-MAX_PINS:])


class _MessageReader:
    """Reads the message ``index``; what of it shall stay cached, for ``ttl`` unless it says so, goes to ``points``."""

    def __init__(self, index: int, ttl: TimeToLive, points: list[CachePoint]) -> None:
        self._index = index
        self._ttl = ttl
        self._points = points

    def message(self, given: object) -> Message:
        fields = Fields(given, f"messages[{self._index}]")
        message: dict[str, Any] = {"role": fields.choice("role", ROLES)}
        content, refusal = self._content(fields), fields.text("refusal")
        message |= {name: value for name in TEXTS if (value := fields.text(name)) is not None}
        calls = _calls(fields)
        for name, possible in ECHOED.items():
            fields.only(name, *possible)
        fields.close()
        if calls is not None:
            message["tool_calls"] = calls
        if content is None and refusal is not None:
            content = refusal
        if content is None and not calls:
            raise FieldError(f"{fields.name('content')} is required.", param=fields.name("content"))
        return message | {"content": content}

    def _content(self, fields: Fields) -> str | list[Any] | None:
        given = fields.take("content")
        if given is None or isinstance(given, str):
            return given
        if not isinstance(given, list):
            raise impossible(fields.name("content"), given, "text or a list of text parts")
        return [self._part(part, number, fields.name("content")) for number, part in enumerate(given)]

    def _part(self, given: object, number: int, where: str) -> Any:
        """A part of a content without its breakpoint; a refusal is text like any other."""
        if isinstance(given, str):
            return given
        part = Fields(given, f"{where}[{number}]")
        kind = part.require("type")
        if kind not in ("text", "refusal"):
            raise unsupported(f"{part.name('type')} {named(kind)}", "This model reads text alone.")
        part.require(kind)
        text = part.text(kind)
        mark = part.inner("prompt_cache_breakpoint")
        if mark is not None:
            mark.choice("mode", ("explicit",))
            self._points.append(CachePoint(_ttl(mark) or self._ttl, message=self._index, part=number))
            mark.close()
        part.close()
        return {"type": "text", "text": text}


def _calls(fields: Fields) -> list[Message] | None:
    calls = fields.take("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise impossible(fields.name("tool_calls"), calls, "a list of calls")
    where = fields.name("tool_calls")
    return calls and [_call(Fields(call, f"{where}[{number}]")) for number, call in enumerate(calls)]


def _call(call: Fields) -> Message:
    """A call that the assistant made, as it was told; a stream tells its place in ``index`` too."""
    call.require("function")
    function = call.inner("function")
    assert function is not None, "it was required"
    name = function.require("name")
    if not isinstance(name, str) or not name:
        raise impossible(function.name("name"), name, "the name of a tool")
    arguments = function.take("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise impossible(function.name("arguments"), arguments, "JSON text or an object")
    function.close()
    identity = call.text("id")
    call.only("type", "function")
    call.whole("index", 0, MAX_INDEX)
    call.close()
    made = {"name": name, "arguments": "" if arguments is None else arguments}
    return ({} if identity is None else {"id": identity}) | {"type": "function", "function": made}


def _cache_options(fields: Fields) -> tuple[str, TimeToLive | None]:
    """Whether the whole prompt shall stay cached although it is not said where, and for how long."""
    fields.only("prompt_cache_retention", "in_memory")
    options = fields.inner("prompt_cache_options")
    if options is None:
        return "explicit", None
    mode = options.choice("mode", ("implicit", "explicit")) if options.take("mode") is not None else "implicit"
    ttl = _ttl(options)
    options.close()
    return mode, ttl or DEFAULT_TTL


def _ttl(fields: Fields) -> TimeToLive | None:
    return None if fields.take("ttl") is None else CACHE_TTLS[fields.choice("ttl", CACHE_TTLS)]
