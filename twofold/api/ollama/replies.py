"""Ollama's replies: completions and vectors, with token counts and times; and its errors.

A streamed reply is one JSON object per line; the last one has ``done`` true, and counts and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import DateTime, Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.completion import CompletionReader, ParsedCall
from twofold.api.openai.errors import ErrorMessage, error_message
from twofold.api.openai.logprobs import ChatTokenLogprob, chat_logprobs
from twofold.api.openai.replies import chat_finish
from twofold.core.errors import ContextLengthError, TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Content, Reasoning, SectionParser

NANOSECONDS: Final = 1_000_000_000
TOO_LONG: Final = "prompt too long; exceeded max context length"
"""Ollama's words for a prompt that does not fit."""


class OllamaError(ReplyObject):
    """The reply to a request that failed, or the last line of a stream that did."""

    error: ErrorMessage


class OllamaDialect:
    """``Dialect`` of Ollama's clients. Its documentation sends JSON with curl's default type, that of a form."""

    name: Literal["ollama"] = "ollama"
    stream_type = "application/x-ndjson"
    any_type = True

    def status(self, error: TwofoldError) -> int:
        return error.status

    def error(self, error: TwofoldError, request_id: str) -> OllamaError:  # noqa: ARG002 - it is in a header
        said = error_message(error, "prompt")
        if isinstance(error, ContextLengthError) and error.tokens:
            whole = "the input length exceeds the context length" if error.text == "input" else TOO_LONG
            said = f"{whole}: {said}"
        return OllamaError(said)


class OllamaPart(ReplyObject, kw_only=True):
    """The fields of every object of a reply. Counts, and times in nanoseconds, are only in the last object."""

    model: str
    created_at: DateTime
    done: bool = False
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: NonNegativeInt | UnsetType = UNSET
    load_duration: NonNegativeInt | UnsetType = UNSET
    prompt_eval_count: NonNegativeInt | UnsetType = UNSET
    prompt_eval_duration: NonNegativeInt | UnsetType = UNSET
    eval_count: NonNegativeInt | UnsetType = UNSET
    eval_duration: NonNegativeInt | UnsetType = UNSET
    logprobs: list[ChatTokenLogprob] | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class OllamaFunctionReply(ReplyObject):
    """A function with its arguments; ``index`` counts the calls of a reply."""

    index: NonNegativeInt
    name: str
    arguments: dict[str, Any]


class OllamaCallReply(ReplyObject):
    """A call of a tool."""

    id: str
    function: OllamaFunctionReply


class OllamaReplyMessage(ReplyObject, kw_only=True):
    """The assistant's message, or a part of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: Annotated[Sequence[OllamaCallReply], Meta(min_length=1)] | UnsetType = UNSET


class OllamaChatReply(OllamaPart, kw_only=True):
    """The reply to /api/chat, or a line of it."""

    message: OllamaReplyMessage

    @classmethod
    def part(
        cls, head: ReplyHead, content: str = "", thinking: str = "", calls: Sequence[OllamaCallReply] = ()
    ) -> Self:
        """A part of the reply."""
        message = OllamaReplyMessage(content=content, thinking=thinking or UNSET, tool_calls=calls or UNSET)
        return cls(model=head.model, created_at=_created(head), message=message)


class OllamaGenerateReply(OllamaPart, kw_only=True):
    """The reply to /api/generate, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET

    @classmethod
    def part(
        cls, head: ReplyHead, content: str = "", thinking: str = "", calls: Sequence[OllamaCallReply] = ()
    ) -> Self:
        """A part of the reply; there are no tools to call."""
        assert not calls, "there are no tools to call"
        return cls(model=head.model, created_at=_created(head), response=content, thinking=thinking or UNSET)


class OllamaEmbedReply(ReplyObject, kw_only=True):
    """The vectors of all texts."""

    model: str
    embeddings: list[Sequence[float]]
    total_duration: NonNegativeInt
    load_duration: NonNegativeInt
    prompt_eval_count: NonNegativeInt
    twofold: Explanation | UnsetType = UNSET


class OllamaEmbeddingReply(ReplyObject):
    """The vector of one text."""

    embedding: Sequence[float]
    twofold: Explanation | UnsetType = UNSET


def date_time(moment: datetime) -> str:
    """A moment in UTC as Ollama writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def _created(head: ReplyHead) -> str:
    return date_time(datetime.fromtimestamp(head.created, UTC))


def last_part(part: OllamaPart, head: ReplyHead, output: RequestOutput | None, *, unloads: bool = False) -> OllamaPart:
    """The last part: why the completion ended, and counts and times; without an output the request only loaded the
    model, or unloaded it."""
    if output is None:
        return structs.replace(part, done=True, done_reason="unload" if unloads else "load")
    reason = chat_finish(output.outputs[0].finish_reason)
    return structs.replace(part, done=True, done_reason=reason, **counts_and_times(head, [output]))


def counts_and_times(head: ReplyHead, outputs: Sequence[RequestOutput]) -> dict[str, int]:
    """Token counts, and times in nanoseconds: load_duration is the time before the engine had the request (loading and
    tokenising); total_duration includes the time in the engine's queue."""
    took = max((output.metrics.finished - output.metrics.arrival for output in outputs), default=0.0)
    return {
        "total_duration": _nanoseconds(head.waited_s + took),
        "load_duration": _nanoseconds(head.waited_s),
        "prompt_eval_count": sum(len(output.prompt_token_ids) for output in outputs),
        "prompt_eval_duration": _nanoseconds(sum(output.metrics.prefill_s for output in outputs)),
        "eval_count": sum(output.metrics.output_tokens for output in outputs),
        "eval_duration": _nanoseconds(sum(output.metrics.decode_s for output in outputs)),
    }


def tool_calls(head: ReplyHead, calls: Sequence[ParsedCall]) -> list[OllamaCallReply]:
    """The calls of a completion, with arguments as objects; a call whose arguments are incomplete is omitted."""
    found = []
    for index, call in enumerate(calls):
        arguments = call.parsed_arguments()
        if arguments is not None:
            found.append(OllamaCallReply(f"call_{head.id}_{index}", OllamaFunctionReply(index, call.name, arguments)))
    return found


def _nanoseconds(seconds: float) -> int:
    return round(max(0.0, seconds) * NANOSECONDS)


OllamaReplyType: TypeAlias = type[OllamaChatReply] | type[OllamaGenerateReply]


class LineStreamer:
    """``Streamer`` of a chat or of a generated text. ``top_logprobs`` is None without log-probabilities; ``unloads``:
    the model is unloaded afterwards."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        reply: OllamaReplyType,
        *,
        top_logprobs: int | None,
        unloads: bool,
    ) -> None:
        self._head = head
        self._model = model
        self._reader = CompletionReader(parser)
        self._reply = reply
        self._top_logprobs = top_logprobs
        self._unloads = unloads
        self._empty = reply.part(head)
        self.keep_alive = _line(self._empty)

    def open(self) -> bytes:
        return b""

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a completion is one job
        pieces = self._reader.take(delta)
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        thinking = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
        calls = tool_calls(self._head, self._reader.calls) if delta.finish_reason is not None else []
        part = self._reply.part(self._head, content, thinking, calls)
        if self._top_logprobs is not None and delta.logprobs is not None and delta.token_ids:
            tokenizer = self._model.tokenizer
            part.logprobs = chat_logprobs(delta.token_ids, delta.logprobs, tokenizer, self._top_logprobs)
        return _line(part) if content or thinking or calls or part.logprobs else b""

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        end = last_part(self._empty, self._head, outputs[0] if outputs else None, unloads=self._unloads)
        end.twofold = extra
        return _line(end)

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return _line(OllamaDialect().error(error, request_id))


def _line(data: ReplyObject) -> bytes:
    return encode(data) + b"\n"
