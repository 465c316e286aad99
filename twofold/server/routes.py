"""Which path is answered by what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import DialectRequest, ReplyHead
from twofold.api.batch.endpoints import ENDPOINTS
from twofold.api.ollama.chat import OllamaChatRequest
from twofold.api.ollama.embed import OllamaEmbeddingRequest, OllamaEmbedRequest
from twofold.api.ollama.generate import OllamaGenerateRequest
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.openai.scores import RerankRequest, ScoreRequest
from twofold.server.app import Routes
from twofold.server.base import ModelRegistry
from twofold.server.batches.service import BatchService
from twofold.server.edge.limits import MIB
from twofold.server.exchange import RequestContext
from twofold.server.files.service import FileService
from twofold.server.http.admin import AdminEndpoint
from twofold.server.http.counts import CountEndpoint
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse, Generating
from twofold.server.http.models import ModelsEndpoint
from twofold.server.http.ollama import OllamaEndpoint
from twofold.server.http.root import RootEndpoint
from twofold.server.http.status import StatusEndpoint
from twofold.server.http.tokens import TokensEndpoint
from twofold.server.openapi.endpoint import DocumentEndpoint
from twofold.server.responses.service import ResponseService
from twofold.server.stores import Stores

OllamaGenerating: TypeAlias = OllamaChatRequest | OllamaGenerateRequest | OllamaEmbedRequest | OllamaEmbeddingRequest

LONG_HISTORY: Final = MIB
"""Bytes that a conversation counts for that goes on from stored responses."""


def generating(stores: Stores) -> dict[str, Generating]:
    """The endpoints whose replies a model makes."""
    kept = _ResponseStore(stores.responses)
    return {
        **{path: Generating(read) for path, read in ENDPOINTS.items()},
        "/v1/messages": Generating(MessagesRequest.read),
        "/v1/responses": Generating(ResponsesRequest.read, kept.complete, kept.keep),
        **dict.fromkeys(("/v1/rerank", "/rerank"), Generating(RerankRequest.read)),
        **dict.fromkeys(("/v1/score", "/score"), Generating(ScoreRequest.read)),
        "/api/chat": Generating(OllamaChatRequest.read, _kept_alive),
        "/api/generate": Generating(OllamaGenerateRequest.read, _kept_alive),
        "/api/embed": Generating(OllamaEmbedRequest.read, _kept_alive),
        "/api/embeddings": Generating(OllamaEmbeddingRequest.read, _kept_alive),
    }


def plain(
    hub: ModelRegistry, status: StatusEndpoint, admin: AdminEndpoint, stores: Stores, document: DocumentEndpoint
) -> Routes:
    """The endpoints that answer at once."""
    return {**_about(hub, status, document), **_administration(admin), **_stored(hub, stores)}


def _administration(admin: AdminEndpoint) -> Routes:
    return {
        "/v1/twofold/models": {"GET": admin.list},
        "/v1/twofold/models/{model:path}/load": {"POST": admin.load},
        "/v1/twofold/models/{model:path}/unload": {"POST": admin.unload},
        "/v1/twofold/shutdown": {"POST": admin.shutdown},
    }


def _about(hub: ModelRegistry, status: StatusEndpoint, document: DocumentEndpoint) -> Routes:
    models, tokens, for_ollama = ModelsEndpoint(hub), TokensEndpoint(hub), OllamaEndpoint(hub)
    return {
        "/": {"GET": RootEndpoint(hub).get},
        "/health": {"GET": status.health},
        "/ready": {"GET": status.ready},
        "/version": {"GET": status.version},
        "/metrics": {"GET": status.metrics},
        "/openapi.json": {"GET": document.get},
        "/v1/models": {"GET": models.list},
        "/v1/models/{model:path}": {"GET": models.get},
        "/api/version": {"GET": for_ollama.version},
        "/api/tags": {"GET": for_ollama.tags},
        "/api/ps": {"GET": for_ollama.ps},
        "/api/show": {"POST": for_ollama.show},
        "/tokenize": {"POST": tokens.tokenize},
        "/detokenize": {"POST": tokens.detokenize},
        "/tokenizer_info": {"GET": tokens.info},
        "/v1/twofold/requests/{request_id}": {"GET": status.request},
        "/v1/twofold/usage": {"GET": status.usage},
    }


def _stored(hub: ModelRegistry, stores: Stores) -> Routes:
    files, batches, responses = stores.files, stores.batches, stores.responses
    counts = CountEndpoint(hub, responses)
    return {
        "/v1/files": {
            "POST": lambda asked: files.upload(asked.tenant, asked.headers.get("content-type"), asked.pieces()),
            "GET": lambda asked: files.page(asked.tenant, asked.query),
        },
        "/v1/files/{file_id}": {
            "GET": lambda asked: files.get(asked.tenant, asked.path["file_id"]),
            "DELETE": lambda asked: files.delete(asked.tenant, asked.path["file_id"]),
        },
        "/v1/files/{file_id}/content": {"GET": partial(_content, files)},
        "/v1/batches": {
            "POST": partial(_create_batch, batches),
            "GET": lambda asked: batches.page(asked.tenant, asked.query),
        },
        "/v1/batches/{batch_id}": {"GET": lambda asked: batches.get(asked.tenant, asked.path["batch_id"])},
        "/v1/batches/{batch_id}/cancel": {"POST": lambda asked: batches.cancel(asked.tenant, asked.path["batch_id"])},
        "/v1/messages/count_tokens": {"POST": counts.messages},
        "/v1/responses/input_tokens": {"POST": counts.responses},
        "/v1/responses/{response_id}": {
            "GET": lambda asked: responses.get(asked.tenant, asked.path["response_id"], asked.query.multi_items()),
            "DELETE": lambda asked: responses.delete(asked.tenant, asked.path["response_id"]),
        },
        "/v1/responses/{response_id}/cancel": {
            "POST": lambda asked: responses.cancel(asked.tenant, asked.path["response_id"])
        },
        "/v1/responses/{response_id}/input_items": {
            "GET": lambda asked: responses.input_items(
                asked.tenant, asked.path["response_id"], asked.query.multi_items()
            )
        },
    }


async def _content(files: FileService, asked: EndpointRequest) -> EndpointResponse:
    content = await files.content(asked.tenant, asked.path["file_id"])
    return EndpointResponse(
        pieces=content.pieces,
        content_type=b"application/octet-stream",
        headers=((b"content-length", str(content.file.bytes).encode()),),
    )


async def _create_batch(batches: BatchService, asked: EndpointRequest) -> dict[str, Any]:
    return await batches.create(asked.tenant, await asked.body(), key=asked.exchange.caller.key_id)


async def _kept_alive(exchange: RequestContext, request: OllamaGenerating) -> OllamaGenerating:
    """Says how long the model stays loaded: that concerns all callers, so it is for keys that may administer."""
    if exchange.caller.admin:
        exchange.keep_alive_s = request.keep_alive_s
    return request


@dataclass(frozen=True, slots=True)
class _ResponseStore:
    """What responses go on from, and where they are kept."""

    responses: ResponseService

    async def complete(self, exchange: RequestContext, request: ResponsesRequest) -> ResponsesRequest:
        if request.previous is not None:
            exchange.size = max(exchange.size, LONG_HISTORY)  # what it goes on from may be long
        return await self.responses.known(exchange.caller.tenant, request)

    async def keep(
        self, exchange: RequestContext, request: DialectRequest, head: ReplyHead, body: dict[str, Any]
    ) -> None:
        assert isinstance(request, ResponsesRequest)
        await self.responses.keep(exchange.caller.tenant, request, head, body)
