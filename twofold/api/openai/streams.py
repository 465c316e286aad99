"""Streamed chats and completions: chunks as server-sent events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, UnsetType, structs

from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.completion import CompletionReader
from twofold.api.compression import CompressionReply
from twofold.api.openai.bodies import SampledRequest, StreamOptions
from twofold.api.openai.errors import error_reply
from twofold.api.openai.logprobs import (
    ChatLogprobs,
    TextLogprobs,
    TokenOffsets,
    chat_logprobs,
    prompt_positions,
    prompt_text,
    sampled_positions,
    text_logprobs,
)
from twofold.api.openai.replies import (
    CompletionUsage,
    FinishWord,
    ReplyTokenIds,
    TextChoice,
    call_id,
    chat_finish,
    usage,
)
from twofold.api.timeline import ChunkProgress, ChunkTokens, PromptProgress, milliseconds
from twofold.core.errors import TwofoldError
from twofold.core.forecast import RequestProgress
from twofold.core.params import SamplingParams
from twofold.core.request import TextOrTokens
from twofold.core.timeline import TokensMade
from twofold.engine.outputs import OutputDelta, RequestOutput, ScoredPrompt
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, ToolCall

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
NO_CHOICES: Final = b'"choices":[]'
NO_TEXT: Final = b'""'


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
    """The part of a message in one chunk."""

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
    """A part of a streamed reply; the last one may have the usage instead of a choice."""

    id: str
    object: str
    created: NonNegativeInt
    model: str
    system_fingerprint: str | UnsetType = UNSET
    service_tier: TierName | UnsetType = UNSET
    choices: Sequence[Any] = ()
    usage: CompletionUsage | UnsetType | None = UNSET
    twofold: Explanation | UnsetType = UNSET


class ChatChunk(Chunk, kw_only=True):
    """A part of a streamed chat."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    twofold: ChunkTokens | ChunkProgress | Explanation | UnsetType = UNSET
    choices: Annotated[Sequence[ChatChunkChoice], Meta(max_length=1)] = ()


class CompletionChunk(Chunk, kw_only=True):
    """A part of streamed completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: Annotated[Sequence[TextChoice], Meta(max_length=1)] = ()


class ChunkStreamer:
    """Base of the streamers of chats and of completions. Chunks of one reply differ in their choices only, so the
    rest of them is encoded once.

    With vLLM's continuous_usage_stats each chunk has the tokens of its completion so far.
    """

    keep_alive: bytes = KEEP_ALIVE
    _compression: CompressionReply | UnsetType = UNSET
    _counted: bool = True
    """Whether usage counts the tokens of completions."""
    _empty: Callable[[int], ChatChunkChoice | TextChoice]
    """Makes a choice with an empty text."""

    def __init__(
        self,
        chunk: type[ChatChunk | CompletionChunk],
        prefix: str,
        head: ReplyHead,
        model: ModelFacts,
        request: SampledRequest,
        params: SamplingParams,
    ) -> None:
        """``prefix`` is put before the reply's id."""
        self._head = head
        self._model = model
        self._n = params.n
        self._top_logprobs = params.logprobs
        self._token_ids = request.return_token_ids
        options = request.stream_options or StreamOptions()
        self._include_usage = options.include_usage
        self._running = options.include_usage and options.continuous_usage_stats
        self._detailed = self._token_ids or self._top_logprobs is not None
        self._varied = self._detailed or self._running
        self._outputs: Counter[int] = Counter()
        self._around_text: dict[int, list[bytes]] = {}
        self._chunk = chunk(
            id=prefix + head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=model.fingerprint or UNSET,
            service_tier=head.service_tier or UNSET,
            usage=None if self._include_usage and not self._running else UNSET,
        )
        self._start, self._end = _event(self._chunk).split(NO_CHOICES)  # quotes inside of texts are escaped

    def _choice(self, choice: ChatChunkChoice | TextChoice, made: TokensMade | None = None) -> bytes:
        """A chunk with one choice; ``made`` is when and how its tokens were made."""
        running = b"" if made is None else b',"twofold":' + encode(ChunkTokens.of(made))
        if self._running:
            prompt, output = self._head.prompt_tokens[choice.index // self._n], self._outputs[choice.index]
            counts = CompletionUsage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)
            running += b',"usage":' + encode(counts)
        return b'%b"choices":[%b]%b%b' % (self._start, encode(choice), running, self._end)

    def _text_chunk(self, index: int, text: str) -> bytes:
        """A chunk with nothing but text. The rest of it is encoded once for each choice."""
        around = self._around_text.get(index)
        if around is None:
            around = self._around_text[index] = self._choice(self._empty(index)).rsplit(NO_TEXT, 1)
        return around[0] + encode(text) + around[1]

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        """The chunk without choices, with usage or extras, if either was requested; and the end of the stream."""
        if not self._include_usage and extra is UNSET:
            return DONE
        used = self._usage(outputs) if self._include_usage else UNSET
        return _event(structs.replace(self._chunk, usage=used, twofold=extra)) + DONE

    def _usage(self, outputs: Sequence[RequestOutput]) -> CompletionUsage:
        return usage(outputs, self._model, completions=self._counted, compression=self._compression)

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return _event(error_reply(error)) + DONE


class ChatStreamer(ChunkStreamer):
    """``Streamer`` of a chat, with one reader for each choice."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        request: SampledRequest,
        params: SamplingParams,
        readers: Sequence[CompletionReader],
        compression: CompressionReply | UnsetType = UNSET,
        *,
        timed: bool = False,
    ) -> None:
        """``timed``: chunks say when and how their tokens were made."""
        super().__init__(ChatChunk, "chatcmpl-", head, model, request, params)
        self._compression = compression
        self._timed = timed
        self._token_ids |= timed
        self._detailed |= timed
        self._varied |= timed
        self._readers = readers
        self._told: tuple[object, ...] = ()
        self._empty = lambda index: ChatChunkChoice(index=index, delta=ChatDelta(content=""))

    def open(self) -> bytes:
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._choice(ChatChunkChoice(index=index, delta=role)) for index in range(self._n))

    def progress(self, progress: RequestProgress) -> bytes:
        """``ShowsProgress``: a chunk without choices."""
        state = progress.ahead, progress.done
        if state == self._told:
            return b""
        self._told = state
        shown = ChunkProgress(at_ms=milliseconds(progress.at_s), progress=PromptProgress.of_request(progress))
        return _event(structs.replace(self._chunk, twofold=shown))

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a chat is one job
        """With log-probabilities or token ids each token is in a chunk, even while its text is withheld."""
        self._outputs[delta.index] += len(delta.token_ids)
        reader = self._readers[delta.index]
        pieces = reader.take(delta)
        chunks = b""
        if not self._varied and len(pieces) == 1 and isinstance(pieces[0], Content):
            chunks = self._text_chunk(delta.index, pieces[0].text)
        elif pieces or (self._detailed and delta.token_ids):
            added = list(_message_parts(self._head, delta.index, pieces)) or [ChatDelta(content="")]
            choice = ChatChunkChoice(index=delta.index, delta=added[0])
            if delta.logprobs is not None and self._top_logprobs is not None:
                tokenizer = self._model.tokenizer
                entries = chat_logprobs(delta.token_ids, delta.logprobs, tokenizer, self._top_logprobs, ids=self._timed)
                choice.logprobs = ChatLogprobs(entries)
            if self._token_ids:
                choice.token_ids = delta.token_ids
            chunks = self._choice(choice, delta.made if self._timed else None)
            chunks += b"".join(self._choice(ChatChunkChoice(index=delta.index, delta=more)) for more in added[1:])
        if delta.finish_reason is None:
            return chunks
        finish = chat_finish(delta.finish_reason, reader.calls)
        return chunks + self._choice(ChatChunkChoice(index=delta.index, delta=ChatDelta(), finish_reason=finish))


def _message_parts(head: ReplyHead, choice: int, pieces: Sequence[Piece]) -> Iterator[ChatDelta]:
    """The parts of a message that these pieces make, a chunk each. A call begins with empty arguments, as OpenAI's
    do: clients drop arguments that they find beside the name, and read one call of a chunk."""
    added = ChatDelta()
    for piece in pieces:
        match piece:
            case Content(text):
                added.content = (added.content or "") + text
                continue
            case Reasoning(text):
                added.reasoning_content = (added.reasoning_content or "") + text
                continue
            case ToolCall(number, name):
                function = FunctionDelta(name=name, arguments="")
                call = ToolCallDelta(index=number, id=call_id(head, choice, number), type="function", function=function)
            case Arguments(number, text):
                call = ToolCallDelta(index=number, function=FunctionDelta(arguments=text))
        if added != ChatDelta():
            yield added
            added = ChatDelta()
        yield ChatDelta(tool_calls=[call])
    if added != ChatDelta():
        yield added


class CompletionStreamer(ChunkStreamer):
    """``Streamer`` of completions: each prompt has ``n`` completions, numbered prompt after prompt. With ``echo`` the
    reply repeats the prompts, which are ``given``: at once, or in parts as their log-probabilities are computed, which
    are ``scored``. With ``prompt_only`` it has nothing else."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        request: SampledRequest,
        params: SamplingParams,
        given: Sequence[TextOrTokens],
        *,
        echo: bool,
        prompt_only: bool,
    ) -> None:
        super().__init__(CompletionChunk, "cmpl-", head, model, request, params)
        self._given = given
        self._echo = echo
        self._prompt_only = prompt_only
        self._counted = not prompt_only
        self._scored: Counter[int] = Counter()
        self._prompt_offsets: dict[int, TokenOffsets] = {}
        self._skips = params.skip_special_tokens
        self._offsets: dict[int, TokenOffsets] = {}
        self._empty = lambda index: TextChoice(index=index, text="")

    def open(self) -> bytes:
        if not self._echo or self._top_logprobs is not None:
            return b""
        texts = (prompt_text(given, self._model.tokenizer) for given in self._given)
        return b"".join(self._repeated(job, text) for job, text in enumerate(texts))

    def take(self, job: int, delta: OutputDelta) -> bytes:
        echo = b"" if delta.scored is None else self._scored_prompt(job, delta.scored)
        if self._prompt_only:
            delta = replace(delta, text="", token_ids=(), logprobs=None)
        return echo + self._completion(job * self._n + delta.index, delta)

    def _repeated(self, job: int, text: str, logprobs: TextLogprobs | None = None) -> bytes:
        """A part of a prompt, for each of its completions."""
        data: Any = None if logprobs is None else Raw(encode(logprobs))  # encoded once: it may be long
        indices = range(job * self._n, (job + 1) * self._n)
        return b"".join(self._choice(TextChoice(index=index, text=text, logprobs=data)) for index in indices)

    def _scored_prompt(self, job: int, scored: ScoredPrompt) -> bytes:
        """The part of the prompt that was not sent before; the first one has the text of all."""
        tokenizer, ids, done = self._model.tokenizer, self._head.prompts[job], self._scored[job]
        end = scored.start + len(scored.logprobs)
        if end <= done:
            return b""
        self._scored[job] = end
        text = prompt_text(self._given[job], tokenizer)
        if not done:
            self._prompt_offsets[job] = TokenOffsets.of_prompt(ids, text, tokenizer)
        offsets = self._prompt_offsets[job].take(ids[done:end])
        positions = prompt_positions(ids[done:end], scored.logprobs[done - scored.start :], tokenizer)
        return self._repeated(job, "" if done else text, text_logprobs(positions, offsets))

    def _completion(self, index: int, delta: OutputDelta) -> bytes:
        if not self._varied and delta.finish_reason is None:
            return self._text_chunk(index, delta.text) if delta.text else b""
        self._outputs[index] += len(delta.token_ids)
        if not (delta.text or delta.finish_reason or (self._detailed and delta.token_ids)):
            return b""
        return self._choice(
            TextChoice(
                index=index,
                text=delta.text,
                logprobs=None if delta.logprobs is None else self._text_logprobs(index, delta),
                finish_reason=chat_finish(delta.finish_reason),
                token_ids=delta.token_ids if self._token_ids else UNSET,
            )
        )

    def _text_logprobs(self, index: int, delta: OutputDelta) -> TextLogprobs:
        counted = self._offsets.get(index)
        if counted is None:
            tokenizer = self._model.tokenizer
            prompt = prompt_text(self._given[index // self._n], tokenizer)
            counted = self._offsets[index] = TokenOffsets(tokenizer, len(prompt), skip_special_tokens=self._skips)
        return text_logprobs(sampled_positions(delta.token_ids, delta.logprobs), counted.take(delta.token_ids))


def _event(data: ReplyObject) -> bytes:
    return b"data: %b\n\n" % encode(data)
