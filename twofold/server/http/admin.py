"""GET /v1/twofold/models and its actions: loading and unloading of models, and shutdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twofold.core.errors import ForbiddenError
from twofold.server.base import ModelRegistry, ModelUse
from twofold.server.http.endpoints import EndpointRequest


class AdminEndpoint:
    """Requires a key with admin rights if keys are required. ``stop`` shuts the server down as SIGTERM does."""

    def __init__(self, hub: ModelRegistry, stop: Callable[[], None]) -> None:
        self._hub = hub
        self._stop = stop

    async def list(self, asked: EndpointRequest) -> dict[str, Any]:
        _check(asked)
        return {"object": "list", "data": [_use(use) for use in self._hub.uses()]}

    async def load(self, asked: EndpointRequest) -> dict[str, Any]:
        """Responds once the model is loaded."""
        _check(asked)
        return _use(await self._hub.load(asked.path["model"]))

    async def unload(self, asked: EndpointRequest) -> dict[str, Any]:
        """Responds once the model is unloaded, or at once if requests use it: it is unloaded when they have ended."""
        _check(asked)
        return _use(await self._hub.unload(asked.path["model"]))

    async def shutdown(self, asked: EndpointRequest) -> dict[str, Any]:
        """Responds before the server ends: requests in progress may finish within --shutdown-timeout."""
        _check(asked)
        self._stop()
        return {"status": "stopping"}


def _check(asked: EndpointRequest) -> None:
    if not asked.context.caller.admin:
        raise ForbiddenError("This key has no admin rights.", hint="twofold keys add NAME --admin makes one.")


def _use(use: ModelUse) -> dict[str, Any]:
    entry = use.entry
    return {
        "id": entry.names[0],
        "object": "twofold.model",
        "names": list(entry.names),
        "state": entry.state,
        "bytes": entry.bytes,
        "context": entry.context,
        "running": use.running,
        "waiting": use.waiting,
        "idle_s": use.idle_s,
        "unloads_in_s": use.unloads_in_s,
        "error": use.error,
    }
