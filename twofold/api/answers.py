"""Completions as replies show them: reasoning, content and tool calls, and their token counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from twofold.api.base import ModelFacts
from twofold.core.record import HeldPin
from twofold.core.request import TTL_SECONDS, TimeToLive
from twofold.core.step import FinishReason
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

NOTHING: Final = "{}"
"""The arguments of a call without any."""


@dataclass(slots=True)
class CallMade:
    """A call, and the JSON text of its arguments so far."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class AnswerReader:
    """Divides one completion into its sections, piece by piece, and collects each section."""

    parser: SectionParser
    calls: list[CallMade] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def take(self, delta: OutputDelta) -> list[Piece]:
        """The pieces that a delta completes; all that is left with the delta that ends the completion."""
        pieces = list(self.parser.push(delta.text)) if delta.text else []
        if delta.finish_reason is not None:
            pieces += self.parser.flush()
        for piece in pieces:
            match piece:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case ToolCall(_, name):
                    self.calls.append(CallMade(name))
                case Arguments(index, text):
                    self.calls[index].arguments += text
        return pieces

    def called(self, finish: FinishReason | None) -> bool:
        """Whether the completion ended with calls, and not by a limit."""
        return bool(self.calls) and finish == "stop"


def read_answer(parser: SectionParser, text: str) -> AnswerReader:
    """A whole completion."""
    reader = AnswerReader(parser)
    reader.take(OutputDelta("", 0, text, (), finish_reason="stop"))
    return reader


def reasoning_tokens(outputs: Sequence[RequestOutput], model: ModelFacts) -> int:
    """Tokens of the thinking sections of all completions, their marks included."""
    marks = model.format.thinking
    if marks is None:
        return 0
    start = tuple(model.tokenizer.encode(marks.start, add_special_tokens=False))
    end = tuple(model.tokenizer.encode(marks.end, add_special_tokens=False))
    answers = (answer.token_ids for output in outputs for answer in output.outputs)
    return sum(_thought(ids, start, end, opened=marks.opened) for ids in answers)


def _thought(ids: tuple[int, ...], start: tuple[int, ...], end: tuple[int, ...], *, opened: bool) -> int:
    """Tokens up to the end of the section; all of a completion that does not close its section."""
    places = range(len(ids) - len(end) + 1)
    closed = next((place for place in places if ids[place : place + len(end)] == end), None)
    if closed is not None:
        return closed + len(end)
    return len(ids) if opened or ids[: len(start)] == start else 0


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Tokens of prompts: ``read`` from the prefix cache, ``written_…`` computed and pinned there for that time.

    Law: fresh + read + written = prompt.
    """

    prompt: int = 0
    read: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0

    @classmethod
    def of(cls, output: RequestOutput) -> CacheUsage:
        """Of a completed request."""
        return cls.counted(output.report.record.pins, len(output.prompt_token_ids), output.metrics.cached_tokens)

    @classmethod
    def counted(cls, pins: Iterable[HeldPin], prompt_tokens: int, cached_tokens: int) -> CacheUsage:
        """Of one prompt, with the pins that were granted. If several cover a token, the longest counts."""
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
        """Computed, and not pinned."""
        return self.prompt - self.read - self.written

    @property
    def written_by_seconds(self) -> dict[float, int]:
        """Written tokens by seconds to live."""
        by_name: tuple[tuple[TimeToLive, int], ...] = (
            ("5m", self.written_5m),
            ("30m", self.written_30m),
            ("1h", self.written_1h),
        )
        return {TTL_SECONDS[ttl]: tokens for ttl, tokens in by_name if tokens}
