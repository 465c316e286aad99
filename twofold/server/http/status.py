"""The state of the server: GET /health, /ready, /version and /metrics, records of requests, and sums of usage. Its
administration: loading and unloading of models, and shutdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta

from twofold.api.body import NonEmptyText, NonNegativeFloat, NonNegativeInt, ReplyObject, RequestObject
from twofold.core.errors import BusyError, ForbiddenError
from twofold.host.versions import twofold_version
from twofold.observe.metrics.server import ServerMetrics
from twofold.server.accounting import Accounting, UsageReply
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.models.registry import ModelRegistry, ModelState, ServedModel
from twofold.server.records import RecentPage, RequestRecord
from twofold.server.storage.tenants import read_query

DEFAULT_PARTS = ("model", "tier")
MAX_SHOWN: Final = 200


class ServerStatus(ReplyObject):
    """The state of the server."""

    status: Literal["ok", "ready", "stopping"]


class VersionReply(ReplyObject):
    """The version of a server."""

    version: NonEmptyText


class ModelUseReply(ReplyObject, kw_only=True):
    """The state of a model and its requests."""

    id: str
    object: Literal["twofold.model"] = "twofold.model"
    names: Annotated[Sequence[str], Meta(min_length=1)]
    state: ModelState
    bytes: NonNegativeInt
    context: NonNegativeInt | None
    running: NonNegativeInt
    waiting: NonNegativeInt
    idle_s: NonNegativeFloat | None
    unloads_in_s: NonNegativeFloat | None
    error: str | None


class ModelUseList(ReplyObject, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelUseReply]


class RecentQuery(RequestObject):
    """Up to ``limit`` requests, those that ended before the request with the id ``before``."""

    limit: Annotated[int, Meta(ge=1, le=MAX_SHOWN)] = 50
    before: str | None = None


class StatusEndpoint:
    """Handlers about the state of the server. ``ready`` returns whether it would run a request now."""

    def __init__(self, ready: Callable[[], bool], metrics: ServerMetrics, accounting: Accounting) -> None:
        self._ready = ready
        self._metrics = metrics
        self._accounting = accounting

    async def health(self, asked: EndpointRequest) -> ServerStatus:  # noqa: ARG002 - of a handler
        return ServerStatus("ok")

    async def ready(self, asked: EndpointRequest) -> ServerStatus:  # noqa: ARG002
        """Succeeds from when the first model has generated a token until the server shuts down. Raises BusyError."""
        if not self._ready():
            raise BusyError("The server is not ready.", retry_after_s=1.0)
        return ServerStatus("ready")

    async def version(self, asked: EndpointRequest) -> VersionReply:  # noqa: ARG002
        return VersionReply(twofold_version())

    async def metrics(self, asked: EndpointRequest) -> EndpointResponse:
        """All metrics; of those by tenant, only the series of the caller's tenant, unless its key may see all."""
        caller = asked.context.caller
        tenant = None if caller.metrics == "all" else caller.tenant
        page = await self._metrics.read(asked.headers.get("accept", ""), tenant)
        return EndpointResponse(body=page.body, content_type=page.content_type.encode())

    async def request(self, asked: EndpointRequest) -> RequestRecord:
        """The record of one of the tenant's last requests."""
        return self._accounting.recent.data(asked.tenant, asked.path["request_id"])

    async def requests(self, asked: EndpointRequest) -> RecentPage:
        """The tenant's last requests, newest first."""
        query = read_query(RecentQuery, asked.query.multi_items())
        return self._accounting.recent.page(asked.tenant, query.limit, query.before)

    async def usage(self, asked: EndpointRequest) -> UsageReply:
        """Sums of the tenant's usage since a day, grouped by parts such as by=model,tier."""
        by = asked.query.get("by")
        parts = DEFAULT_PARTS if by is None else tuple(by.split(","))
        return await self._accounting.usage.data(asked.tenant, by=parts, since=asked.query.get("since"))


class AdminEndpoint:
    """Handlers for administrators: they raise ForbiddenError for a key without admin rights.

    ``stop`` shuts the server down as SIGTERM does.
    """

    def __init__(self, registry: ModelRegistry, stop: Callable[[], None]) -> None:
        self._registry = registry
        self._stop = stop

    async def list(self, asked: EndpointRequest) -> ModelUseList:
        check_admin(asked)
        return ModelUseList(data=[_model_use(model) for model in self._registry.models])

    async def load(self, asked: EndpointRequest) -> ModelUseReply:
        """Responds once the model is loaded."""
        check_admin(asked)
        return _model_use(await self._registry.load(asked.path["model"]))

    async def unload(self, asked: EndpointRequest) -> ModelUseReply:
        """Responds once the model is unloaded; at once if requests use it, which delay the unloading until they end."""
        check_admin(asked)
        return _model_use(await self._registry.unload(asked.path["model"]))

    async def shutdown(self, asked: EndpointRequest) -> ServerStatus:
        """Responds before the server ends: requests in progress may finish within --shutdown-timeout."""
        check_admin(asked)
        self._stop()
        return ServerStatus("stopping")


def check_admin(asked: EndpointRequest) -> None:
    if not asked.context.caller.admin:
        raise ForbiddenError("This key has no admin rights.", hint="twofold keys add NAME --admin makes one.")


def _model_use(model: ServedModel) -> ModelUseReply:
    waiting = 0 if model.worker is None else model.worker.queued
    return ModelUseReply(
        id=model.names[0],
        names=model.names,
        state=model.state,
        bytes=model.bytes,
        context=model.context,
        running=0 if model.worker is None else model.worker.under_way - waiting,
        waiting=waiting,
        idle_s=model.idle_s,
        unloads_in_s=model.unloads_in_s,
        error=None if model.error is None else str(model.error),
    )
