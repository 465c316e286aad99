"""GET /openapi.json: the document, made once."""

from __future__ import annotations

import orjson

from twofold.server.http.endpoints import EndpointRequest, EndpointResponse


class DocumentEndpoint:
    """Gives a document out."""

    def __init__(self, document: object) -> None:
        self._body = orjson.dumps(document)

    async def get(self, asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG002 - all see the same
        return EndpointResponse(self._body)
