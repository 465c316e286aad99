"""GET /: a page for browsers, and the same information as JSON for other clients."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Final, Literal

from twofold.api.body import NonEmptyText, NonNegativeInt, ReplyObject, encode
from twofold.host.versions import twofold_version
from twofold.server.edge.refusals import Header
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.models.registry import ModelRegistry, ModelState

APIS: Final = (
    ("OpenAI", "OPENAI_BASE_URL", "/v1"),
    ("Anthropic", "ANTHROPIC_BASE_URL", ""),
    ("Ollama", "OLLAMA_HOST", ""),
)
"""For each API: its name, the environment variable that its clients read, and the path to add to the server's URL."""
LINKS: Final = (
    ("/openapi.json", "all endpoints, as an OpenAPI document"),
    ("/v1/models", "the models"),
    ("/metrics", "metrics for Prometheus"),
    ("/health", "whether the server runs"),
)
STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem;color-scheme:light dark}"
    "code,pre{font-family:ui-monospace,monospace}"
    "pre{padding:1rem;border:1px solid #8886;border-radius:.5rem;overflow:auto}"
    "td,th{text-align:left;padding:.2rem 1.5rem .2rem 0}"
)
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page may load and run nothing but its own style, which is allowed by its hash."""
VARY: Final[Header] = (b"vary", b"accept")


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


class RootEndpoint:
    """A page with the models of the server and how to use them. It contains no scripts."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry

    async def get(self, asked: EndpointRequest) -> EndpointResponse:
        url = f"{asked.scope.get('scheme', 'http')}://{asked.headers.get('host', 'localhost')}"
        models = [RootModel(model.names[0], model.state, model.context) for model in self._registry.models]
        if "text/html" not in asked.headers.get("accept", ""):
            reply = RootReply(
                version=twofold_version(),
                models=models,
                apis={api.lower(): url + path for api, _, path in APIS},
                links={path: url + path for path, _ in LINKS},
            )
            return EndpointResponse(encode(reply), headers=(VARY,))
        headers = ((b"content-security-policy", POLICY.encode()), VARY)
        return EndpointResponse(_page(models, url).encode(), content_type=b"text/html; charset=utf-8", headers=headers)


def _page(models: list[RootModel], url: str) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(model.id)}</code><td>{escape(model.state)}<td>{_context(model.context)}"
        for model in models
    )
    exports = "\n".join(f"export {variable}={escape(url + path)}" for _, variable, path in APIS)
    links = "".join(f'<li><a href="{path}">{path}</a>: {escape(text)}' for path, text in LINKS)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Twofold</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>Twofold {escape(twofold_version())}</h1><p>An LLM inference server. It runs."
        f"<h2>Models</h2><table><tr><th>Name<th>State<th>Context{rows}</table>"
        f"<h2>Connect a client</h2><pre>{exports}</pre>"
        f"<p>Without keys, use any text as the API key."
        f"<h2>More</h2><ul>{links}</ul></html>"
    )


def _context(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,} tokens"
