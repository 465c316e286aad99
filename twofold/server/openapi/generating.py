"""Operations that a model answers, and those about its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twofold.api.anthropic.messages import CountTokensRequest, MessagesRequest
from twofold.api.body import RequestObject, schemas
from twofold.api.ollama.chat import OllamaChatRequest
from twofold.api.ollama.embed import OllamaEmbeddingRequest, OllamaEmbedRequest
from twofold.api.ollama.generate import OllamaGenerateRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.embeddings import EmbeddingRequest
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.api.openai.scores import RerankRequest, ScoreRequest
from twofold.server.batches.body import BatchOrder
from twofold.server.http.endpoints import CACHE_WORDS
from twofold.server.http.ollama import OllamaShowRequest
from twofold.server.http.tokens import DetokenizeRequest, TokenizeChat, TokenizeText
from twofold.server.openapi import events, ollama, rules
from twofold.server.openapi.events import streamed
from twofold.server.openapi.failures import GENERATING
from twofold.server.openapi.operation import ApiOperation, Body, OperationLink, replied
from twofold.server.openapi.shapes import either, ref, text, word
from twofold.server.openapi.stored_requests import in_header, in_query
from twofold.server.response_cache.cache import CACHE_HEADER

RECORD: Final = OperationLink("record", "getRequest", {"request_id": "$response.header.x-request-id"})
VERSION: Final = in_header("anthropic-version", text(), "Anthropic's clients send it; any will do.")
BETA: Final = in_query("beta", text(), "Anthropic's clients send it; it changes nothing.")
REPLAY: Final = in_header(
    CACHE_HEADER,
    word(*CACHE_WORDS),
    "Whether a kept answer may be told: keep one although it is sampled, or skip them.",
)
LOADING: Final = (404, 422, 502)
"""Of what needs a model's tokenizer."""
TOOL: Final[dict[str, Any]] = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def operations(models: Sequence[str]) -> list[ApiOperation]:
    """All of them; examples ask for the first of these ``models``."""
    model = {"model": models[0]}
    for_ollama = ollama.operations(model, (REPLAY,), (RECORD,))
    return [*_openai(model), *_comparing(model), *_responses(model), *_anthropic(model), *for_ollama, *_tokens(model)]


def _openai(model: dict[str, str]) -> list[ApiOperation]:
    hello = [{"role": "user", "content": "Hi"}]
    chats = {
        "plain": {**model, "messages": hello, "max_tokens": 4},
        "streamed": {**model, "messages": hello, "max_tokens": 4, "stream": True},
        "tools": {
            **model,
            "messages": hello,
            "max_completion_tokens": 4,
            "tools": [{"type": "function", "function": TOOL}],
        },
        "explained": {**model, "messages": hello, "max_tokens": 2, "logprobs": True, "twofold": {"explain": True}},
    }
    return [
        ApiOperation(
            "POST",
            "/v1/chat/completions",
            "createChatCompletion",
            "OpenAI",
            "Answers a chat.",
            streamed("ChatCompletion", events.CHAT),
            GENERATING,
            Body(ref("ChatRequest"), chats),
            (REPLAY,),
            rules=rules.CHAT,
            links=(RECORD,),
        ),
        ApiOperation(
            "POST",
            "/v1/completions",
            "createCompletion",
            "OpenAI",
            "Goes on with texts.",
            streamed("Completion", events.TEXT),
            GENERATING,
            Body(ref("CompletionRequest"), {"plain": {**model, "prompt": "Once", "max_tokens": 4}}),
            (REPLAY,),
            rules=rules.COMPLETION,
            links=(RECORD,),
        ),
        ApiOperation(
            "POST",
            "/v1/embeddings",
            "createEmbeddings",
            "OpenAI",
            "Makes vectors of texts.",
            replied("Embeddings"),
            GENERATING,
            Body(ref("EmbeddingRequest"), {"plain": {**model, "input": ["Hi", "there"]}}),
            (REPLAY,),
            rules=rules.EMBEDDING,
            links=(RECORD,),
        ),
    ]


def _comparing(model: dict[str, str]) -> list[ApiOperation]:
    """Each under two paths, as vLLM has them."""
    texts = {"query": "What is red?", "documents": ["Blood", "Grass"]}
    rerank = Body(ref("RerankRequest"), {"plain": {**model, **texts}})
    score = Body(ref("ScoreRequest"), {"plain": {**model, "text_1": "red", "text_2": ["blood", "grass"]}})
    kinds = (
        ("rerank", "Orders documents by the cosine to a query.", "Reranked", rerank, rules.RERANK),
        ("score", "Scores pairs of texts by their cosine.", "Scores", score, rules.SCORE),
    )
    return [
        ApiOperation(
            "POST",
            f"{prefix}/{name}",
            f"{name}{number or ''}",
            "Scores",
            says,
            replied(reply),
            GENERATING,
            body,
            (REPLAY,),
            rules=rule,
            links=(RECORD,),
        )
        for name, says, reply, body, rule in kinds
        for number, prefix in enumerate(("/v1", ""))
    ]


def _responses(model: dict[str, str]) -> list[ApiOperation]:
    of_response = {"response_id": "$response.body#/id"}
    follow = {**model, "previous_response_id": "$response.body#/id", "input": "Go on", "max_output_tokens": 2}
    return [
        ApiOperation(
            "POST",
            "/v1/responses",
            "createResponse",
            "Responses",
            "Answers a turn of a conversation, and keeps it unless store is false.",
            streamed("Response", events.RESPONSE),
            GENERATING,
            Body(
                ref("ResponsesRequest"),
                {
                    "plain": {**model, "input": "Hi", "max_output_tokens": 4},
                    "streamed": {**model, "input": "Hi", "max_output_tokens": 4, "stream": True},
                },
            ),
            parameters=(REPLAY,),
            rules=rules.RESPONSE,
            links=(
                OperationLink("get", "getResponse", of_response),
                OperationLink("delete", "deleteResponse", of_response),
                OperationLink("cancel", "cancelResponse", of_response),
                OperationLink("items", "listResponseItems", of_response),
                OperationLink("next", "createResponse", body=follow),
                RECORD,
            ),
        ),
        ApiOperation(
            "POST",
            "/v1/responses/input_tokens",
            "countResponseTokens",
            "Responses",
            "Counts the tokens of a prompt.",
            replied("ResponseTokens"),
            LOADING,
            Body(ref("InputTokensRequest"), {"plain": {**model, "input": "Hi"}}),
            rules=rules.TURN,
        ),
    ]


def _anthropic(model: dict[str, str]) -> list[ApiOperation]:
    asked = {**model, "messages": [{"role": "user", "content": "Hi"}]}
    kept = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    return [
        ApiOperation(
            "POST",
            "/v1/messages",
            "createMessage",
            "Anthropic",
            "Answers a conversation.",
            streamed("Message", events.MESSAGE),
            GENERATING,
            Body(
                ref("MessagesRequest"),
                {
                    "plain": {**asked, "max_tokens": 4},
                    "streamed": {**asked, "max_tokens": 4, "stream": True},
                    "cached": {**asked, "max_tokens": 4, "system": [kept]},
                },
            ),
            (VERSION, BETA, REPLAY),
            rules.MESSAGES,
            (RECORD,),
        ),
        ApiOperation(
            "POST",
            "/v1/messages/count_tokens",
            "countMessageTokens",
            "Anthropic",
            "Counts the tokens of a prompt.",
            replied("MessageTokens"),
            LOADING,
            Body(ref("CountTokensRequest"), {"plain": asked}),
            (VERSION, BETA),
            rules.MESSAGES,
        ),
    ]


def _tokens(model: dict[str, str]) -> list[ApiOperation]:
    return [
        ApiOperation(
            "POST",
            "/tokenize",
            "tokenize",
            "Tokens",
            "Makes tokens of a text, or of a chat as it goes through the template.",
            replied("Tokens"),
            LOADING,
            Body(
                either(ref("TokenizeText"), ref("TokenizeChat")),
                {
                    "text": {**model, "prompt": "Hi"},
                    "chat": {**model, "messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True},
                },
            ),
            rules=rules.TOKENIZE,
            links=(OperationLink("back", "detokenize", body={**model, "tokens": "$response.body#/tokens"}),),
        ),
        ApiOperation(
            "POST",
            "/detokenize",
            "detokenize",
            "Tokens",
            "Makes a text of tokens.",
            replied("Detokenized"),
            LOADING,
            Body(ref("DetokenizeRequest"), {"plain": {**model, "tokens": [1, 2]}}),
            rules=rules.DETOKENIZE,
        ),
        ApiOperation(
            "GET",
            "/tokenizer_info",
            "getTokenizer",
            "Tokens",
            "Tells the first model's own tokens and its chat template.",
            replied("TokenizerInfo"),
            LOADING,
        ),
    ]


BODIES: Final[tuple[type[RequestObject], ...]] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeText,
    TokenizeChat,
    DetokenizeRequest,
    ResponsesRequest,
    InputTokensRequest,
    BatchOrder,
    MessagesRequest,
    CountTokensRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingRequest,
    OllamaShowRequest,
)
SCHEMAS: Final = schemas(BODIES)
