"""GET /v1/twofold/models and its actions: loading and unloading of models, and shutdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.errors import ForbiddenError
from twofold.server.base import ModelRegistry, ModelState, ModelUse
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.status import ServerStatus


class ModelUseReply(ReplyObject, kw_only=True):
    """The state of a model and its requests."""

    id: str
    object: Literal["twofold.model"] = "twofold.model"
    names: Annotated[Sequence[str], Meta(min_length=1)]
    state: ModelState
    bytes: NonNegativeInt
    context: NonNegativeInt | None
    running: NonNegativeInt
    waiting: NonNegativeInt
    idle_s: NonNegativeFloat | None
    unloads_in_s: NonNegativeFloat | None
    error: str | None


class ModelUseList(ReplyObject, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelUseReply]


class AdminEndpoint:
    """Requires a key with admin rights if keys are required. ``stop`` shuts the server down as SIGTERM does."""

    def __init__(self, hub: ModelRegistry, stop: Callable[[], None]) -> None:
        self._hub = hub
        self._stop = stop

    async def list(self, asked: EndpointRequest) -> ModelUseList:
        _check(asked)
        return ModelUseList(data=[_use(use) for use in self._hub.uses()])

    async def load(self, asked: EndpointRequest) -> ModelUseReply:
        """Responds once the model is loaded."""
        _check(asked)
        return _use(await self._hub.load(asked.path["model"]))

    async def unload(self, asked: EndpointRequest) -> ModelUseReply:
        """Responds once the model is unloaded, or at once if requests use it: it is unloaded when they have ended."""
        _check(asked)
        return _use(await self._hub.unload(asked.path["model"]))

    async def shutdown(self, asked: EndpointRequest) -> ServerStatus:
        """Responds before the server ends: requests in progress may finish within --shutdown-timeout."""
        _check(asked)
        self._stop()
        return ServerStatus("stopping")


def _check(asked: EndpointRequest) -> None:
    if not asked.context.caller.admin:
        raise ForbiddenError("This key has no admin rights.", hint="twofold keys add NAME --admin makes one.")


def _use(use: ModelUse) -> ModelUseReply:
    entry = use.entry
    return ModelUseReply(
        id=entry.names[0],
        names=entry.names,
        state=entry.state,
        bytes=entry.bytes,
        context=entry.context,
        running=use.running,
        waiting=use.waiting,
        idle_s=use.idle_s,
        unloads_in_s=use.unloads_in_s,
        error=use.error,
    )
