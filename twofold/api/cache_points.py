"""Finds the prefixes of a prompt that shall stay cached, and counts their tokens, for pins of the prefix cache.

Callers name parts of a conversation, the prefix cache holds tokens, and the chat template between them may put
anything anywhere. So the end of a prefix is found by trial: the conversation is rendered again with other text after
the point, and the common prefix of both renderings is what the point covers, whatever the template did. Text that
follows the point in both, for example a line break, belongs to the prefix.

Laws: pins ascend; whatever follows a point, the tokens of its pin stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twofold.api.base import ModelFacts
from twofold.core.errors import TemplateError
from twofold.core.request import TTL_SECONDS, CachePin, TimeToLive
from twofold.engine.prompts import Message
from twofold.text.tokenizers.special import unused_mark

Renderer: TypeAlias = Callable[[Sequence[Message], Sequence[Message] | None], str]
"""The text of the prompt that a conversation with these messages and tools has."""

WHITE: Final = b" \t\n\r\v\f"


@dataclass(frozen=True, slots=True)
class CachePoint:
    """The prefix up to the end of a tool, or of a part of a message; with neither of them, the whole prompt.

    part   index in the message's text parts (a plain text is one) and then its tool calls; None is the last
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
    """The pins of these points, ascending; of several points at one token, the longest time to live counts.

    ``token_ids`` are those of the whole conversation. A point has no pin if it covers no whole token, is on tools that
    the model is not shown, or cannot be found in the rendered text.
    """
    text = render(messages, tools)
    ends: list[tuple[int, TimeToLive]] = []
    for point in points:
        end = _end(point, text, messages, tools, render)
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
    """The index in ``text`` at which the point's prefix ends; 0 if it cannot be found."""
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
    """The tools up to this one; after the very last one, a new one is added."""
    if last + 1 < len(tools):
        return tools[: last + 1]
    return [*tools, {"type": "function", "function": {"name": mark, "description": mark, "parameters": {}}}]


def _other_message(message: Message, part: int | None, mark: str) -> Message:
    """The message with other text after the part: without the calls behind it, or with ``mark`` or a new call added."""
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
    """The calls up to this one; after the very last one, a new one is added."""
    if last + 1 < len(calls):
        return calls[: last + 1]
    return [*calls, {**calls[-1], "function": {"name": mark, "arguments": "{}"}}]


def _common(text: str, other: str) -> int:
    """Length of the common prefix, by bisection, because comparing slices is fast."""
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

    Tokens are aligned with the text. A tokenizer may put a space before a piece of text, or drop white space after a
    control token; after a token that fits in no such way, no more tokens are counted.
    """
    raw = text.encode()
    counts: list[int] = []
    position = count = 0
    for end in ends:
        limit = len(text[:end].encode())
        while count < len(token_ids):
            after = _token_end(raw, position, token_bytes(token_ids[count]))
            if after is None or after > limit:
                break
            position, count = after, count + 1
        counts.append(count)
    return counts


def _token_end(raw: bytes, position: int, piece: bytes) -> int | None:
    """The position after the token ``piece``, white space aside; None if ``raw`` does not continue with it."""
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
