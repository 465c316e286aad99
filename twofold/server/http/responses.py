"""/v1/responses beside generating: what is kept, and how long a prompt would be."""

from __future__ import annotations

from functools import partial

from twofold.api.openai.responses.request import InputTokensRequest
from twofold.server.base import ModelHub
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.responses.endpoint import ResponsesEndpoint


class ResponseRoutes:
    """Handlers over the responses of all tenants."""

    def __init__(self, responses: ResponsesEndpoint, hub: ModelHub) -> None:
        self._responses = responses
        self._hub = hub

    async def get(self, asked: EndpointRequest) -> EndpointResponse:
        query = asked.query.multi_items()
        return EndpointResponse(await self._responses.get(asked.tenant, asked.path["response_id"], query))

    async def delete(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._responses.delete(asked.tenant, asked.path["response_id"]))

    async def cancel(self, asked: EndpointRequest) -> EndpointResponse:
        await self._responses.cancel(asked.tenant, asked.path["response_id"])
        raise AssertionError("a response cannot be cancelled")

    async def input_items(self, asked: EndpointRequest) -> EndpointResponse:
        query = asked.query.multi_items()
        return EndpointResponse(await self._responses.input_items(asked.tenant, asked.path["response_id"], query))

    async def input_tokens(self, asked: EndpointRequest) -> EndpointResponse:
        """How many tokens a request would have."""
        request = await asked.read(InputTokensRequest.read)
        request = await self._responses.known(asked.tenant, request)
        async with self._hub.lease(request.model) as served:
            return EndpointResponse(await asked.work(served.name, partial(request.count, served.facts)))
