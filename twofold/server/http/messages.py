"""POST /v1/messages/count_tokens: how long a prompt would be, for Anthropic's clients."""

from __future__ import annotations

from functools import partial

from twofold.api.anthropic.messages import CountTokensRequest
from twofold.server.base import ModelHub
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse


class MessageRoutes:
    """Handlers beside the one that generates."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub

    async def count_tokens(self, asked: EndpointRequest) -> EndpointResponse:
        request = await asked.read(CountTokensRequest.read)
        async with self._hub.lease(request.model) as served:
            tokens = await asked.work(served.name, partial(request.count, served.facts))
            return EndpointResponse(request.reply(tokens))
