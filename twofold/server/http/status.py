"""GET /health, /ready, /version, /metrics and what was written down of requests."""

from __future__ import annotations

from collections.abc import Callable

from twofold.core.errors import BusyError
from twofold.host.versions import twofold_version
from twofold.observe.metrics.server import ServerMetrics
from twofold.server.accounts.accounting import Accounting
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse

DEFAULT_PARTS = ("model", "tier")


class StatusEndpoint:
    """``ready`` says whether the server would answer a request now."""

    def __init__(self, ready: Callable[[], bool], metrics: ServerMetrics, ledger: Accounting) -> None:
        self._ready = ready
        self._metrics = metrics
        self._ledger = ledger

    async def health(self, asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG002 - whoever asks, it lives
        return EndpointResponse({"status": "ok"})

    async def ready(self, asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG002
        """True once the first model has answered a request of one token, until the server is asked to end."""
        if not self._ready():
            raise BusyError("The server is not ready.", retry_after_s=1.0)
        return EndpointResponse({"status": "ready"})

    async def version(self, asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG002
        return EndpointResponse({"version": twofold_version()})

    async def metrics(self, asked: EndpointRequest) -> EndpointResponse:
        """All figures; of those that are told by tenant only the caller's own, unless its key may see all."""
        caller = asked.exchange.caller
        tenant = None if caller.metrics == "all" else caller.tenant
        page = await self._metrics.read(asked.headers.get("accept", ""), tenant)
        return EndpointResponse(body=page.body, content_type=page.content_type.encode())

    async def request(self, asked: EndpointRequest) -> EndpointResponse:
        """The record of one of the tenant's last requests."""
        return EndpointResponse(self._ledger.recent.data(asked.tenant, asked.path["request_id"]))

    async def usage(self, asked: EndpointRequest) -> EndpointResponse:
        """Sums of what the tenant used, by parts such as by=model,tier, since a day."""
        by = asked.query.get("by")
        parts = DEFAULT_PARTS if by is None else tuple(by.split(","))
        return EndpointResponse(await self._ledger.usage.data(asked.tenant, by=parts, since=asked.query.get("since")))
