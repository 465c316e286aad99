"""The state of the server: GET /health, /ready, /version, /openapi.json and /metrics, records of requests, and sums of
usage."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.body import NonEmptyText, ReplyObject, RequestObject
from twofold.core.errors import BusyError
from twofold.host.versions import twofold_version
from twofold.server.accounting import Part, UsageReply
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.openapi.route import RequestRule, get, in_query, schema_of
from twofold.server.records import RecentPage, RequestRecord
from twofold.server.storage.tenants import read_query

DEFAULT_PARTS = ("model", "tier")
MAX_SHOWN: Final = 200
Parts: TypeAlias = Annotated[list[Part], Meta(min_length=1)]


class ServerStatus(ReplyObject):
    """The state of the server."""

    status: Literal["ok", "ready", "stopping"]


class VersionReply(ReplyObject):
    """The version of a server."""

    version: NonEmptyText


class RecentQuery(RequestObject):
    """Up to ``limit`` requests, those that ended before the request with the id ``before``."""

    limit: Annotated[int, Meta(ge=1, le=MAX_SHOWN)] = 50
    before: str | None = None


@get("/health", is_open=True)
async def get_health(_: EndpointRequest) -> ServerStatus:
    """Succeeds while the server runs."""
    return ServerStatus("ok")


@get("/ready", is_open=True)
async def get_ready(asked: EndpointRequest) -> ServerStatus:
    """Succeeds while the first model can be used.

    From when the first model has generated a token until the server shuts down; else raises BusyError."""
    if not asked.services.is_ready():
        raise BusyError("The server is not ready.", retry_after_s=1.0)
    return ServerStatus("ready")


@get("/version")
async def get_version(_: EndpointRequest) -> VersionReply:
    """Returns the version."""
    return VersionReply(twofold_version())


@get("/openapi.json", reply={"type": "object"})
async def get_document(asked: EndpointRequest) -> EndpointResponse:
    """Returns this document."""
    return EndpointResponse(asked.services.document)


@get("/metrics", contents={"text/plain": schema_of(str), "application/openmetrics-text": schema_of(str)})
async def get_metrics(asked: EndpointRequest) -> EndpointResponse:
    """Returns metrics for Prometheus.

    Of those by tenant, only the series of the caller's tenant, unless its key may see all."""
    tenant = None if asked.caller.metrics == "all" else asked.tenant
    page = await asked.services.metrics.read(asked.headers.get("accept", ""), tenant)
    return EndpointResponse(body=page.body, content_type=page.content_type.encode())


@get(
    "/v1/twofold/requests",
    parameters=(
        in_query("limit", Annotated[int, Meta(ge=1, le=MAX_SHOWN)], "Maximum number of requests."),
        in_query("before", str, "The id of the request before which they ended."),
    ),
    rules=(RequestRule("before is the id of a recent request.", "before"),),
)
async def list_requests(asked: EndpointRequest) -> RecentPage:
    """Lists recent requests that ended, newest first."""
    query = read_query(RecentQuery, asked.query.multi_items())
    return asked.services.accounting.recent.page(asked.tenant, query.limit, query.before)


@get("/v1/twofold/requests/{request_id}")
async def get_request(asked: EndpointRequest) -> RequestRecord:
    """Returns the record of a recent request."""
    return asked.services.accounting.recent.data(asked.tenant, asked.path["request_id"])


@get(
    "/v1/twofold/usage",
    parameters=(
        in_query("by", Parts, "What the sums are divided by.", style="form", explode=False),
        in_query("since", {"type": "string", "format": "date"}, "The first day, in UTC."),
    ),
)
async def get_usage(asked: EndpointRequest) -> UsageReply:
    """Returns sums of usage and cost.

    Those of the tenant since a day, grouped by parts such as by=model,tier."""
    by = asked.query.get("by")
    parts = DEFAULT_PARTS if by is None else tuple(by.split(","))
    return await asked.services.accounting.usage.data(asked.tenant, by=parts, since=asked.query.get("since"))


PROBES: Final = (get_health, get_ready, get_version, get_document, get_metrics)
RECORDS: Final = (list_requests, get_request, get_usage)
