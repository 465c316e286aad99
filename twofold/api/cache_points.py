"""Where the beginnings of a prompt that shall stay cached end, in tokens; and how much of a prompt was cached.

Callers name parts of a conversation, the prefix cache holds tokens, and between them lies a chat template that may
put anything anywhere. So a point is found by trial: the conversation is rendered again with something else behind the
point, and what both texts begin with is what the point covers, whatever the template did. Where all that can follow
begins alike, such as with a line break, that belongs to it.

Laws: pins ascend; whatever follows a point, the tokens of its pin stay; fresh + read + written = prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twofold.api.base import ModelFacts
from twofold.core.errors import TemplateError
from twofold.core.record import HeldPin
from twofold.core.request import TTL_SECONDS, CachePin, TimeToLive
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.tokenizers.special import unused_mark

Renderer: TypeAlias = Callable[[Sequence[Message], Sequence[Message] | None], str]
"""Gives the chat template's text for messages and tools."""

WHITE: Final = b" \t\n\r\v\f"


@dataclass(frozen=True, slots=True)
class CachePoint:
    """Everything up to the end of a tool, or of a part of a message; with neither of them, the whole prompt.

    part   counts the parts of the message's content, of which a text is one, and then its tool calls; None is the last
    """

    ttl: TimeToLive = "5m"
    tool: int | None = None
    message: int | None = None
    part: int | None = None


def find_pins(
    points: Sequence[CachePoint],
    messages: Sequence[Message],
    tools: Sequence[Message] | None,
    token_ids: Sequence[int],
    model: ModelFacts,
    render: Renderer,
) -> tuple[CachePin, ...]:
    """The pins that hold these points, ascending; where several meet, the longest time to live counts.

    ``token_ids`` are those of the conversation as it stands; ``render`` takes messages and tools as
    ``AnswerFormat.shown`` gives them. There is no pin for a point that covers no whole token, that lies on tools which
    the model is not shown, or whose place the template hides.
    """
    text = render(*model.format.shown(messages, tools))
    ends: list[tuple[int, TimeToLive]] = []
    for point in points:
        end = _end(point, text, messages, tools, lambda *changed: render(*model.format.shown(*changed)))
        if end:
            ends.append((end, point.ttl))
    ends.sort()
    counts = _tokens_before([end for end, _ in ends], text, token_ids, model.tokenizer.token_bytes)
    places = sorted((count, TTL_SECONDS[ttl], ttl) for count, (_, ttl) in zip(counts, ends, strict=True))
    held = {tokens: ttl for tokens, _, ttl in places if tokens}
    return tuple(CachePin(tokens=tokens, ttl=ttl) for tokens, ttl in held.items())


def _end(
    point: CachePoint,
    text: str,
    messages: Sequence[Message],
    tools: Sequence[Message] | None,
    render: Renderer,
) -> int:
    """The character of ``text`` where the point lies; 0 where that cannot be told."""
    mark = unused_mark(text)
    if point.tool is not None:
        if not tools:
            return 0
        tools = _other_tools(tools, point.tool, mark)
    elif point.message is not None:
        message = _other_message(messages[point.message], point.part, mark)
        messages = [*messages[: point.message], message, *messages[point.message + 1 :]]
    else:
        return len(text)
    try:
        other = render(messages, tools)
    except TemplateError:
        return 0
    return 0 if other == text else _common(text, other)


def _other_tools(tools: Sequence[Message], last: int, mark: str) -> Sequence[Message]:
    """Without the tools behind this one; behind the very last there is a new one."""
    if last + 1 < len(tools):
        return tools[: last + 1]
    return [*tools, {"type": "function", "function": {"name": mark, "description": mark, "parameters": {}}}]


def _other_message(message: Message, part: int | None, mark: str) -> Message:
    content = message.get("content")
    parts: list[Any] = [] if content is None else [content] if isinstance(content, str) else list(content)
    calls = list(message.get("tool_calls") or ())
    place = len(parts) + len(calls) - 1 if part is None else part
    if place >= len(parts) and calls:
        return {**message, "tool_calls": _other_calls(calls, place - len(parts), mark)}
    if isinstance(content, str) or not parts:
        return {**message, "content": f"{content or ''}{mark}"}
    parts[place] = {"type": "text", "text": parts[place]["text"] + mark}
    return {**message, "content": parts}


def _other_calls(calls: list[Any], last: int, mark: str) -> list[Any]:
    """Without the calls behind this one; behind the very last there is a new one."""
    if last + 1 < len(calls):
        return calls[: last + 1]
    return [*calls, {**calls[-1], "function": {"name": mark, "arguments": "{}"}}]


def _common(text: str, other: str) -> int:
    """Characters that both texts begin with: by halving, for comparing slices is fast."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _tokens_before(
    ends: Sequence[int], text: str, token_ids: Sequence[int], token_bytes: Callable[[int], bytes]
) -> list[int]:
    """How many tokens end at or before each of these characters, which ascend.

    Tokens are laid along the text. A tokenizer may put a space before a piece of text, or drop white space after a
    control token; where a token fits in no such way, nothing is certain any more, and later tokens do not count.
    """
    raw = text.encode()
    counts: list[int] = []
    position = count = 0
    for end in ends:
        limit = len(text[:end].encode())
        while count < len(token_ids):
            after = _laid(raw, position, token_bytes(token_ids[count]))
            if after is None or after > limit:
                break
            position, count = after, count + 1
        counts.append(count)
    return counts


def _laid(raw: bytes, position: int, piece: bytes) -> int | None:
    """Where a token that begins here ends; None where it does not fit."""
    if raw.startswith(piece, position):
        return position + len(piece)
    skipped = position
    while skipped < len(raw) and raw[skipped] in WHITE:
        skipped += 1
    for start in (position, skipped):
        for shown in (piece, piece.removeprefix(b" ")):
            if raw.startswith(shown, start):
                return start + len(shown)
    return None


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Tokens of prompts: ``read`` came from the cache; ``written_…`` were computed, and stay there for so long."""

    prompt: int = 0
    read: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0

    @classmethod
    def of(cls, output: RequestOutput) -> CacheUsage:
        """Of a request that ended."""
        return cls.counted(output.report.record.pins, len(output.prompt_token_ids), output.metrics.cached_tokens)

    @classmethod
    def counted(cls, pins: Iterable[HeldPin], prompt_tokens: int, cached_tokens: int) -> CacheUsage:
        """Of one prompt, with the pins that were granted. Where several cover a token, the longest counts."""
        written = dict.fromkeys(TTL_SECONDS.values(), 0)
        done, ascending = cached_tokens, sorted(pins)
        for index, pin in enumerate(ascending):
            written[max(later.ttl_s for later in ascending[index:])] += max(0, pin.tokens - done)
            done = max(done, pin.tokens)
        kept = (written[TTL_SECONDS[ttl]] for ttl in ("5m", "30m", "1h"))
        return cls(prompt_tokens, cached_tokens, *kept)

    def __add__(self, other: CacheUsage) -> CacheUsage:
        return CacheUsage(
            self.prompt + other.prompt,
            self.read + other.read,
            self.written_5m + other.written_5m,
            self.written_30m + other.written_30m,
            self.written_1h + other.written_1h,
        )

    @property
    def written(self) -> int:
        return self.written_5m + self.written_30m + self.written_1h

    @property
    def fresh(self) -> int:
        """Computed, and not asked to stay."""
        return self.prompt - self.read - self.written

    @property
    def written_by_seconds(self) -> dict[float, int]:
        """What was written, by seconds to live."""
        by_name: tuple[tuple[TimeToLive, int], ...] = (
            ("5m", self.written_5m),
            ("30m", self.written_30m),
            ("1h", self.written_1h),
        )
        return {TTL_SECONDS[ttl]: tokens for ttl, tokens in by_name if tokens}
