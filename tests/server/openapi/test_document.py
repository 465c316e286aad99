"""The published document agrees with the routes and the readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final, get_args

import jsonschema_rs
import pytest
from msgspec import to_builtins

from tests.server.openapi.explore import breaks
from tests.server.openapi.readers import Seen, full, named
from twofold.api.anthropic.messages import CountTokensRequest, MessagesRequest
from twofold.api.batch.lines import ENDPOINTS as BATCHED
from twofold.api.fields import ignoring
from twofold.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
)
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.api.openai.vectors import EmbeddingRequest, RerankRequest, ScoreRequest
from twofold.core.errors import TwofoldError
from twofold.core.params import StructuredOutputsParams
from twofold.server.batches.record import BatchEndpoint, BatchOrder
from twofold.server.files import form
from twofold.server.openapi.document import document
from twofold.server.openapi.route import FIRST_MODEL, Method, schema_of
from twofold.server.planning.bodies import CurveRequest, ExplainRequest, PlanRequest, PriceRequest
from twofold.server.routes import ROUTES, dialect_of

DOCUMENT: Final = document(ROUTES, ["tiny"], dialect_of, version="1.0", keyed=True)
COMPONENTS: Final = DOCUMENT["components"]["schemas"]
READERS: Final[dict[str, Callable[[object], object]]] = {
    "ChatRequest": ChatRequest.read,
    "CompletionRequest": CompletionRequest.read,
    "EmbeddingRequest": EmbeddingRequest.read,
    "RerankRequest": RerankRequest.read,
    "ScoreRequest": ScoreRequest.read,
    "ResponsesRequest": ResponsesRequest.read,
    "InputTokensRequest": InputTokensRequest.read,
    "MessagesRequest": MessagesRequest.read,
    "CountTokensRequest": CountTokensRequest.read,
    "OllamaChatRequest": OllamaChatRequest.read,
    "OllamaGenerateRequest": OllamaGenerateRequest.read,
    "OllamaEmbedRequest": OllamaEmbedRequest.read,
    "OllamaEmbeddingRequest": OllamaEmbeddingRequest.read,
    "BatchOrder": BatchOrder.read,
    "ExplainRequest": ExplainRequest.read,
    "CurveRequest": CurveRequest.read,
    "PriceRequest": PriceRequest.read,
    "PlanRequest": PlanRequest.read,
}
FREE_MODEL: Final = document(ROUTES, ["tiny"], dialect_of, version="1.0", any_model=True)["components"]["schemas"]
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    1,
    -1,
    2.0,
    0.5,
    1e300,
    "",
    "x",
    "x" * 600,
    [],
    [1],
    ["x"],
    [None],
    {},
    {"x": 1},
    {"1": 1},
)
NEEDED: Final[dict[str, dict[str, Any]]] = {
    "ResponsesRequest": {"input": "a"},
    "InputTokensRequest": {"input": "a"},
    "ScoreRequest": {"text_1": "a", "text_2": "b"},
}
"""What only a rule asks for."""
BESIDE: Final[dict[str, dict[str, Any]]] = {"stream_options": {"stream": True}}
"""Fields that a reader needs before it checks a given field."""
_FUNCTION: Final = {"type": "function", "name": "f"}
_KEPT: Final = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "5m"}}
_USED: Final = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [_KEPT]}]},
]
_CHOSEN: Final = {
    "tools": [_FUNCTION],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [_FUNCTION]},
}
APART: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "ResponsesRequest": (_CHOSEN,),
    "InputTokensRequest": (_CHOSEN,),
    "MessagesRequest": ({"messages": _USED},),
    "CountTokensRequest": ({"messages": _USED},),
}
"""Bodies for fields that are checked only if another part of the body is valid."""


def test_the_document_has_every_route_once() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert len(ROUTES) == len(described)
    assert {(route.method, route.template) for route in ROUTES} == described
    assert {method for method, _ in described} <= set(get_args(Method))
    assert FIRST_MODEL not in json.dumps(DOCUMENT)
    assert tuple(BATCHED) == get_args(BatchEndpoint)


def test_operations_have_names_of_their_own() -> None:
    names = [route.id for route in ROUTES]
    assert len(names) == len(set(names))
    linked = {link.operation for route in ROUTES for link in route.links}
    assert linked <= set(names)


def test_the_document_is_valid_and_every_reference_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    used = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert used <= set(COMPONENTS)
    assert set(COMPONENTS) <= used
    for name, schema in COMPONENTS.items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert _closed(schema, name) == []


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_what_its_schema_allows_and_nothing_else(name: str) -> None:
    """Bodies with one changed value: accepted ones are valid, and valid ones break a rule if they are refused."""
    found = [route for route in ROUTES if f"/{name}" in json.dumps(schema_of(route.request_type or {}))]
    dialect, rules = dialect_of(found[0].path), found[0].rules
    validator = jsonschema_rs.Draft202012Validator({**FREE_MODEL[name], "components": {"schemas": FREE_MODEL}})
    read, refused = 0, 0
    for body in (changed for whole in _bodies(name) for changed in _changed(whole)):
        error = _refusal(name, body)
        if error is None:
            read += 1
            assert validator.is_valid(body), body
        elif validator.is_valid(body):
            told = to_builtins(dialect.error(error, "req_1"))["error"]
            assert any(breaks(told, asdict(rule)) for rule in rules), f"{error} {body}"
        else:
            refused += 1
    assert read > 10
    assert refused > 10


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_what_is_in_no_schema(name: str) -> None:
    with pytest.raises(TwofoldError, match="not a known field"):
        READERS[name]({**_least(name), "unheard_of": 1})


def test_forms_are_those_of_the_parameters() -> None:
    names: Seen = named(COMPONENTS["ChatRequest"]["properties"]["structured_outputs"], COMPONENTS)
    assert names[""] == set(StructuredOutputsParams.__dataclass_fields__)


def test_the_form_of_an_upload_has_the_fields_of_its_reader() -> None:
    upload = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(upload["properties"]) == set(form.KNOWN)


@pytest.mark.parametrize(
    ("path", "example"),
    [
        pytest.param(path, example["value"], id=f"{path} {name}")
        for path, methods in DOCUMENT["paths"].items()
        for body in [methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})]
        for name, example in body.get("examples", {}).items()
    ],
)
def test_examples_fit_their_schemas(path: str, example: Any) -> None:
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole)
    validator.validate(example)
    assert not validator.is_valid({**example, "unheard_of": 1})


def test_without_keys_none_is_required() -> None:
    without = document(ROUTES, ["tiny", "other"], dialect_of, version="1.0", any_model=True)
    assert "security" not in without
    assert "securitySchemes" not in without["components"]
    assert "enum" not in without["components"]["schemas"]["ModelName"]
    assert DOCUMENT["paths"]["/health"]["get"]["security"] == []


def _least(name: str) -> dict[str, Any]:
    """A body with required fields only."""
    schema = COMPONENTS[name]
    least = {field: next(full(schema["properties"][field], COMPONENTS)) for field in schema.get("required", ())}
    return {**least, **NEEDED.get(name, {})}


def _bodies(name: str) -> Iterator[dict[str, Any]]:
    """Bodies with the required fields and one other: an error in a further field would hide it."""
    least = _least(name)
    for field, inner in COMPONENTS[name]["properties"].items():
        for value in full(inner, COMPONENTS):
            yield {**least, field: value, **BESIDE.get(field, {})}
    for more in APART.get(name, ()):
        yield {**least, **more}


def _refusal(name: str, body: object) -> TwofoldError | None:
    """The error of the reader, which omits objects of unknown types as the server does."""
    try:
        with ignoring(unknown=False):
            READERS[name](body)
    except TwofoldError as error:
        return error
    return None


def _changed(value: Any) -> Iterator[Any]:
    """The value, and copies of it with one part replaced."""
    yield value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for other in (*VALUES, *_changed(part)):
            copy: Any = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = other
            yield copy


def _closed(schema: Any, place: str) -> list[str]:
    """Places of objects that declare fields but do not exclude further ones."""
    if not isinstance(schema, dict | list):
        return []
    if isinstance(schema, list):
        return [found for one in schema for found in _closed(one, place)]
    found = [inner for name, one in schema.items() for inner in _closed(one, f"{place}.{name}")]
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema:
        found.append(place)
    return found
