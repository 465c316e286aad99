"""Interfaces between the HTTP process and the models."""

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
    """A model that the server offers. ``names`` are those that requests may use; the first one is its own.

    created   seconds since 1970 of its file
    bytes     of its weights, its KV cache and its swap space; of its file until it was loaded
    kv_bytes  of its KV cache; None until it was loaded
    reading   its file without the weights; None until it was read
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
    """The present use of a model. Times are in seconds.

    running, waiting  requests
    idle_s            since its last request ended; None while it is in use or not loaded
    unloads_in_s      until it is unloaded because it is idle; None: it stays until another model needs its memory
    error             why it could not be loaded
    """

    entry: ModelEntry
    running: int
    waiting: int
    idle_s: float | None
    unloads_in_s: float | None
    error: str | None


@dataclass(slots=True)
class DispatchHandle:
    """How one job went through a model's processes.

    retries   times that it was resubmitted to the next process, because one ended before its first delta
    """

    retries: int = 0
    _left: asyncio.Future[RequestOutput | None] | None = None

    def leave(self) -> asyncio.Future[RequestOutput | None]:
        """Aborts the job; the future gets its output so far, None if that is unknown."""
        self._left = asyncio.get_running_loop().create_future()
        return self._left

    async def remains(self, limit_s: float) -> RequestOutput | None:
        """The output of an aborted job; None for any other job, and if it does not arrive in time."""
        if self._left is None:
            return None
        done, _ = await asyncio.wait({self._left}, timeout=limit_s)
        return self._left.result() if done else None


class ServedModel(Protocol):
    """A loaded model. It stays loaded while it is leased."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def identity(self) -> str:
        """What its completions depend on beside the request: its file and its options."""
        ...

    @property
    def ceilings(self) -> StepPredictor | None:
        """Predicts its steps on this machine; None until that was measured."""
        ...

    @property
    def queued(self) -> int:
        """Requests that wait in its queue."""
        ...

    def run(self, request: EngineRequest, passage: DispatchHandle | None = None) -> AsyncGenerator[OutputDelta, None]:
        """Runs a request; the last delta has its whole output. Leaving the iterator aborts it; ``passage`` then gets
        its output so far.

        Raises TwofoldError: BusyError if it waited too long, WorkerError if the model's process ended after the first
        delta (before that, the request is resubmitted to the next process).
        """
        ...


class ModelRegistry(Protocol):
    """All models of a server."""

    def entries(self) -> Sequence[ModelEntry]: ...

    def lease(self, name: str | None, *, keep_s: float | None = None) -> AbstractAsyncContextManager[ServedModel]:
        """The model with this name or alias, the first one for None; loads it if necessary. Afterwards it stays loaded
        for ``keep_s`` seconds without use, if below 0 without limit; None takes the server's setting.

        Raises ModelNotFoundError with the closest name, BusyError if there is no memory for it now.
        """
        ...

    def uses(self) -> Sequence[ModelUse]:
        """The present use of each model."""
        ...

    async def load(self, name: str) -> ModelUse:
        """Loads a model if necessary. Raises what ``lease`` raises."""
        ...

    async def unload(self, name: str) -> ModelUse:
        """Unloads a model: now if nothing uses it, else when its last request has ended. Raises ModelNotFoundError."""
        ...


class EngineObserver(Protocol):
    """Receives the reports of the engines of all models, on the event loop."""

    def on_step(self, model: str, report: StepReport) -> None: ...

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None: ...

    def on_restart(self, model: str) -> None:
        """The model's process ended unexpectedly and is restarted."""
        ...
