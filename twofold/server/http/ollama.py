"""Ollama's /api/tags, /api/show, /api/ps and /api/version: the models of the server."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from twofold.api.body import DateTime, NonNegativeInt, ReplyObject, RequestObject, only
from twofold.api.fields import MISSING, FieldError
from twofold.api.ollama.replies import date_time
from twofold.server.base import ModelEntry, ModelRegistry
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.status import VersionReply
from twofold.server.models.named_models import unknown_model
from twofold.server.models.registry import LATEST

API_VERSION: Final = "0.13.5"
"""The version of Ollama with this API; clients read it to know what they may send."""
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Expiry of a model that stays loaded until another one needs its memory."""


Capabilities: TypeAlias = list[Literal["completion", "embedding", "tools", "thinking", "insert"]]


class OllamaShowRequest(RequestObject):
    """The body of /api/show; ``name`` is the older name of ``model``, and one of them is required."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False
    system: Annotated[Any, only("")] = None
    template: Annotated[Any, only("")] = None
    options: Annotated[Any, only({})] = None


class OllamaDetails(ReplyObject, kw_only=True):
    """What a model's file is; lengths are unknown until it was read."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: Sequence[str] = ()
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: NonNegativeInt | UnsetType = UNSET
    embedding_length: NonNegativeInt | UnsetType = UNSET


class OllamaListed(ReplyObject, kw_only=True):
    """A model in a list. The digest distinguishes files by name and time: hashing gigabytes takes too long."""

    name: str
    model: str
    size: NonNegativeInt
    digest: str
    details: OllamaDetails


class OllamaTag(OllamaListed, kw_only=True):
    """A model, loaded or not."""

    modified_at: DateTime
    capabilities: Capabilities


class OllamaTags(ReplyObject):
    """All models under each of their names."""

    models: list[OllamaTag]


class OllamaProcess(OllamaListed, kw_only=True):
    """A loaded model; ``size`` is its memory."""

    expires_at: DateTime
    size_vram: NonNegativeInt = 0
    context_length: NonNegativeInt


class OllamaProcesses(ReplyObject):
    """The loaded models."""

    models: list[OllamaProcess]


class OllamaModel(ReplyObject, kw_only=True):
    """A model's file and template."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: Capabilities
    modified_at: DateTime
    template: str
    modelfile: str
    parameters: str = ""
    license: str | UnsetType = UNSET


class OllamaEndpoint:
    """Handlers over the models of a server."""

    def __init__(self, hub: ModelRegistry) -> None:
        self._hub = hub

    async def version(self, asked: EndpointRequest) -> VersionReply:  # noqa: ARG002
        return VersionReply(API_VERSION)

    async def tags(self, asked: EndpointRequest) -> OllamaTags:  # noqa: ARG002
        """All models, loaded or not, under each of their names."""
        models = [
            OllamaTag(**_listed(name, entry), modified_at=_time(entry.created), capabilities=_capabilities(entry))
            for entry in self._hub.entries()
            for name in entry.names
        ]
        return OllamaTags(models)

    async def ps(self, asked: EndpointRequest) -> OllamaProcesses:  # noqa: ARG002
        """The models that are loaded."""
        now = datetime.now(UTC)
        models = [
            OllamaProcess(
                **_listed(use.entry.names[0], use.entry) | {"size": use.entry.bytes},
                expires_at=date_time(NEVER if use.unloads_in_s is None else now + timedelta(seconds=use.unloads_in_s)),
                context_length=use.entry.context or 0,
            )
            for use in self._hub.uses()
            if use.entry.state == "ready"
        ]
        return OllamaProcesses(models)

    async def show(self, asked: EndpointRequest) -> OllamaModel:
        """One model. Raises ModelNotFoundError with the closest name."""
        request = await asked.read(OllamaShowRequest.read)
        name = request.model or request.name
        if not name:
            raise FieldError("model is required.", param="model", code=MISSING)
        entries = {name: entry for entry in self._hub.entries() for name in entry.names}
        entry = entries.get(name) or entries.get(name.removesuffix(LATEST))
        if entry is None:
            raise unknown_model(name, entries)
        return _shown(entry)


def _shown(entry: ModelEntry) -> OllamaModel:
    reading = entry.reading
    license_name = None if reading is None else reading.metadata.get("general.license")
    return OllamaModel(
        details=_details(entry),
        model_info={} if reading is None else {**reading.metadata, "general.parameter_count": reading.parameters},
        capabilities=_capabilities(entry),
        modified_at=_time(entry.created),
        template="" if reading is None else reading.tokenizer.chat_template or "",
        modelfile=f"FROM {entry.names[0]}\n",
        license=license_name if isinstance(license_name, str) else UNSET,
    )


def _listed(name: str, entry: ModelEntry) -> dict[str, Any]:
    """The fields of ``OllamaListed``."""
    tagged = name if ":" in name.rpartition("/")[2] else name + LATEST
    identity = f"{entry.names[0]}\n{entry.created}"
    return {
        "name": tagged,
        "model": tagged,
        "size": entry.bytes if entry.reading is None else entry.reading.nbytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(entry),
    }


def _details(entry: ModelEntry) -> OllamaDetails:
    reading = entry.reading
    if reading is None:
        return OllamaDetails()
    return OllamaDetails(
        family=reading.spec.architecture,
        families=[reading.spec.architecture],
        parameter_size=_size(reading.parameters),
        quantization_level=reading.quantization,
        context_length=reading.spec.context_length,
        embedding_length=reading.spec.hidden_size,
    )


def _capabilities(entry: ModelEntry) -> Capabilities:
    """What requests may ask of a model, in Ollama's words."""
    found: Capabilities = ["completion", "embedding"]
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
    return date_time(datetime.fromtimestamp(seconds, UTC))
