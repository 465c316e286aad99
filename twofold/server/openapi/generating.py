"""Operations whose replies a model generates, and those about prompts and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from twofold.api.anthropic.messages import CountTokensRequest, MessagesRequest
from twofold.api.anthropic.replies import MessageReply, MessageTokens
from twofold.api.anthropic.stream import MessageEvent
from twofold.api.body import Schema
from twofold.api.ollama.replies import OllamaChatReply, OllamaEmbeddingReply, OllamaEmbedReply, OllamaGenerateReply
from twofold.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
)
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.compress import CompressReply, CompressRequest
from twofold.api.openai.replies import ChatReply, CompletionReply
from twofold.api.openai.responses.reply import InputTokensReply, ResponseEvent, ResponseReply
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.api.openai.streams import ChatChunk, CompletionChunk
from twofold.api.openai.vectors import (
    EmbeddingReply,
    EmbeddingRequest,
    RerankReply,
    RerankRequest,
    ScoreReply,
    ScoreRequest,
)
from twofold.server.http.estimate import EstimateReply
from twofold.server.http.models import OllamaModel, OllamaShowRequest
from twofold.server.http.tokens import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeChat,
    TokenizeReply,
    TokenizerInfo,
    TokenizeText,
)
from twofold.server.openapi import rules
from twofold.server.openapi.operation import (
    ApiOperation,
    OperationLink,
    RequestBody,
    RequestRule,
    in_header,
    in_query,
)
from twofold.server.response_cache import CACHE_HEADER

RECORD: Final = OperationLink("record", "getRequest", {"request_id": "$response.header.x-request-id"})
VERSION: Final = in_header("anthropic-version", str, "Sent by Anthropic's clients; any value is accepted.")
BETA: Final = in_query("beta", str, "Sent by Anthropic's clients; it has no effect.")
CACHE_USE: Final = in_header(
    CACHE_HEADER,
    Literal["keep", "skip"],
    "keep: cache the reply although it is sampled. skip: do not use cached replies.",
)
LOADING: Final = (404, 422, 502)
"""Statuses of operations that need a model's tokenizer."""
GENERATING: Final = (404, 422, 429, 502, 504)
"""Statuses of operations whose replies a model generates."""
HELLO: Final = [{"role": "user", "content": "Hi"}]
TOOL: Final[dict[str, Any]] = {
    "name": "weather",
    "description": "Returns the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SYSTEM: Final = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}


COMPARED: Final = RequestRule("Models to compare prices with have a known price.", "twofold.compare_prices")


def generating_operations(models: Sequence[str]) -> list[ApiOperation]:
    """All operations of this module; their examples name the first of these ``models``."""
    model = {"model": models[0]}
    return [
        *_openai(model),
        *_comparing(model),
        _compressing(model),
        _estimating(model),
        *_responses(model),
        *_anthropic(model),
        *_ollama(model),
        *_tokens(model),
    ]


def _post(
    path: str,
    id: str,
    summary: str,
    body: RequestBody,
    reply: Any,
    rules: tuple[RequestRule, ...],
    failures: tuple[int, ...] = LOADING,
    **more: Any,
) -> ApiOperation:
    """An operation with a body and without a generated reply."""
    return ApiOperation("POST", path, id, summary, reply, body=body, rules=rules, failures=failures, **more)


def _generates(
    path: str,
    id: str,
    summary: str,
    body: RequestBody,
    reply: Any,
    rules: tuple[RequestRule, ...],
    events: Any = None,
    parameters: tuple[Schema, ...] = (),
    links: tuple[OperationLink, ...] = (),
) -> ApiOperation:
    """An operation whose reply a model generates."""
    more = {"events": events, "parameters": (*parameters, CACHE_USE), "links": (*links, RECORD)}
    return _post(path, id, summary, body, reply, (*rules, COMPARED), GENERATING, **more)


def _openai(model: dict[str, str]) -> list[ApiOperation]:
    chat = {**model, "messages": HELLO}
    tools = [{"type": "function", "function": TOOL}]
    chats = {
        "plain": {**chat, "max_tokens": 4},
        "streamed": {**chat, "max_tokens": 4, "stream": True},
        "tools": {**chat, "max_completion_tokens": 4, "tools": tools},
        "explained": {**chat, "max_tokens": 2, "logprobs": True, "twofold": {"explain": True}},
        "timed": {**chat, "max_tokens": 4, "stream": True, "twofold": {"tokens": True, "compare_prices": ["gpt-5"]}},
    }
    texts = {"plain": {**model, "prompt": "Once", "max_tokens": 4}}
    vectors = {"plain": {**model, "input": ["Hi", "there"]}}
    return [
        _generates(
            "/v1/chat/completions",
            "createChatCompletion",
            "Completes a chat.",
            RequestBody(ChatRequest, chats),
            ChatReply,
            rules.CHAT,
            ChatChunk,
        ),
        _generates(
            "/v1/completions",
            "createCompletion",
            "Completes texts.",
            RequestBody(CompletionRequest, texts),
            CompletionReply,
            rules.COMPLETION,
            CompletionChunk,
        ),
        _generates(
            "/v1/embeddings",
            "createEmbeddings",
            "Returns vectors of texts.",
            RequestBody(EmbeddingRequest, vectors),
            EmbeddingReply,
            rules.EMBEDDING,
        ),
    ]


def _estimating(model: dict[str, str]) -> ApiOperation:
    return _post(
        "/v1/twofold/estimate",
        "estimate",
        "Predicts what a chat would take and cost if it were sent now. It loads no model.",
        RequestBody(ChatRequest, {"plain": {**model, "messages": HELLO, "twofold": {"compare_prices": ["gpt-5"]}}}),
        EstimateReply,
        (*rules.CHAT, COMPARED, RequestRule("compress is absent.", "compress", rules.UNSUPPORTED)),
        (403, *LOADING),
    )


def _comparing(model: dict[str, str]) -> list[ApiOperation]:
    """Operations that compare texts; each has two paths, as in vLLM."""
    texts = {"query": "What is red?", "documents": ["Blood", "Grass"]}
    rerank = RequestBody(RerankRequest, {"plain": {**model, **texts}})
    score = RequestBody(ScoreRequest, {"plain": {**model, "text_1": "red", "text_2": ["blood", "grass"]}})
    kinds: tuple[tuple[str, str, Any, RequestBody, tuple[RequestRule, ...]], ...] = (
        ("rerank", "Sorts documents by the cosine to a query.", RerankReply, rerank, rules.RERANK),
        ("score", "Scores pairs of texts by their cosine.", ScoreReply, score, rules.SCORE),
    )
    return [
        _generates(f"{prefix}/{name}", f"{name}{number or ''}", summary, body, reply, rule)
        for name, summary, reply, body, rule in kinds
        for number, prefix in enumerate(("/v1", ""))
    ]


def _compressing(model: dict[str, str]) -> ApiOperation:
    text = {"text": "The first sentence. The second one. And a third."}
    return _generates(
        "/v1/compress",
        "compress",
        "Returns a text without the sentences that surprise the model least, or of which a question says least; "
        "unchanged if that takes longer than it saves.",
        RequestBody(CompressRequest, {"plain": {**model, **text}, "forced": {**model, **text, "force": True}}),
        CompressReply,
        rules.COMPRESS,
    )


def _responses(model: dict[str, str]) -> list[ApiOperation]:
    short = {**model, "input": "Hi", "max_output_tokens": 4}
    of_response = {"response_id": "$response.body#/id"}
    follow = {**model, "previous_response_id": "$response.body#/id", "input": "Go on", "max_output_tokens": 2}
    return [
        _generates(
            "/v1/responses",
            "createResponse",
            "Completes a turn of a conversation, and stores it unless store is false.",
            RequestBody(ResponsesRequest, {"plain": short, "streamed": {**short, "stream": True}}),
            ResponseReply,
            rules.RESPONSE,
            ResponseEvent,
            links=(
                OperationLink("get", "getResponse", of_response),
                OperationLink("delete", "deleteResponse", of_response),
                OperationLink("cancel", "cancelResponse", of_response),
                OperationLink("items", "listResponseItems", of_response),
                OperationLink("next", "createResponse", body=follow),
            ),
        ),
        _post(
            "/v1/responses/input_tokens",
            "countResponseTokens",
            "Counts the tokens of a prompt.",
            RequestBody(InputTokensRequest, {"plain": {**model, "input": "Hi"}}),
            InputTokensReply,
            rules.TURN,
        ),
    ]


def _anthropic(model: dict[str, str]) -> list[ApiOperation]:
    prompt = {**model, "messages": HELLO}
    short = {**prompt, "max_tokens": 4}
    messages = {"plain": short, "streamed": {**short, "stream": True}, "cached": {**short, "system": [SYSTEM]}}
    return [
        _generates(
            "/v1/messages",
            "createMessage",
            "Completes a conversation.",
            RequestBody(MessagesRequest, messages),
            MessageReply,
            rules.MESSAGES,
            MessageEvent,
            (VERSION, BETA),
        ),
        _post(
            "/v1/messages/count_tokens",
            "countMessageTokens",
            "Counts the tokens of a prompt.",
            RequestBody(CountTokensRequest, {"plain": prompt}),
            MessageTokens,
            rules.MESSAGES,
            parameters=(VERSION, BETA),
        ),
    ]


def _ollama(model: dict[str, str]) -> list[ApiOperation]:
    few: dict[str, Any] = {"options": {"num_predict": 4}}
    chats = {
        "plain": {**model, "messages": HELLO, "stream": False, **few},
        "streamed": {**model, "messages": HELLO, **few},
        "load": {**model, "stream": False},
    }
    texts = {
        "plain": {**model, "prompt": "Hi", "stream": False, **few},
        "raw": {**model, "prompt": "Once", "raw": True, **few},
    }
    return [
        _generates(
            "/api/chat",
            "ollamaChat",
            "Completes a chat; without messages it loads the model.",
            RequestBody(OllamaChatRequest, chats),
            OllamaChatReply,
            (*rules.OLLAMA, rules.TEMPLATE),
            OllamaChatReply,
        ),
        _generates(
            "/api/generate",
            "ollamaGenerate",
            "Completes a prompt, or fills in the text before a suffix; without either it loads the model.",
            RequestBody(OllamaGenerateRequest, texts),
            OllamaGenerateReply,
            rules.OLLAMA_TEXT,
            OllamaGenerateReply,
        ),
        _generates(
            "/api/embed",
            "ollamaEmbed",
            "Returns vectors of texts.",
            RequestBody(OllamaEmbedRequest, {"plain": {**model, "input": ["Hi", "there"]}}),
            OllamaEmbedReply,
            rules.OLLAMA_EMBEDDING,
        ),
        _generates(
            "/api/embeddings",
            "ollamaEmbedOne",
            "Returns a vector of one text; /api/embed replaces it.",
            RequestBody(OllamaEmbeddingRequest, {"plain": {**model, "prompt": "Hi"}}),
            OllamaEmbeddingReply,
            rules.OLLAMA_EMBEDDING,
        ),
        _post(
            "/api/show",
            "ollamaShow",
            "Describes a model.",
            RequestBody(OllamaShowRequest, {"plain": model}),
            OllamaModel,
            (RequestRule("model is required.", "model", rules.MISSING),),
            (404,),
        ),
    ]


def _tokens(model: dict[str, str]) -> list[ApiOperation]:
    prompts = {
        "text": {**model, "prompt": "Hi"},
        "chat": {**model, "messages": HELLO, "return_token_strs": True},
    }
    back = OperationLink("back", "detokenize", body={**model, "tokens": "$response.body#/tokens"})
    return [
        _post(
            "/tokenize",
            "tokenize",
            "Returns the tokens of a text, or of a chat rendered by the chat template.",
            RequestBody(TokenizeText | TokenizeChat, prompts),
            TokenizeReply,
            rules.CHAT,
            links=(back,),
        ),
        _post(
            "/detokenize",
            "detokenize",
            "Returns the text of tokens.",
            RequestBody(DetokenizeRequest, {"plain": {**model, "tokens": [1, 2]}}),
            DetokenizeReply,
            rules.DETOKENIZE,
        ),
        ApiOperation(
            "GET",
            "/tokenizer_info",
            "getTokenizer",
            "Returns the first model's special tokens and its chat template.",
            TokenizerInfo,
            failures=LOADING,
        ),
    ]
