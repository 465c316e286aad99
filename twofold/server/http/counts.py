"""How many tokens a prompt has: POST /v1/messages/count_tokens and /v1/responses/input_tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

from twofold.api.anthropic.messages import CountTokensRequest
from twofold.api.openai.responses.request import InputTokensRequest
from twofold.server.base import ModelRegistry
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.responses.service import ResponseService


class CountEndpoint:
    """Counts the tokens of prompts without running them."""

    def __init__(self, hub: ModelRegistry, responses: ResponseService) -> None:
        self._hub = hub
        self._responses = responses

    async def messages(self, asked: EndpointRequest) -> dict[str, Any]:
        request = await asked.read(CountTokensRequest.read)
        async with self._hub.lease(request.model) as served:
            return request.reply(await asked.work(served.name, partial(request.count, served.facts)))

    async def responses(self, asked: EndpointRequest) -> dict[str, Any]:
        request = await self._responses.known(asked.tenant, await asked.read(InputTokensRequest.read))
        async with self._hub.lease(request.model) as served:
            return await asked.work(served.name, partial(request.count, served.facts))
