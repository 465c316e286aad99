"""Chunks of streamed chats and completions as server-sent events; what all chunks of a reply share is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.answers import AnswerReader
from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.openai.errors import error_reply
from twofold.api.openai.logprobs import ChatLogprobs, TextLogprobs, answer_positions, chat_logprobs, text_logprobs
from twofold.api.openai.replies import (
    CompletionUsage,
    FinishWord,
    ReplyTokenIds,
    TextChoice,
    call_id,
    chat_finish,
    usage,
)
from twofold.core.errors import TwofoldError
from twofold.core.request import TextOrTokens
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

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


class ChatStreamer:
    """``Streamer`` of a chat with one parser for each choice. ``top_logprobs`` is None without log-probabilities."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parsers: Sequence[SectionParser],
        *,
        include_usage: bool,
        continuous_usage: bool,
        top_logprobs: int | None,
        token_ids: bool,
    ) -> None:
        self._head = head
        self._model = model
        self._readers = [AnswerReader(parser) for parser in parsers]
        self._top_logprobs = top_logprobs
        self._token_ids = token_ids
        self._plain = top_logprobs is None and not token_ids
        self._running = RunningUsage(head.prompt_tokens, len(self._readers)) if continuous_usage else None
        self._frame = ChunkFrame(ChatChunk, "chatcmpl-", head, usage=include_usage, running=self._running)

    def open(self) -> bytes:
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._chunk(index, role) for index in range(len(self._readers)))

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a chat is one job
        if self._running is not None:
            self._running.add(delta.index, len(delta.token_ids))
        reader = self._readers[delta.index]
        pieces = reader.take(delta)
        chunks = b""
        if not self._plain:
            chunks = self._detailed(delta, pieces)
        elif pieces:
            chunks = self._chunk(delta.index, self._delta(delta.index, pieces))
        if delta.finish_reason is None:
            return chunks
        finish = "tool_calls" if reader.called(delta.finish_reason) else chat_finish(delta.finish_reason)
        end = ChatChunkChoice(index=delta.index, delta=ChatDelta(), finish_reason=finish)
        return chunks + self._frame.choice(end)

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _detailed(self, delta: OutputDelta, pieces: Sequence[Piece]) -> bytes:
        """With log-probabilities or token ids: each token is in a chunk, also while its text is withheld."""
        if not delta.token_ids and not pieces:
            return b""
        logprobs = None
        if delta.logprobs is not None and self._top_logprobs is not None:
            tokenizer = self._model.tokenizer
            logprobs = ChatLogprobs(chat_logprobs(delta.token_ids, delta.logprobs, tokenizer, self._top_logprobs))
        added = self._delta(delta.index, pieces) if pieces else ChatDelta(content="")
        token_ids = delta.token_ids if self._token_ids else UNSET
        return self._frame.choice(
            ChatChunkChoice(index=delta.index, delta=added, logprobs=logprobs, token_ids=token_ids)
        )

    def _delta(self, index: int, pieces: Sequence[Piece]) -> ChatDelta:
        """What these pieces add to a message."""
        added = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for piece in pieces:
            match piece:
                case Content(text):
                    added.content = (added.content or "") + text
                case Reasoning(text):
                    added.reasoning_content = (added.reasoning_content or "") + text
                case ToolCall(number, name):
                    identity, function = call_id(self._head, index, number), FunctionDelta(name=name, arguments="")
                    calls[number] = ToolCallDelta(index=number, id=identity, type="function", function=function)
                case Arguments(number, text):
                    call = calls.setdefault(number, ToolCallDelta(index=number, function=FunctionDelta(arguments="")))
                    call.function.arguments += text
        if calls:
            added.tool_calls = list(calls.values())
        return added

    def _chunk(self, index: int, delta: ChatDelta) -> bytes:
        return self._frame.choice(ChatChunkChoice(index=index, delta=delta))


class CompletionStreamer:
    """``Streamer`` of completions: each prompt has ``answers`` completions, numbered prompt after prompt."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        given: Sequence[TextOrTokens],
        *,
        answers: int,
        echo: bool,
        include_usage: bool,
        continuous_usage: bool,
        logprobs: bool,
        token_ids: bool,
    ) -> None:
        self._model = model
        self._given = given
        self._answers = answers
        self._echo = echo
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._offsets = [0] * (len(given) * answers)
        self._running = RunningUsage(head.prompt_tokens, answers) if continuous_usage else None
        self._frame = ChunkFrame(CompletionChunk, "cmpl-", head, usage=include_usage, running=self._running)

    def open(self) -> bytes:
        if not self._echo:
            return b""
        chunks = b""
        for job, given in enumerate(self._given):
            text = given
            if not isinstance(text, str):
                text = self._model.tokenizer.decode(text, skip_special_tokens=False)
            for index in range(job * self._answers, (job + 1) * self._answers):
                chunks += self._frame.choice(TextChoice(index=index, text=text))
        return chunks

    def take(self, job: int, delta: OutputDelta) -> bytes:
        index = job * self._answers + delta.index
        if self._running is not None:
            self._running.add(index, len(delta.token_ids))
        if not (delta.text or delta.finish_reason or ((self._logprobs or self._token_ids) and delta.token_ids)):
            return b""
        return self._frame.choice(
            TextChoice(
                index=index,
                text=delta.text,
                logprobs=self._text_logprobs(index, delta) if self._logprobs else None,
                finish_reason=chat_finish(delta.finish_reason),
                token_ids=delta.token_ids if self._token_ids else UNSET,
            )
        )

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _text_logprobs(self, index: int, delta: OutputDelta) -> TextLogprobs:
        positions = answer_positions(delta.token_ids, delta.logprobs)
        start = self._offsets[index]
        self._offsets[index] += sum(len(text) for text, _, _ in positions)
        return text_logprobs(positions, start)
