"""GET /: the web page for browsers, information about the server as JSON for other clients. GET /web/…: its files."""

from __future__ import annotations

from typing import Final, Literal

from twofold.api.body import NonEmptyText, NonNegativeInt, ReplyObject, encode
from twofold.core.errors import NotFoundError
from twofold.host.versions import twofold_version
from twofold.server.edge.refusals import Header
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.models.registry import ModelState
from twofold.server.openapi.route import get, schema_of
from twofold.web.page import PAGE_HEADERS, WebFile, is_page

APIS: Final = (("openai", "/v1"), ("anthropic", ""), ("ollama", ""))
"""For each API, the path to add to the server's URL."""
LINKS: Final = ("/openapi.json", "/v1/models", "/metrics", "/health")
VARY: Final[Header] = (b"vary", b"accept, accept-encoding")


class RootModel(ReplyObject):
    """A model of the server."""

    id: NonEmptyText
    state: ModelState
    context: NonNegativeInt | None


class RootReply(ReplyObject, kw_only=True):
    """The server's models, base URLs of its APIs, and pages."""

    name: Literal["Twofold"] = "Twofold"
    version: NonEmptyText
    models: list[RootModel]
    apis: dict[str, NonEmptyText]
    links: dict[str, NonEmptyText]


@get("/", reply=RootReply, contents={"text/html": schema_of(str)})
async def get_root(asked: EndpointRequest) -> EndpointResponse:
    """The web page for browsers, which needs no key; for programs the server's models and how to connect, as JSON."""
    page = asked.services.page
    if page is not None and is_page("/", asked.headers.get("accept", "")):
        return _response(asked, page.index)
    url = f"{asked.scope.get('scheme', 'http')}://{asked.headers.get('host', 'localhost')}"
    reply = RootReply(
        version=twofold_version(),
        models=[RootModel(model.names[0], model.state, model.context) for model in asked.services.registry.models],
        apis={api: url + path for api, path in APIS},
        links={path: url + path for path in LINKS},
    )
    return EndpointResponse(encode(reply), headers=(VARY,))


async def get_file(asked: EndpointRequest) -> EndpointResponse:
    """A file of the page. Raises NotFoundError."""
    page = asked.services.page
    assert page is not None, "the route is the page's"
    found = page.files.get(asked.path["file"])
    if found is None or asked.path["version"] != page.version:
        raise NotFoundError("The page has no such file.", hint="Reload the page: the server has another version.")
    return _response(asked, found)


def _response(asked: EndpointRequest, file: WebFile) -> EndpointResponse:
    """The file, as gzip if the browser takes it; 304 if it has it."""
    headers = ((b"etag", file.etag), (b"cache-control", file.cache_control), VARY, *PAGE_HEADERS)
    if file.etag.decode() in asked.headers.get("if-none-match", ""):
        return EndpointResponse(status=304, content_type=file.content_type, headers=headers)
    if "gzip" not in asked.headers.get("accept-encoding", ""):
        return EndpointResponse(file.body, content_type=file.content_type, headers=headers)
    packed = (*headers, (b"content-encoding", b"gzip"))
    return EndpointResponse(file.packed, content_type=file.content_type, headers=packed)
