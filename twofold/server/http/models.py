"""GET /v1/models, for clients of OpenAI and of Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from twofold.server.base import ModelEntry, ModelRegistry
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.models.named_models import unknown_model

OWNER = "twofold"


class ModelsEndpoint:
    """The list, and single models by any of their names."""

    def __init__(self, hub: ModelRegistry) -> None:
        self._hub = hub

    async def list(self, asked: EndpointRequest) -> dict[str, Any]:
        models = [(name, entry) for entry in self._hub.entries() for name in entry.names]
        if _anthropic(asked):
            return _anthropic_list(models)
        return {"object": "list", "data": [_openai(name, entry) for name, entry in models]}

    async def get(self, asked: EndpointRequest) -> dict[str, Any]:
        """Raises ModelNotFoundError with the closest name."""
        wanted = asked.path["model"]
        models = {name: entry for entry in self._hub.entries() for name in entry.names}
        if wanted not in models:
            raise unknown_model(wanted, models)
        return (_anthropic_model if _anthropic(asked) else _openai)(wanted, models[wanted])


def _anthropic(asked: EndpointRequest) -> bool:
    return "anthropic-version" in asked.headers


def _openai(name: str, entry: ModelEntry) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": OWNER,
        "root": entry.names[0],
        "parent": None,
        "max_model_len": entry.context,
        "state": entry.state,
    }


def _anthropic_model(name: str, entry: ModelEntry) -> dict[str, Any]:
    created = datetime.fromtimestamp(entry.created, UTC).isoformat(timespec="seconds")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": entry.context,
        "max_tokens": entry.context,
    }


def _anthropic_list(models: Sequence[tuple[str, ModelEntry]]) -> dict[str, Any]:
    data = [_anthropic_model(name, entry) for name, entry in models]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}
