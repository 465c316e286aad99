"""Routes whose replies a model generates, in the APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.anthropic.stream import MessageEvent
from twofold.api.base import DialectRequest, GeneratedReply, ReplyHead
from twofold.api.body import Schema
from twofold.api.compression import Compressible
from twofold.api.ollama.replies import OllamaChatReply, OllamaGenerateReply
from twofold.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
)
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.compress import CompressRequest
from twofold.api.openai.responses.reply import ResponseEvent, ResponseReply
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.openai.streams import ChatChunk, CompletionChunk
from twofold.api.openai.vectors import EmbeddingRequest, RerankRequest, ScoreRequest
from twofold.server.edge.limits import MIB
from twofold.server.http.endpoints import EndpointRequest, Generating
from twofold.server.openapi import rules
from twofold.server.openapi.route import FIRST_MODEL, OperationLink, RequestRule, Route, in_header, in_query
from twofold.server.response_cache import CACHE_HEADER
from twofold.server.runner import COMPRESSING

OllamaGenerating: TypeAlias = OllamaChatRequest | OllamaGenerateRequest | OllamaEmbedRequest | OllamaEmbeddingRequest

LONG_HISTORY: Final = MIB
"""Minimum bytes that a request counts as if it continues stored responses: their conversation may be long."""
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
COMPARED: Final = RequestRule("Models to compare prices with have a known price.", "twofold.compare_prices")
MODEL: Final = {"model": FIRST_MODEL}
CHAT: Final = {**MODEL, "messages": [{"role": "user", "content": "Hi"}]}
"""The beginning of examples of chats."""
INPUT: Final = {**MODEL, "input": "Hi"}
WORDS: Final = {**MODEL, "input": ["Hi", "there"]}
PAIR: Final = {"text_1": "red", "text_2": ["blood", "grass"]}
TEXT: Final = {**MODEL, "text": "The first sentence. The second one. And a third."}
DOCUMENTS: Final = {"query": "What is red?", "documents": ["Blood", "Grass"]}
TOOL: Final[dict[str, Any]] = {
    "name": "weather",
    "description": "Returns the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SYSTEM: Final = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
TIMED: Final = {"tokens": True, "compare_prices": ["gpt-5"]}
FEW: Final = {"options": {"num_predict": 4}}
NEXT: Final = {**MODEL, "previous_response_id": "$response.body#/id", "input": "Go on", "max_output_tokens": 2}


async def _kept_alive(asked: EndpointRequest, request: OllamaGenerating) -> OllamaGenerating:
    """Sets how long the model stays loaded afterwards, if the key has admin rights: this affects all callers."""
    if asked.caller.admin:
        asked.keep_alive_s = request.keep_alive_s
    return request


async def _compressed(asked: EndpointRequest, request: Compressible) -> Compressible:
    """Compresses the messages that the request names."""
    await asked.services.runner.compress(asked, request)
    return request


async def _read_by(asked: EndpointRequest, request: CompressRequest) -> CompressRequest:
    """Loads the model that will read the text, if it is another one: its step times decide whether compressing pays."""
    if request.target is not None:
        async with asked.lease(request.target) as model:
            request.read_by(model.reading_time())
    return request


async def _continued(asked: EndpointRequest, request: ResponsesRequest) -> ResponsesRequest:
    """Adds the stored conversation that a request continues."""
    if request.previous_response_id is not None:
        asked.size = max(asked.size, LONG_HISTORY)  # the conversation that it continues may be long
    return await asked.services.stores.responses.known(asked.tenant, request)


async def _keep(asked: EndpointRequest, request: DialectRequest, head: ReplyHead, body: GeneratedReply) -> None:
    """Stores a response."""
    assert isinstance(request, ResponsesRequest)
    assert isinstance(body, ResponseReply)
    await asked.services.stores.responses.keep(asked.tenant, request, head, body)


def _generates(
    path: str,
    handler: Generating,
    id: str,
    summary: str,
    rules: tuple[RequestRule, ...],
    examples: dict[str, dict[str, Any]],
    *,
    parameters: tuple[Schema, ...] = (),
    links: tuple[OperationLink, ...] = (),
    **more: Any,
) -> Route:
    """A route whose reply a model generates."""
    more |= {"parameters": (*parameters, CACHE_USE), "links": (*links, RECORD), "failures": GENERATING}
    return Route("POST", path, handler, id, summary, rules=(*rules, COMPARED), examples=examples, **more)


OPENAI: Final = (
    _generates(
        "/v1/chat/completions",
        Generating(ChatRequest, (_compressed,)),
        "createChatCompletion",
        "Completes a chat.",
        rules.CHAT,
        {
            "plain": {**CHAT, "max_tokens": 4},
            "streamed": {**CHAT, "max_tokens": 4, "stream": True},
            "tools": {**CHAT, "max_completion_tokens": 4, "tools": [{"type": "function", "function": TOOL}]},
            "explained": {**CHAT, "max_tokens": 2, "logprobs": True, "twofold": {"explain": True}},
            "timed": {**CHAT, "max_tokens": 4, "stream": True, "twofold": TIMED},
        },
        events=ChatChunk,
    ),
    _generates(
        "/v1/completions",
        Generating(CompletionRequest),
        "createCompletion",
        "Completes texts.",
        rules.COMPLETION,
        {"plain": {**MODEL, "prompt": "Once", "max_tokens": 4}},
        events=CompletionChunk,
    ),
    _generates(
        "/v1/embeddings",
        Generating(EmbeddingRequest),
        "createEmbeddings",
        "Returns vectors of texts.",
        rules.EMBEDDING,
        {"plain": WORDS},
    ),
    *(
        _generates(path, Generating(request), id, summary, rule, {"plain": {**MODEL, **example}})
        for name, request, summary, rule, example in (
            ("rerank", RerankRequest, "Sorts documents by the cosine to a query.", rules.RERANK, DOCUMENTS),
            ("score", ScoreRequest, "Scores pairs of texts by their cosine.", rules.SCORE, PAIR),
        )
        for path, id in ((f"/v1/{name}", name), (f"/{name}", f"{name}1"))  # as in vLLM
    ),
    _generates(
        COMPRESSING,
        Generating(CompressRequest, (_read_by,)),
        "compress",
        "Returns a text without the sentences that surprise the model least, or of which a question says least; "
        "unchanged if that takes longer than it saves.",
        rules.COMPRESS,
        {"plain": TEXT, "forced": {**TEXT, "force": True}},
    ),
)
RESPONSE: Final = _generates(
    "/v1/responses",
    Generating(ResponsesRequest, (_continued,), _keep),
    "createResponse",
    "Completes a turn of a conversation, and stores it unless store is false.",
    rules.RESPONSE,
    {"plain": {**INPUT, "max_output_tokens": 4}, "streamed": {**INPUT, "max_output_tokens": 4, "stream": True}},
    events=ResponseEvent,
    links=(
        *(
            OperationLink(name, operation, {"response_id": "$response.body#/id"})
            for name, operation in (
                ("get", "getResponse"),
                ("delete", "deleteResponse"),
                ("cancel", "cancelResponse"),
                ("items", "listResponseItems"),
            )
        ),
        OperationLink("next", "createResponse", body=NEXT),
    ),
)
MESSAGE: Final = _generates(
    "/v1/messages",
    Generating(MessagesRequest, (_compressed,)),
    "createMessage",
    "Completes a conversation.",
    rules.MESSAGES,
    {
        "plain": {**CHAT, "max_tokens": 4},
        "streamed": {**CHAT, "max_tokens": 4, "stream": True},
        "cached": {**CHAT, "max_tokens": 4, "system": [SYSTEM]},
    },
    events=MessageEvent,
    parameters=(VERSION, BETA),
)
OLLAMA: Final = (
    _generates(
        "/api/chat",
        Generating(OllamaChatRequest, (_kept_alive, _compressed)),
        "ollamaChat",
        "Completes a chat; without messages it loads the model.",
        (*rules.OLLAMA, rules.TEMPLATE),
        {
            "plain": {**CHAT, "stream": False, **FEW},
            "streamed": {**CHAT, **FEW},
            "load": {**MODEL, "stream": False},
        },
        reply=OllamaChatReply,
        events=OllamaChatReply,
    ),
    _generates(
        "/api/generate",
        Generating(OllamaGenerateRequest, (_kept_alive,)),
        "ollamaGenerate",
        "Completes a prompt, or fills in the text before a suffix; without either it loads the model.",
        rules.OLLAMA_TEXT,
        {
            "plain": {**MODEL, "prompt": "Hi", "stream": False, **FEW},
            "raw": {**MODEL, "prompt": "Once", "raw": True, **FEW},
        },
        reply=OllamaGenerateReply,
        events=OllamaGenerateReply,
    ),
    _generates(
        "/api/embed",
        Generating(OllamaEmbedRequest, (_kept_alive,)),
        "ollamaEmbed",
        "Returns vectors of texts.",
        rules.OLLAMA_EMBEDDING,
        {"plain": WORDS},
    ),
    _generates(
        "/api/embeddings",
        Generating(OllamaEmbeddingRequest, (_kept_alive,)),
        "ollamaEmbedOne",
        "Returns a vector of one text; /api/embed replaces it.",
        rules.OLLAMA_EMBEDDING,
        {"plain": {**MODEL, "prompt": "Hi"}},
    ),
)
