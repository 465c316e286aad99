"""The models of the server: GET /v1/models for clients of OpenAI and of Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from twofold.api.body import DateTime, NonNegativeInt, ReplyObject
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.generating import VERSION
from twofold.server.models.named_models import unknown_model
from twofold.server.models.registry import ModelState, ServedModel
from twofold.server.openapi.route import OperationLink, get

OWNER: Final = "twofold"


class ModelReply(ReplyObject, kw_only=True):
    """A model by one of its names; ``root`` is its first name."""

    id: str
    object: Literal["model"] = "model"
    created: NonNegativeInt
    owned_by: str = OWNER
    root: str
    parent: None = None
    max_model_len: NonNegativeInt | None
    state: ModelState


class ModelList(ReplyObject, kw_only=True):
    """All models under each of their names."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


class AnthropicModel(ReplyObject, kw_only=True):
    """A model as Anthropic's clients read it."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: DateTime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: NonNegativeInt | None
    max_tokens: NonNegativeInt | None


class AnthropicModelList(ReplyObject):
    """All models under each of their names, as Anthropic's clients read them."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


@get(
    "/v1/models",
    parameters=(VERSION,),
    links=(OperationLink("get", "getModel", {"model": "$response.body#/data/0/id"}),),
)
async def list_models(asked: EndpointRequest) -> ModelList | AnthropicModelList:
    """Lists the models; with anthropic-version in Anthropic's format."""
    models = [(name, model) for model in asked.services.registry.models for name in model.names]
    if _anthropic(asked):
        return _anthropic_list(models)
    return ModelList(data=[_openai(name, model) for name, model in models])


@get("/v1/models/{model:path}", parameters=(VERSION,))
async def get_model(asked: EndpointRequest) -> ModelReply | AnthropicModel:
    """Returns a model.

    Raises ModelNotFoundError with the closest name."""
    wanted = asked.path["model"]
    models = {name: model for model in asked.services.registry.models for name in model.names}
    if wanted not in models:
        raise unknown_model(wanted, models)
    return (_anthropic_model if _anthropic(asked) else _openai)(wanted, models[wanted])


def _anthropic(asked: EndpointRequest) -> bool:
    return "anthropic-version" in asked.headers


def _openai(name: str, model: ServedModel) -> ModelReply:
    return ModelReply(
        id=name, created=model.created, root=model.names[0], max_model_len=model.context, state=model.state
    )


def _anthropic_model(name: str, model: ServedModel) -> AnthropicModel:
    created = datetime.fromtimestamp(model.created, UTC).isoformat(timespec="seconds")
    return AnthropicModel(
        id=name,
        display_name=name,
        created_at=created.replace("+00:00", "Z"),
        max_input_tokens=model.context,
        max_tokens=model.context,
    )


def _anthropic_list(models: Sequence[tuple[str, ServedModel]]) -> AnthropicModelList:
    data = [_anthropic_model(name, model) for name, model in models]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModelList(data, has_more=False, first_id=first, last_id=last)


ROUTES: Final = (list_models, get_model)
