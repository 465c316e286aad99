"""The messages of a chat, and which prefixes of the prompt shall stay cached.

What a message means is the chat template's to say, and so is what it refuses; here nothing passes that is no message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.body import OFFERED, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.sampling import FullText
from twofold.core.request import MAX_PINS, TimeToLive
from twofold.engine.prompts import Message

TEXTS: Final = ("name", "tool_call_id", "reasoning_content", "thinking")
DEFAULT_TTL: Final = "30m"
MAX_INDEX: Final = 2**31 - 1

ChatRole: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function", "model", "ipython"]


class CacheBreakpoint(RequestObject):
    """The prompt up to here stays cached."""

    mode: Literal["explicit"]
    ttl: TimeToLive | None = None


class ChatTextPart(RequestObject):
    """A part of a message's text."""

    type: Annotated[Literal["text"], OFFERED]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class ChatRefusalPart(RequestObject):
    """A refusal, which is text like any other."""

    type: Annotated[Literal["refusal"], OFFERED]
    refusal: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class CalledFunction(RequestObject):
    """A function with its arguments: JSON text, or an object."""

    name: FullText
    arguments: str | dict[str, Any] = ""


class ChatCall(RequestObject):
    """A call that the assistant made, as it was sent; ``index`` is its place in a stream."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | None = None

    def message(self) -> Message:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return ({} if self.id is None else {"id": self.id}) | {"type": "function", "function": function}


class ChatMessage(RequestObject):
    """One message. What only OpenAI's own replies hold may be sent back with the value that says nothing."""

    role: ChatRole
    content: str | list[str | ChatTextPart | ChatRefusalPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[ChatCall] | None = None
    annotations: Annotated[Any, only([])] = None
    audio: None = None
    function_call: None = None

    def message(self, where: str) -> Message:
        """The message in the form that templates read. Raises FieldError where it neither has content nor calls."""
        message: dict[str, Any] = {"role": self.role}
        message |= {name: value for name in TEXTS if (value := getattr(self, name)) is not None}
        if self.tool_calls is not None:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        content: Any = self.refusal if self.content is None else self.content
        if content is None and not self.tool_calls:
            raise FieldError(f"{where}.content is required.", param=f"{where}.content")
        if isinstance(content, list):
            content = [part if isinstance(part, str) else {"type": "text", "text": text_of(part)} for part in content]
        return message | {"content": content}

    def points(self, index: int, ttl: TimeToLive) -> Iterator[CachePoint]:
        """Where the message, the ``index``-th, has breakpoints; they hold for ``ttl`` unless they name another."""
        for number, part in enumerate(self.content if isinstance(self.content, list) else ()):
            point = None if isinstance(part, str) else part.prompt_cache_breakpoint
            if point is not None:
                yield CachePoint(point.ttl or ttl, message=index, part=number)


class PromptCacheOptions(RequestObject):
    """Whether the whole prompt stays cached (implicit) or only what has a breakpoint, and for how long."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: TimeToLive = DEFAULT_TTL


def text_of(part: ChatTextPart | ChatRefusalPart) -> str:
    return part.text if isinstance(part, ChatTextPart) else part.refusal


def cache_points(messages: Sequence[ChatMessage], options: PromptCacheOptions | None) -> tuple[CachePoint, ...]:
    """The prefixes of the prompt that shall stay cached."""
    ttl = DEFAULT_TTL if options is None else options.ttl
    points = [point for index, message in enumerate(messages) for point in message.points(index, ttl)]
    if options is not None and options.mode == "implicit":
        points.append(CachePoint(ttl))
    return tuple(points[-MAX_PINS:])
