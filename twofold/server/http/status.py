"""GET /health, /ready, /version, /metrics, records of requests and sums of usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from twofold.api.body import NonEmptyText, ReplyObject
from twofold.core.errors import BusyError
from twofold.host.versions import twofold_version
from twofold.observe.metrics.server import ServerMetrics
from twofold.server.accounting import Accounting, UsageReply
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.records import RequestRecord

DEFAULT_PARTS = ("model", "tier")


class ServerStatus(ReplyObject):
    """The state of the server."""

    status: Literal["ok", "ready", "stopping"]


class VersionReply(ReplyObject):
    """The version of a server."""

    version: NonEmptyText


class StatusEndpoint:
    """``ready`` says whether the server would accept a request now."""

    def __init__(self, ready: Callable[[], bool], metrics: ServerMetrics, accounting: Accounting) -> None:
        self._ready = ready
        self._metrics = metrics
        self._accounting = accounting

    async def health(self, asked: EndpointRequest) -> ServerStatus:  # noqa: ARG002 - of a handler
        return ServerStatus("ok")

    async def ready(self, asked: EndpointRequest) -> ServerStatus:  # noqa: ARG002
        """From when the first model has completed a request of one token until the server shuts down."""
        if not self._ready():
            raise BusyError("The server is not ready.", retry_after_s=1.0)
        return ServerStatus("ready")

    async def version(self, asked: EndpointRequest) -> VersionReply:  # noqa: ARG002
        return VersionReply(twofold_version())

    async def metrics(self, asked: EndpointRequest) -> EndpointResponse:
        """All metrics; of those by tenant only the caller's own, unless its key may see all."""
        caller = asked.context.caller
        tenant = None if caller.metrics == "all" else caller.tenant
        page = await self._metrics.read(asked.headers.get("accept", ""), tenant)
        return EndpointResponse(body=page.body, content_type=page.content_type.encode())

    async def request(self, asked: EndpointRequest) -> RequestRecord:
        """The record of one of the tenant's last requests."""
        return self._accounting.recent.data(asked.tenant, asked.path["request_id"])

    async def usage(self, asked: EndpointRequest) -> UsageReply:
        """Sums of the tenant's usage since a day, grouped by parts such as by=model,tier."""
        by = asked.query.get("by")
        parts = DEFAULT_PARTS if by is None else tuple(by.split(","))
        return await self._accounting.usage.data(asked.tenant, by=parts, since=asked.query.get("since"))
