"""The models of the server for clients of Ollama: /api/tags, /api/show, /api/ps and /api/version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from twofold.api.body import DateTime, NonNegativeInt, ReplyObject, RequestObject, only
from twofold.api.fields import MISSING, FieldError
from twofold.api.ollama.replies import date_time
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.generating import MODEL
from twofold.server.http.status import VersionReply
from twofold.server.models.registry import LATEST, ServedModel
from twofold.server.openapi.route import RequestRule, get, post

API_VERSION: Final = "0.13.5"
"""The version of Ollama with this API; clients read it to know which fields they may send."""
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
    """Properties of a model's file; they are empty until it was read."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: Sequence[str] = ()
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: NonNegativeInt | UnsetType = UNSET
    embedding_length: NonNegativeInt | UnsetType = UNSET


class OllamaListed(ReplyObject, kw_only=True):
    """A model in a list. The digest is of the model's name and its file's time: hashing gigabytes takes too long."""

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
    """A loaded model; ``size`` is its memory in bytes."""

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


@get("/api/version")
async def ollama_version(_: EndpointRequest) -> VersionReply:
    """Returns the version of Ollama with this API."""
    return VersionReply(API_VERSION)


@get("/api/tags")
async def ollama_tags(asked: EndpointRequest) -> OllamaTags:
    """Lists the models.

    All of them, loaded or not, under each of their names."""
    models = [
        OllamaTag(**_listed(name, model), modified_at=_time(model.created), capabilities=_capabilities(model))
        for model in asked.services.registry.models
        for name in model.names
    ]
    return OllamaTags(models)


@get("/api/ps")
async def ollama_loaded(asked: EndpointRequest) -> OllamaProcesses:
    """Lists the loaded models."""
    now = datetime.now(UTC)
    models = [
        OllamaProcess(
            **_listed(model.names[0], model) | {"size": model.bytes},
            expires_at=date_time(NEVER if (left := model.unloads_in_s) is None else now + timedelta(seconds=left)),
            context_length=model.context or 0,
        )
        for model in asked.services.registry.models
        if model.state == "ready"
    ]
    return OllamaProcesses(models)


@post(
    "/api/show",
    body=OllamaShowRequest,
    examples={"plain": MODEL},
    rules=(RequestRule("model is required.", "model", MISSING),),
    failures=(404,),
)
async def ollama_show(asked: EndpointRequest) -> OllamaModel:
    """Describes a model.

    Raises ModelNotFoundError with the closest name."""
    request = await asked.read(OllamaShowRequest.read)
    name = request.model or request.name
    if not name:
        raise FieldError("model is required.", param="model", code=MISSING)
    return _shown(asked.services.registry.find(name, exactly=True))


def _shown(model: ServedModel) -> OllamaModel:
    reading = model.reading
    license_name = None if reading is None else reading.metadata.get("general.license")
    return OllamaModel(
        details=_details(model),
        model_info={} if reading is None else {**reading.metadata, "general.parameter_count": reading.parameters},
        capabilities=_capabilities(model),
        modified_at=_time(model.created),
        template="" if reading is None else reading.tokenizer.chat_template or "",
        modelfile=f"FROM {model.names[0]}\n",
        license=license_name if isinstance(license_name, str) else UNSET,
    )


def _listed(name: str, model: ServedModel) -> dict[str, Any]:
    """The fields of ``OllamaListed``."""
    tagged = name if ":" in name.rpartition("/")[2] else name + LATEST
    identity = f"{model.names[0]}\n{model.created}"
    return {
        "name": tagged,
        "model": tagged,
        "size": model.bytes if model.reading is None else model.reading.nbytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: ServedModel) -> OllamaDetails:
    reading = model.reading
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


def _capabilities(model: ServedModel) -> Capabilities:
    """The features of a model, in Ollama's words."""
    found: Capabilities = ["completion", "embedding"]
    reading = model.reading
    if reading is not None:
        found += ["tools"] if reading.tokenizer.has_chat_template else []
        found += ["thinking"] if reading.format.thinking is not None else []
        found += ["insert"] if reading.tokenizer.infill is not None else []
    return found


def _size(parameters: int) -> str:
    """A number of parameters as Ollama writes it: 1.5B, 134.52M."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.2f}M" if parameters >= 1e6 else f"{parameters / 1e3:.2f}K"


def _time(seconds: int) -> str:
    return date_time(datetime.fromtimestamp(seconds, UTC))


ROUTES: Final = (ollama_version, ollama_tags, ollama_loaded)
