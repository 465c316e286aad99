"""/v1/files and /v1/batches over HTTP: uploads as they come, contents as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from twofold.core.errors import SlowClientError
from twofold.server.batches.service import BatchService
from twofold.server.edge.body import ClientGoneError
from twofold.server.files.endpoint import FilesEndpoint
from twofold.server.http.asgi import Receive
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse

SILENCE_S = 30.0
"""An upload may take long, but not between two of its pieces."""


class FileRoutes:
    """Handlers over the files of all tenants."""

    def __init__(self, files: FilesEndpoint) -> None:
        self._files = files

    async def upload(self, asked: EndpointRequest) -> EndpointResponse:
        body = _pieces(asked.receive)
        return EndpointResponse(await self._files.upload(asked.tenant, asked.headers.get("content-type"), body))

    async def list(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._files.page(asked.tenant, asked.query))

    async def get(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._files.get(asked.tenant, asked.path["file_id"]))

    async def delete(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._files.delete(asked.tenant, asked.path["file_id"]))

    async def content(self, asked: EndpointRequest) -> EndpointResponse:
        content = await self._files.content(asked.tenant, asked.path["file_id"])
        return EndpointResponse(
            pieces=content.pieces,
            content_type=b"application/octet-stream",
            headers=((b"content-length", str(content.file.bytes).encode()),),
        )


class BatchRoutes:
    """Handlers over the batches of all tenants."""

    def __init__(self, batches: BatchService) -> None:
        self._batches = batches

    async def create(self, asked: EndpointRequest) -> EndpointResponse:
        key = asked.exchange.caller.key_id
        return EndpointResponse(await self._batches.create(asked.tenant, await asked.read(lambda body: body), key=key))

    async def list(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._batches.page(asked.tenant, asked.query))

    async def get(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._batches.get(asked.tenant, asked.path["batch_id"]))

    async def cancel(self, asked: EndpointRequest) -> EndpointResponse:
        return EndpointResponse(await self._batches.cancel(asked.tenant, asked.path["batch_id"]))


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """A body as it comes. Raises SlowClientError, ClientGoneError."""
    more = True
    while more:
        try:
            async with asyncio.timeout(SILENCE_S):
                message = await receive()
        except TimeoutError:
            raise SlowClientError(f"No upload data arrived for {SILENCE_S:g} s.") from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        more = message.get("more_body", False)
        yield message.get("body", b"")
