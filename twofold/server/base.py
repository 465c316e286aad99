"""What the HTTP side knows of the models behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from twofold.api.base import ModelFacts
from twofold.core.report import EngineSnapshot, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.planner.predict.steps import StepPredictor
from twofold.server.models.reading import ModelReading

ModelState = Literal["unloaded", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that the server offers. ``names`` are what requests may call it; the first one is its own.

    created   seconds since 1970 of its file
    bytes     of its weights, its KV cache and its swap space; of its file before it was loaded
    kv_bytes  of its KV cache; None before it was loaded
    reading   its file without the weights, where it was read
    """

    names: tuple[str, ...]
    state: ModelState
    created: int
    context: int | None
    bytes: int
    reading: ModelReading | None = None
    kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ModelUse:
    """How much a model is used. Times are in seconds.

    running, waiting  requests
    idle_s            since its last request ended; None while it is in use or not loaded
    unloads_in_s      until it is unloaded for being idle; None: it stays until another model needs its memory
    error             why it could not be loaded
    """

    entry: ModelEntry
    running: int
    waiting: int
    idle_s: float | None
    unloads_in_s: float | None
    error: str | None


class DispatchHandle:
    """How one job went through a model's processes, for whoever accounts for it.

    retries   how often it was given to a next process, because one ended before it gave anything
    """

    def __init__(self) -> None:
        self.retries = 0
        self._left: asyncio.Future[RequestOutput | None] | None = None

    def leave(self) -> asyncio.Future[RequestOutput | None]:
        """The job ends early; the future is to get what there was of it, None where nobody knows."""
        self._left = asyncio.get_running_loop().create_future()
        return self._left

    async def remains(self, limit_s: float) -> RequestOutput | None:
        """What was computed of a job that ended early; None for any other, and where it is not known in time."""
        if self._left is None:
            return None
        done, _ = await asyncio.wait({self._left}, timeout=limit_s)
        return self._left.result() if done else None


class ServedModel(Protocol):
    """A loaded model. It stays loaded while somebody holds a lease of it."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def identity(self) -> str:
        """What its answers depend on beside the request: its file and how it is run."""
        ...

    @property
    def ceilings(self) -> StepPredictor | None:
        """None until this machine was measured."""
        ...

    @property
    def queued(self) -> int:
        """Requests that were given to it and have not begun to run."""
        ...

    def run(self, request: EngineRequest, passage: DispatchHandle | None = None) -> AsyncGenerator[OutputDelta, None]:
        """Runs a request, delta by delta; the last one carries the whole. Leaving the iterator aborts it; ``passage``
        then gets its output so far.

        Raises TwofoldError: BusyError where it waited too long, WorkerError where the model's process ended after
        the first delta (before that, the request is given to the next process).
        """
        ...


class ModelRegistry(Protocol):
    """All models of a server."""

    def entries(self) -> Sequence[ModelEntry]: ...

    def lease(self, name: str | None, *, keep_s: float | None = None) -> AbstractAsyncContextManager[ServedModel]:
        """The model that has this name or alias, the only or first one for None; loads it where need be. It stays
        loaded for ``keep_s`` seconds without use afterwards, below 0 for ever; None takes the server's own time.

        Raises ModelNotFoundError with the nearest name, BusyError where there is no memory for it now.
        """
        ...

    def uses(self) -> Sequence[ModelUse]:
        """How much each model is used."""
        ...

    async def load(self, name: str) -> ModelUse:
        """Loads a model where need be. Raises what stands in the way, as ``lease``."""
        ...

    async def unload(self, name: str) -> ModelUse:
        """Unloads a model: now if nothing uses it, else when its last request has ended. Raises ModelNotFoundError."""
        ...


class EngineObserver(Protocol):
    """Hears what the engines of all models report, on the event loop."""

    def on_step(self, model: str, report: StepReport) -> None: ...

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None: ...

    def on_restart(self, model: str) -> None:
        """The model's process ended unasked and is started again."""
        ...
