"""The OpenAPI 3.1 document of a server: every operation, put together from data.

Schemas say what the readers take, field by field; what they ask for beyond that is in each operation's description, and
as data under ``x-rules``. Where a request has an example, it is answered with a 200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from twofold.api.base import Dialect
from twofold.api.batch.endpoints import ENDPOINTS
from twofold.api.body import MAX_MODEL_CHARS
from twofold.server.openapi import (
    anthropic_replies,
    events,
    generating,
    ollama,
    openai_replies,
    responses_replies,
    stored_replies,
)
from twofold.server.openapi.failures import ANTHROPIC_ERROR, OPENAI_ERROR, REQUEST_IDS, failures
from twofold.server.openapi.operation import ApiOperation, Body, OperationLink
from twofold.server.openapi.shapes import only, said, text, told, word
from twofold.server.openapi.stored import STORED

ABOUT: Final = (
    "Language models behind OpenAI's, Anthropic's and Ollama's APIs. Bodies are JSON in UTF-8; an optional field that "
    "is null counts as absent. Errors have the form of the path's API, in at most 4 KiB."
)
STATIC: Final = {
    "Usage": openai_replies.USAGE,
    "ChatCompletion": openai_replies.CHAT_COMPLETION,
    "ChatChunk": events.CHAT_CHUNK,
    "Completion": openai_replies.TEXT_COMPLETION,
    "CompletionChunk": events.TEXT_CHUNK,
    "Embeddings": openai_replies.EMBEDDINGS,
    "Reranked": openai_replies.RERANKED,
    "Scores": openai_replies.SCORES,
    "Model": openai_replies.MODEL,
    "Models": openai_replies.MODELS,
    "ModelUse": openai_replies.MODEL_USE,
    "ModelUses": openai_replies.MODEL_USES,
    "Stopping": told({"status": only("stopping")}),
    "Tokens": openai_replies.TOKENS,
    "Detokenized": openai_replies.DETOKENIZED,
    "TokenizerInfo": openai_replies.TOKENIZER,
    "ResponseItem": responses_replies.ITEM,
    "Response": responses_replies.RESPONSE,
    "ResponseDeleted": responses_replies.DELETED,
    "ResponseItems": responses_replies.ITEMS,
    "ResponseTokens": responses_replies.INPUT_TOKENS,
    "Message": anthropic_replies.MESSAGE,
    "MessageTokens": anthropic_replies.COUNTED,
    "AnthropicModel": anthropic_replies.MODEL,
    "AnthropicModels": anthropic_replies.MODELS,
    "File": stored_replies.FILE,
    "FilePage": stored_replies.paged("File"),
    "FileDeleted": stored_replies.FILE_DELETED,
    "Batch": stored_replies.batch(ENDPOINTS),
    "BatchPage": stored_replies.paged("Batch"),
    "RequestRecord": stored_replies.REQUEST,
    "Used": stored_replies.USED,
    "Root": stored_replies.ROOT,
    "Health": told({"status": only("ok")}),
    "Ready": told({"status": only("ready")}),
    "Version": told({"version": text(1)}),
    **ollama.REPLIES,
    "OpenAIError": OPENAI_ERROR,
    "AnthropicError": ANTHROPIC_ERROR,
}
BEARER: Final = {"type": "http", "scheme": "bearer"}
KEY_HEADER: Final = {"type": "apiKey", "in": "header", "name": "x-api-key"}


def document(
    models: Sequence[str],
    dialect_of: Callable[[str], Dialect],
    *,
    version: str,
    keyed: bool = False,
    any_model: bool = False,
) -> dict[str, Any]:
    """The document of a server that serves these ``models``, the first of them by default.

    keyed       whether it asks for a key
    any_model   whether it takes other names for the first one, too
    """
    name = text(1, MAX_MODEL_CHARS) if any_model else word(*models)
    paths: dict[str, Any] = {}
    for operation in operations(models):
        dialect = dialect_of(operation.path)
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, dialect, keyed)
    components: dict[str, Any] = {
        "schemas": {
            "ModelName": said(name, "A model; if absent, the first model answers."),
            **generating.SCHEMAS,
            **STATIC,
        }
    }
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Twofold", "version": version, "description": ABOUT},
        "paths": paths,
        "components": components,
    }
    if keyed:
        components["securitySchemes"] = {"bearer": BEARER, "header": KEY_HEADER}
        whole["security"] = [{"bearer": []}, {"header": []}]
    return whole


def operations(models: Sequence[str]) -> list[ApiOperation]:
    """All operations of a server that serves these models."""
    return [*generating.operations(models), *STORED]


def _operation(operation: ApiOperation, dialect: Dialect, keyed: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": operation.summary,
        "headers": REQUEST_IDS,
        "content": {kind: {"schema": schema} for kind, schema in operation.answers.items()},
    }
    if operation.links:
        answer["links"] = {link.name: _link(link) for link in operation.links}
    found: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": {"200": answer, **failures(operation, dialect)},
    }
    if operation.rules:
        found["description"] = "\n".join(f"- {rule.says}" for rule in operation.rules)
        found["x-rules"] = [asdict(rule) for rule in operation.rules]
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.body is not None:
        found["requestBody"] = _body(operation.body)
    if operation.is_open and keyed:
        found["security"] = []
    return found


def _body(body: Body) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body.schema}
    if body.examples:
        content["examples"] = {name: {"value": value} for name, value in body.examples.items()}
    return {"required": True, "content": {body.content_type: content}}


def _link(link: OperationLink) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": link.operation}
    if link.parameters:
        found["parameters"] = dict(link.parameters)
    if link.body is not None:
        found["requestBody"] = dict(link.body)
    return found
