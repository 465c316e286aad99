"""All paths of a server with their handlers, as one ASGI application, and the stores behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeAlias

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import Dialect, DialectRequest, GeneratedReply, ReplyHead
from twofold.api.batch.lines import ENDPOINTS
from twofold.api.ollama.replies import OllamaDialect
from twofold.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
)
from twofold.api.openai.compress import CompressRequest
from twofold.api.openai.errors import OpenAIDialect
from twofold.api.openai.responses.reply import ResponseReply
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.openai.vectors import RerankRequest, ScoreRequest
from twofold.core.errors import MethodError, NotFoundError, TwofoldError, closest_match
from twofold.core.request import RequestOptions
from twofold.host.paths import private_folder
from twofold.server.batches.record import BatchReply
from twofold.server.batches.run import RunBody
from twofold.server.batches.service import BatchService
from twofold.server.context import RequestContext
from twofold.server.edge.limits import MIB
from twofold.server.edge.middleware import ABOUT_PATH
from twofold.server.files.service import FileService
from twofold.server.http.about import AboutEndpoint, features
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse, Generating, Handler, PathEndpoint, Site
from twofold.server.http.estimate import EstimateEndpoint
from twofold.server.http.live import LiveService
from twofold.server.http.models import ModelsEndpoint, OllamaEndpoint
from twofold.server.http.planner import PlannerEndpoint
from twofold.server.http.replicas import ReplicasEndpoint
from twofold.server.http.root import RootEndpoint
from twofold.server.http.status import AdminEndpoint, StatusEndpoint
from twofold.server.http.tokens import TokensEndpoint
from twofold.server.models.registry import ModelRegistry
from twofold.server.responses import ResponseService
from twofold.server.runner import COMPRESSING
from twofold.web.page import WebPage

OllamaGenerating: TypeAlias = OllamaChatRequest | OllamaGenerateRequest | OllamaEmbedRequest | OllamaEmbeddingRequest

Routes: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Handlers by path and HTTP method."""
OPENAI: Final = {"/v1/chat/": OpenAIDialect(), "/v1/completions": OpenAIDialect("prompt"), "": OpenAIDialect("input")}
ANTHROPIC: Final = AnthropicDialect()
OLLAMA: Final = OllamaDialect()
UNMATCHED: Final = "unmatched"
"""The endpoint, in logs and metrics, of a path that no route matches."""
PAGE_PATH: Final = "/web/{version}/{file:path}"
MAX_PARTS: Final = 8
LONG_HISTORY: Final = MIB
"""Minimum bytes that a request counts as if it continues stored responses: their conversation may be long."""


def dialect_of(path: str) -> Dialect:
    """The API protocol of a path."""
    if path.startswith("/api/"):
        return OLLAMA
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return next(dialect for prefix, dialect in OPENAI.items() if path.startswith(prefix))


def build_app(site: Site, routes: Routes) -> ASGIApp:
    """The application that serves these routes. HEAD is supported wherever GET is."""
    found = []
    for path, handlers in routes.items():
        methods = {**handlers, **({"HEAD": handlers["GET"]} if "GET" in handlers else {})}
        refusal = partial(_unsupported_method, sorted(methods))
        found.append(Route(path, PathEndpoint(site, path, dialect_of(path), methods, refusal)))

    async def unmatched(scope: Scope, receive: Receive, send: Send) -> None:
        refusal, known = partial(_not_found, list(routes)), partial(known_path, list(routes))
        await PathEndpoint(site, UNMATCHED, dialect_of(scope["path"]), {}, refusal, known)(scope, receive, send)

    return Router(found, default=unmatched, redirect_slashes=False)


def known_path(routes: Sequence[str], path: str) -> str:
    """The longest part of a path that some route begins with, as logs show it: /v1/files/{file_id}/…"""
    asked, longest = list(filter(None, path.split("/")))[:MAX_PARTS], list[str]()
    for route in routes:
        parts = list(filter(None, route.split("/")))
        both = zip(parts, asked, strict=False)
        count = sum(1 for _ in takewhile(lambda each: each[0] == each[1] or each[0].startswith("{"), both))
        longest = max(longest, parts[:count], key=len)
    return "/" + "/".join([*longest, "…"])


def _unsupported_method(allowed: Sequence[str], path: str) -> TwofoldError:  # noqa: ARG001 - of a refusal
    return MethodError(
        "This path does not support this HTTP method.",
        allowed=tuple(allowed),
        hint=f"It supports {', '.join(allowed)}.",
    )


def _not_found(paths: Sequence[str], path: str) -> TwofoldError:
    close = closest_match(path, paths)
    hint = f"Did you mean {close}?" if close else "GET /openapi.json lists all paths."
    return NotFoundError("There is nothing at this path.", hint=hint)


def all_routes(
    registry: ModelRegistry,
    status: StatusEndpoint,
    admin: AdminEndpoint,
    about: AboutEndpoint,
    planner: PlannerEndpoint,
    live: LiveService,
    estimate: EstimateEndpoint,
    stores: Stores,
    document: EndpointResponse,
    page: WebPage | None,
) -> Routes:
    """All endpoints; ``document`` is the response to GET /openapi.json, ``page`` the web page, if the server has it."""

    async def described(asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG001 - of a handler
        return document

    models, ollama = ModelsEndpoint(registry), OllamaEndpoint(registry)
    tokens, replicas = TokensEndpoint(registry, stores.responses), ReplicasEndpoint(registry)
    root = RootEndpoint(registry, page)
    routes: dict[str, Mapping[str, Handler]] = {
        **{path: {"POST": handler} for path, handler in _generating(stores.responses, registry).items()},
        "/": {"GET": root.get},
        **({} if page is None else {PAGE_PATH: {"GET": root.file}}),
        "/health": {"GET": status.health},
        "/ready": {"GET": status.ready},
        "/version": {"GET": status.version},
        "/metrics": {"GET": status.metrics},
        "/openapi.json": {"GET": described},
        "/v1/models": {"GET": models.list},
        "/v1/models/{model:path}": {"GET": models.get},
        "/api/version": {"GET": ollama.version},
        "/api/tags": {"GET": ollama.tags},
        "/api/ps": {"GET": ollama.ps},
        "/api/show": {"POST": ollama.show},
        "/v1/twofold/estimate": {"POST": estimate.post},
        "/v1/twofold/requests": {"GET": status.requests},
        "/v1/twofold/requests/{request_id}": {"GET": status.request},
        "/v1/twofold/usage": {"GET": status.usage},
        "/v1/twofold/live": {"GET": live.get},
        "/v1/twofold/explain": {"POST": planner.explain},
        "/v1/twofold/curve": {"POST": planner.curve},
        "/v1/twofold/price": {"POST": planner.price},
        "/v1/twofold/plans": {"POST": planner.create_plan},
        "/v1/twofold/plans/{plan_id}": {"GET": planner.get_plan, "DELETE": planner.delete_plan},
        "/tokenize": {"POST": tokens.tokenize},
        "/detokenize": {"POST": tokens.detokenize},
        "/tokenizer_info": {"GET": tokens.info},
        "/v1/messages/count_tokens": {"POST": tokens.count_messages},
        "/v1/responses/input_tokens": {"POST": tokens.count_input},
        "/v1/twofold/models": {"GET": admin.list},
        "/v1/twofold/models/{model:path}/load": {"POST": admin.load},
        "/v1/twofold/models/{model:path}/unload": {"POST": admin.unload},
        "/v1/twofold/models/{model:path}/replicas": {"POST": replicas.scale},
        "/v1/twofold/models/{model:path}/replicas/drain": {"POST": replicas.drain},
        "/v1/twofold/models/{model:path}/replicas/restart": {"POST": replicas.restart},
        "/v1/twofold/shutdown": {"POST": admin.shutdown},
        **_stored(stores),
    }
    return {**routes, ABOUT_PATH: {"GET": partial(about.get, features(routes))}}


def _generating(responses: ResponseService, registry: ModelRegistry) -> dict[str, Generating]:
    """The endpoints whose replies a model generates."""
    store = _ResponseStore(responses)
    return {
        **{path: Generating(read) for path, read in ENDPOINTS.items()},
        "/v1/messages": Generating(MessagesRequest.read),
        "/v1/responses": Generating(ResponsesRequest.read, store.complete, store.keep),
        **dict.fromkeys(("/v1/rerank", "/rerank"), Generating(RerankRequest.read)),
        **dict.fromkeys(("/v1/score", "/score"), Generating(ScoreRequest.read)),
        COMPRESSING: Generating(CompressRequest.read, partial(_read_by, registry)),
        "/api/chat": Generating(OllamaChatRequest.read, _kept_alive),
        "/api/generate": Generating(OllamaGenerateRequest.read, _kept_alive),
        "/api/embed": Generating(OllamaEmbedRequest.read, _kept_alive),
        "/api/embeddings": Generating(OllamaEmbeddingRequest.read, _kept_alive),
    }


def _stored(stores: Stores) -> Routes:
    files, batches, responses = stores.files, stores.batches, stores.responses
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


async def _create_batch(batches: BatchService, asked: EndpointRequest) -> BatchReply:
    return await batches.create(asked.tenant, await asked.body(), key=asked.context.caller.id)


async def _kept_alive(context: RequestContext, request: OllamaGenerating) -> OllamaGenerating:
    """Sets how long the model stays loaded afterwards, if the key has admin rights: this affects all callers."""
    if context.caller.admin:
        context.keep_alive_s = request.keep_alive_s
    return request


async def _read_by(registry: ModelRegistry, context: RequestContext, request: CompressRequest) -> CompressRequest:
    """Loads the model that will read the text, if it is another one: its step times decide whether compressing pays."""
    if request.target is not None:
        async with registry.lease(request.target, RequestOptions(tenant=context.caller.tenant)) as model:
            request.read_by(model.reading_time())
    return request


@dataclass(frozen=True, slots=True)
class _ResponseStore:
    """Adds stored conversations to the requests that continue them, and stores the replies."""

    responses: ResponseService

    async def complete(self, context: RequestContext, request: ResponsesRequest) -> ResponsesRequest:
        if request.previous_response_id is not None:
            context.size = max(context.size, LONG_HISTORY)  # the conversation that it continues may be long
        return await self.responses.known(context.caller.tenant, request)

    async def keep(
        self, context: RequestContext, request: DialectRequest, head: ReplyHead, body: GeneratedReply
    ) -> None:
        assert isinstance(request, ResponsesRequest)
        assert isinstance(body, ResponseReply)
        await self.responses.keep(context.caller.tenant, request, head, body)


@dataclass(frozen=True, slots=True)
class Stores:
    """The services that own the stored objects of tenants."""

    files: FileService
    batches: BatchService
    responses: ResponseService


@asynccontextmanager
async def open_stores(folder: Path, run_body: RunBody) -> AsyncIterator[Stores]:
    """Opens the stores in ``folder`` and continues its unfinished batches.

    Raises UsageError if another server uses the folder, ResourceError if it cannot be used.
    """
    private_folder(folder)
    async with AsyncExitStack() as stack:
        files = await FileService.open(folder / "files")
        stack.push_async_callback(files.close)
        responses = await ResponseService.open(folder / "responses.sqlite")
        stack.push_async_callback(responses.close)
        batches = await BatchService.open(folder / "batches", files, run_body)
        stack.push_async_callback(batches.close)
        yield Stores(files, batches, responses)
