"""GET /openapi.json: the document, made once."""

from __future__ import annotations

import orjson

from twofold.serve.http.endpoints import Answer, EndpointRequest


class DocumentEndpoint:
    """Gives a document out."""

    def __init__(self, document: object) -> None:
        self._body = orjson.dumps(document)

    async def get(self, asked: EndpointRequest) -> Answer:  # noqa: ARG002 - all see the same
        return Answer(body=self._body)
