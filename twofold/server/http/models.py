"""GET /v1/models for clients of OpenAI and of Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from twofold.api.body import DateTime, NonNegativeInt, ReplyObject
from twofold.server.base import ModelEntry, ModelRegistry, ModelState
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.models.named_models import unknown_model

OWNER: Final = "twofold"


class ModelReply(ReplyObject, kw_only=True):
    """A model under one of its names; ``root`` is its first name."""

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


class ModelsEndpoint:
    """The list, and single models by any of their names."""

    def __init__(self, hub: ModelRegistry) -> None:
        self._hub = hub

    async def list(self, asked: EndpointRequest) -> ModelList | AnthropicModelList:
        models = [(name, entry) for entry in self._hub.entries() for name in entry.names]
        if _anthropic(asked):
            return _anthropic_list(models)
        return ModelList(data=[_openai(name, entry) for name, entry in models])

    async def get(self, asked: EndpointRequest) -> ModelReply | AnthropicModel:
        """Raises ModelNotFoundError with the closest name."""
        wanted = asked.path["model"]
        models = {name: entry for entry in self._hub.entries() for name in entry.names}
        if wanted not in models:
            raise unknown_model(wanted, models)
        return (_anthropic_model if _anthropic(asked) else _openai)(wanted, models[wanted])


def _anthropic(asked: EndpointRequest) -> bool:
    return "anthropic-version" in asked.headers


def _openai(name: str, entry: ModelEntry) -> ModelReply:
    return ModelReply(
        id=name, created=entry.created, root=entry.names[0], max_model_len=entry.context, state=entry.state
    )


def _anthropic_model(name: str, entry: ModelEntry) -> AnthropicModel:
    created = datetime.fromtimestamp(entry.created, UTC).isoformat(timespec="seconds")
    return AnthropicModel(
        id=name,
        display_name=name,
        created_at=created.replace("+00:00", "Z"),
        max_input_tokens=entry.context,
        max_tokens=entry.context,
    )


def _anthropic_list(models: Sequence[tuple[str, ModelEntry]]) -> AnthropicModelList:
    data = [_anthropic_model(name, entry) for name, entry in models]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModelList(data, has_more=False, first_id=first, last_id=last)
