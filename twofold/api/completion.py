"""Completions as replies show them: reasoning, content and tool calls, and their token counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from twofold.api.base import ModelFacts
from twofold.core.request import TTL_SECONDS
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

NO_ARGUMENTS: Final = "{}"
"""JSON text of the arguments of a call without any."""


@dataclass(slots=True)
class ParsedCall:
    """A tool call that was parsed from a completion, and the JSON text of its arguments so far."""

    name: str
    arguments: str = ""

    def parsed_arguments(self) -> dict[str, Any] | None:
        """The arguments as an object; None if they are incomplete."""
        try:
            value = orjson.loads(self.arguments or NO_ARGUMENTS)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(slots=True)
class CompletionReader:
    """Divides one completion into sections, delta by delta, and collects them."""

    parser: SectionParser
    calls: list[ParsedCall] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)

    @classmethod
    def after(cls, parser: SectionParser, before: str) -> CompletionReader:
        """A reader of a completion that goes on after the text ``before``, of which it keeps only the calls."""
        reader = cls(parser)
        reader.take(OutputDelta("", 0, before, ()))
        reader._content.clear()
        reader._reasoning.clear()
        return reader

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def take(self, delta: OutputDelta) -> list[Piece]:
        """The pieces that a delta completes; the last delta also gives all withheld text."""
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
                    self.calls.append(ParsedCall(name))
                case Arguments(index, text):
                    self.calls[index].arguments += text
        return pieces


def read_completion(parser: SectionParser, text: str, before: str = "") -> CompletionReader:
    """Reads a whole completion at once, which goes on after the text ``before``."""
    reader = CompletionReader.after(parser, before)
    reader.take(OutputDelta("", 0, text, (), finish_reason="stop"))
    return reader


def reasoning_tokens(outputs: Sequence[RequestOutput], model: ModelFacts) -> int:
    """Tokens of the thinking sections of all completions, their marks included."""
    marks = model.format.thinking
    if marks is None:
        return 0
    return sum(marks.tokens_of(completion.token_ids) for output in outputs for completion in output.outputs)


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Tokens of prompts: ``read`` from the prefix cache, ``loaded`` of them from the KV store on the disk;
    ``written_by_seconds``: pinned there, by seconds to live.

    Law: fresh + read + written = prompt.
    """

    prompt: int = 0
    read: int = 0
    written_by_seconds: dict[float, int] = field(default_factory=dict)
    loaded: int = 0

    @classmethod
    def of(cls, outputs: Iterable[RequestOutput]) -> CacheUsage:
        """The usage of completed requests. Only granted pins count, the longest of those that cover a token."""
        prompt = read = loaded = 0
        written = dict.fromkeys(sorted(TTL_SECONDS.values()), 0)
        for output in outputs:
            prompt += len(output.prompt_token_ids)
            read += output.metrics.cached_tokens
            loaded += output.metrics.loaded_tokens
            done, pins = output.metrics.cached_tokens, sorted(output.report.record.pins)
            for index, pin in enumerate(pins):
                written[max(later.ttl_s for later in pins[index:])] += max(0, pin.tokens - done)
                done = max(done, pin.tokens)
        return cls(prompt, read, {ttl_s: tokens for ttl_s, tokens in written.items() if tokens}, loaded)

    @property
    def written(self) -> int:
        return sum(self.written_by_seconds.values())

    @property
    def fresh(self) -> int:
        """Tokens that were computed and are not pinned."""
        return self.prompt - self.read - self.written
