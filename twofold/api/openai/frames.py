"""Chunks of streamed chats and completions as server-sent events; what all chunks of a reply share is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.base import ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.openai.errors import error_reply
from twofold.api.openai.logprobs import ChatLogprobs
from twofold.api.openai.replies import FinishWord, ReplyTokenIds, TextChoice
from twofold.api.openai.usage import CompletionUsage
from twofold.core.errors import TwofoldError

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
NO_CHOICES: Final = b'"choices":[]'


class FunctionDelta(ReplyObject, kw_only=True):
    """More of the arguments' JSON text; the first part of a call has the name."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(ReplyObject, kw_only=True):
    """More of a call; its first part has the id."""

    index: NonNegativeInt
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(ReplyObject, kw_only=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: Annotated[list[ToolCallDelta], Meta(min_length=1)] | UnsetType = UNSET


class ChatChunkChoice(ReplyObject, kw_only=True):
    """A part of a completion."""

    index: NonNegativeInt
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None
    token_ids: ReplyTokenIds | UnsetType = UNSET


class Chunk(ReplyObject, kw_only=True):
    """A part of a streamed reply; the last one may have no choice, but the usage."""

    id: str
    object: str
    created: NonNegativeInt
    model: str
    service_tier: TierName | UnsetType = UNSET
    choices: Sequence[Any] = ()
    usage: CompletionUsage | UnsetType | None = UNSET
    twofold: Explanation | UnsetType = UNSET


class ChatChunk(Chunk, kw_only=True):
    """A part of a streamed chat."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: Annotated[Sequence[ChatChunkChoice], Meta(max_length=1)] = ()


class CompletionChunk(Chunk, kw_only=True):
    """A part of streamed completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: Annotated[Sequence[TextChoice], Meta(max_length=1)] = ()


class RunningUsage:
    """Tokens of each choice so far, as vLLM's continuous_usage_stats reports them in its chunks.

    prompts      tokens of each prompt
    completions  choices of each prompt
    """

    def __init__(self, prompts: Sequence[int], completions: int) -> None:
        self._prompts = [tokens for tokens in prompts for _ in range(completions)]
        self._outputs = [0] * len(self._prompts)

    def add(self, index: int, tokens: int) -> None:
        self._outputs[index] += tokens

    def field(self, index: int) -> bytes:
        prompt, output = self._prompts[index], self._outputs[index]
        counts = CompletionUsage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)
        return b',"usage":' + encode(counts)


class ChunkFrame:
    """Chunks of one reply, which differ in their choices only.

    chunk    which kind of chunk; ``prefix`` comes before the reply's id
    usage    whether the last chunk has the tokens of the whole request
    running  the usage of every other chunk
    """

    def __init__(
        self,
        chunk: type[ChatChunk | CompletionChunk],
        prefix: str,
        head: ReplyHead,
        *,
        usage: bool,
        running: RunningUsage | None = None,
    ) -> None:
        self._usage = usage
        self._running = running
        self._chunk = chunk(
            id=prefix + head.id,
            created=head.created,
            model=head.model,
            service_tier=head.service_tier or UNSET,
            usage=None if usage and running is None else UNSET,
        )
        self._start, self._end = _event(self._chunk).split(NO_CHOICES)  # quotes inside of texts are escaped

    def choice(self, choice: ChatChunkChoice | TextChoice) -> bytes:
        """A chunk with one choice."""
        running = b"" if self._running is None else self._running.field(choice.index)
        return b'%b"choices":[%b]%b%b' % (self._start, encode(choice), running, self._end)

    def last(self, usage: CompletionUsage, extra: Explanation | UnsetType) -> bytes:
        """The chunk without choices that ends a stream: with usage or extras, if either was requested."""
        if not self._usage and extra is UNSET:
            return b""
        return _event(structs.replace(self._chunk, usage=usage if self._usage else UNSET, twofold=extra))


def failure(error: TwofoldError) -> bytes:
    """The event that ends a stream which cannot go on."""
    return _event(error_reply(error)) + DONE


def _event(data: ReplyObject) -> bytes:
    return b"data: %b\n\n" % encode(data)
