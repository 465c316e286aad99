"""OpenAI's replies to chats, completions and embeddings, made of the engine's outputs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from struct import pack
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.answers import AnswerReader, CacheUsage, read_answer, reasoning_tokens
from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject
from twofold.api.openai.logprobs import (
    ChatLogprobs,
    Echo,
    TextLogprobs,
    answer_positions,
    chat_logprobs,
    text_logprobs,
)
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, RequestOutput
from twofold.text.parsers.base import SectionParser


class PromptDetails(ReplyObject, kw_only=True):
    """Prompt tokens that were read from the cache, and those that were written to it for longer."""

    cached_tokens: NonNegativeInt
    cache_write_tokens: NonNegativeInt | UnsetType = UNSET


class OutputDetails(ReplyObject):
    """Output tokens of thinking sections."""

    reasoning_tokens: NonNegativeInt


class PromptUsage(ReplyObject):
    """Tokens of texts that are only read."""

    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class CompletionUsage(ReplyObject, kw_only=True):
    """Tokens of a chat or of completions; running counts of a stream have no details."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: NonNegativeInt
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: OutputDetails | UnsetType = UNSET


class ResponseUsage(ReplyObject, kw_only=True):
    """Tokens of a response or of a batch."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptDetails
    output_tokens: NonNegativeInt
    output_tokens_details: OutputDetails
    total_tokens: NonNegativeInt


def usage(outputs: Sequence[RequestOutput], model: ModelFacts, *, answers: bool = True) -> CompletionUsage:
    """Tokens of all prompts, cached ones included, and of all completions, those included that best_of dropped."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(output.metrics.output_tokens for output in outputs) if answers else 0
    cache = CacheUsage.of(outputs)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=cache.read, cache_write_tokens=cache.written),
        completion_tokens_details=OutputDetails(reasoning_tokens(outputs, model)),
    )


def prompt_usage(outputs: Sequence[RequestOutput]) -> PromptUsage:
    """Tokens of texts that were only read."""
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return PromptUsage(tokens, tokens)


FinishWord: TypeAlias = Literal["stop", "length", "tool_calls"]
ReplyTokenIds: TypeAlias = Sequence[NonNegativeInt]


class CalledFunctionReply(ReplyObject):
    """A function with the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallReply(ReplyObject, kw_only=True):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionReply


class ChatReplyMessage(ReplyObject, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Annotated[list[ToolCallReply], Meta(min_length=1)] | UnsetType = UNSET


class ChatChoice(ReplyObject, kw_only=True):
    """A completion of a chat."""

    index: NonNegativeInt
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None
    token_ids: ReplyTokenIds | UnsetType = UNSET


class SampledReply(ReplyObject, kw_only=True):
    """The reply to a chat or to prompts."""

    id: str
    object: str
    created: NonNegativeInt
    model: str
    choices: list[Any]
    usage: CompletionUsage
    service_tier: TierName | UnsetType = UNSET
    prompt_token_ids: ReplyTokenIds | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class ChatReply(SampledReply, kw_only=True):
    """The reply to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]


class TextChoice(ReplyObject, kw_only=True):
    """A completion of a text, or in a stream a part of one, which has a finish reason at its end."""

    index: NonNegativeInt
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishWord | None = None
    prompt_token_ids: ReplyTokenIds | UnsetType = UNSET
    token_ids: ReplyTokenIds | UnsetType = UNSET


class CompletionReply(SampledReply, kw_only=True):
    """The reply to prompts: completions of the first one, of the second one, and so on."""

    object: Literal["text_completion"] = "text_completion"
    choices: Annotated[list[TextChoice], Meta(min_length=1)]


class EmbeddingVector(ReplyObject, kw_only=True):
    """The vector of a text: numbers, or in base64 the bytes of little-endian 32-bit floats."""

    object: Literal["embedding"] = "embedding"
    index: NonNegativeInt
    embedding: Sequence[float] | str


class EmbeddingReply(ReplyObject, kw_only=True):
    """The vectors of all texts."""

    object: Literal["list"] = "list"
    data: Annotated[list[EmbeddingVector], Meta(min_length=1)]
    model: str
    usage: PromptUsage
    twofold: Explanation | UnsetType = UNSET


def chat_reply(
    head: ReplyHead,
    output: RequestOutput,
    model: ModelFacts,
    parser: Callable[[], SectionParser],
    *,
    top_logprobs: int = 0,
    token_ids: bool = False,
) -> ChatReply:
    """The reply to a chat; each completion is divided by a ``parser`` of its own.

    ``top_logprobs`` is the requested number of most likely tokens; ``token_ids`` adds the token ids of prompt and
    completions, under vLLM's names.
    """
    return ChatReply(
        id=f"chatcmpl-{head.id}",
        created=head.created,
        model=head.model,
        choices=[_chat_choice(head, answer, model, parser(), top_logprobs, token_ids) for answer in output.outputs],
        usage=usage([output], model),
        service_tier=head.service_tier or UNSET,
        prompt_token_ids=output.prompt_token_ids if token_ids else UNSET,
    )


def completion_reply(
    head: ReplyHead,
    outputs: Sequence[RequestOutput],
    model: ModelFacts,
    *,
    echo: bool = False,
    prompt_only: bool = False,
    token_ids: bool = False,
) -> CompletionReply:
    """The reply to prompts.

    ``echo`` puts the prompt before each completion, ``prompt_only`` drops the completions, ``token_ids`` adds the token
    ids of prompt and completions, under vLLM's names.
    """
    choices: list[TextChoice] = []
    for output in outputs:
        before = Echo.of(output, model.tokenizer) if echo else Echo("", [])
        for answer in output.outputs:
            positions = [] if prompt_only else answer_positions(answer.token_ids, answer.logprobs)
            choice = TextChoice(
                index=len(choices),
                text=before.text + ("" if prompt_only else answer.text),
                logprobs=None if answer.logprobs is None else text_logprobs([*before.tokens, *positions]),
                finish_reason=chat_finish(answer.finish_reason),
            )
            if token_ids:
                choice.prompt_token_ids = output.prompt_token_ids
                choice.token_ids = () if prompt_only else answer.token_ids
            choices.append(choice)
    return CompletionReply(
        id=f"cmpl-{head.id}",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage(outputs, model, answers=not prompt_only),
        service_tier=head.service_tier or UNSET,
    )


def embedding_reply(head: ReplyHead, outputs: Sequence[RequestOutput], *, base64: bool = False) -> EmbeddingReply:
    """The vectors of all texts, as numbers or in ``base64``."""
    vectors: list[EmbeddingVector] = []
    for output in outputs:
        assert output.embedding is not None, "a text that was read has a vector"
        vector = _packed(output.embedding) if base64 else output.embedding
        vectors.append(EmbeddingVector(index=len(vectors), embedding=vector))
    return EmbeddingReply(data=vectors, model=head.model, usage=prompt_usage(outputs))


def chat_finish(finish: FinishReason | None) -> FinishWord | None:
    """Why a completion ended, in OpenAI's words, which have none for a deadline."""
    match finish:
        case "deadline":
            return "length"
        case "abort":
            return "stop"
    return finish


def call_id(head: ReplyHead, answer: int, call: int) -> str:
    """The id of a call: the same whether the reply is streamed or not."""
    return f"call_{head.id}_{answer}_{call}"


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _chat_choice(
    head: ReplyHead,
    answer: CompletionOutput,
    model: ModelFacts,
    parser: SectionParser,
    top_logprobs: int,
    token_ids: bool,
) -> ChatChoice:
    reader = read_answer(parser, answer.text)
    message = ChatReplyMessage(content=reader.content, reasoning_content=reader.reasoning or UNSET)
    if reader.calls:
        message.content = reader.content or None
        message.tool_calls = _tool_calls(head, answer.index, reader)
    logprobs = None
    if answer.logprobs is not None:
        logprobs = ChatLogprobs(chat_logprobs(answer.token_ids, answer.logprobs, model.tokenizer, top_logprobs))
    return ChatChoice(
        index=answer.index,
        message=message,
        logprobs=logprobs,
        finish_reason="tool_calls" if reader.called(answer.finish_reason) else chat_finish(answer.finish_reason),
        token_ids=answer.token_ids if token_ids else UNSET,
    )


def _tool_calls(head: ReplyHead, answer: int, reader: AnswerReader) -> list[ToolCallReply]:
    return [
        ToolCallReply(id=call_id(head, answer, number), function=CalledFunctionReply(call.name, call.arguments))
        for number, call in enumerate(reader.calls)
    ]
