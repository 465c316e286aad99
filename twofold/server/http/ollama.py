"""Ollama's /api/tags, /api/show, /api/ps and /api/version: the models of the server, for Ollama's clients."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from twofold.api.body import RequestObject, only
from twofold.api.fields import MISSING, FieldError
from twofold.server.base import ModelEntry, ModelRegistry
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.models.named_models import unknown_model
from twofold.server.models.registry import LATEST

API_VERSION: Final = "0.13.5"
"""The version of Ollama whose API this is; clients adapt to it."""
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The expiry of a model that stays loaded until another one needs its memory."""


class OllamaShowRequest(RequestObject):
    """The body of /api/show; ``name`` is the older name of ``model``. One of them is required."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False
    system: Annotated[Any, only("")] = None
    template: Annotated[Any, only("")] = None
    options: Annotated[Any, only({})] = None


class OllamaEndpoint:
    """Handlers over the models of a server."""

    def __init__(self, hub: ModelRegistry) -> None:
        self._hub = hub

    async def version(self, asked: EndpointRequest) -> dict[str, Any]:  # noqa: ARG002 - of a handler
        return {"version": API_VERSION}

    async def tags(self, asked: EndpointRequest) -> dict[str, Any]:  # noqa: ARG002
        """All models, loaded or not, under each of their names."""
        models = [
            {**_listed(name, entry), "modified_at": _time(entry.created), "capabilities": _capabilities(entry)}
            for entry in self._hub.entries()
            for name in entry.names
        ]
        return {"models": models}

    async def ps(self, asked: EndpointRequest) -> dict[str, Any]:  # noqa: ARG002
        """The models that are loaded."""
        now = datetime.now(UTC)
        models = [
            {
                **_listed(use.entry.names[0], use.entry),
                "size": use.entry.bytes,
                "expires_at": _written(
                    NEVER if use.unloads_in_s is None else now + timedelta(seconds=use.unloads_in_s)
                ),
                "size_vram": 0,
                "context_length": use.entry.context or 0,
            }
            for use in self._hub.uses()
            if use.entry.state == "ready"
        ]
        return {"models": models}

    async def show(self, asked: EndpointRequest) -> dict[str, Any]:
        """The description of one model. Raises ModelNotFoundError with the closest name."""
        request = await asked.read(OllamaShowRequest.read)
        name = request.model or request.name
        if not name:
            raise FieldError("model is required.", param="model", code=MISSING)
        entries = {name: entry for entry in self._hub.entries() for name in entry.names}
        entry = entries.get(name) or entries.get(name.removesuffix(LATEST))
        if entry is None:
            raise unknown_model(name, entries)
        return _shown(entry)


def _shown(entry: ModelEntry) -> dict[str, Any]:
    reading = entry.reading
    found: dict[str, Any] = {
        "details": _details(entry),
        "model_info": {} if reading is None else {**reading.metadata, "general.parameter_count": reading.parameters},
        "capabilities": _capabilities(entry),
        "modified_at": _time(entry.created),
        "template": "" if reading is None else reading.tokenizer.chat_template or "",
        "modelfile": f"FROM {entry.names[0]}\n",
        "parameters": "",
    }
    licence = None if reading is None else reading.metadata.get("general.license")
    return found | ({"license": licence} if isinstance(licence, str) else {})


def _listed(name: str, entry: ModelEntry) -> dict[str, Any]:
    """A model in a list. Its digest is of its name and its file's time: hashing gigabytes takes too long."""
    tagged = name if ":" in name.rpartition("/")[2] else name + LATEST
    identity = f"{entry.names[0]}\n{entry.created}"
    return {
        "name": tagged,
        "model": tagged,
        "size": entry.bytes if entry.reading is None else entry.reading.nbytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(entry),
    }


def _details(entry: ModelEntry) -> dict[str, Any]:
    """The details of a model; only its format until its file was read."""
    reading = entry.reading
    family = "" if reading is None else reading.spec.architecture
    found: dict[str, Any] = {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if reading is None else _size(reading.parameters),
        "quantization_level": "" if reading is None else reading.quantization,
    }
    if reading is not None:
        found |= {"context_length": reading.spec.context_length, "embedding_length": reading.spec.hidden_size}
    return found


def _capabilities(entry: ModelEntry) -> list[str]:
    """What the model supports, under Ollama's names."""
    found = ["completion", "embedding"]
    reading = entry.reading
    if reading is not None:
        found += ["tools"] if reading.tokenizer.has_chat_template else []
        found += ["thinking"] if reading.format.thinking is not None else []
        found += ["insert"] if reading.tokenizer.infill is not None else []
    return found


def _size(parameters: int) -> str:
    """As Ollama writes it: 1.5B, 134.52M."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.2f}M" if parameters >= 1e6 else f"{parameters / 1e3:.2f}K"


def _time(seconds: int) -> str:
    return _written(datetime.fromtimestamp(seconds, UTC))


def _written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
