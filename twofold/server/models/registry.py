"""All models of a server: loaded on demand, kept while there is memory, unloaded when others need it.

    unloaded → loading → ready      a request leases the model; further requests wait for the same load
    loading  → failed               they get the error; after RETRY_S the next request tries again
    ready    → unloaded             no request leases it, and it was idle for ``idle_unload_s``, an operator unloaded
                                    it, or another model needs its memory and it is the least recently used one
    ready    → loading → ready      its process ended and is started again by ``WorkerModel``

It belongs to the event loop; files are fetched and read on threads. Making a tokenizer of a large vocabulary stops all
threads for up to half a second nevertheless, so files in the cache are read before the server is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twofold.core.clock import MonotonicClock
from twofold.core.errors import BusyError, ResourceError, TwofoldError, WorkerError
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.engine.config import EngineOptions
from twofold.formats.fetch import sources
from twofold.formats.fetch.names import ALIASES
from twofold.host.memory import read_memory
from twofold.host.paths import CacheFolders
from twofold.server.base import EngineObserver, ModelEntry, ModelState, ModelUse
from twofold.server.models.memory import MemoryPlan, plan, room_for
from twofold.server.models.named_models import NamedModel, unknown_model
from twofold.server.models.reading import ModelReading, read_file
from twofold.server.workers.client import RestartPolicy, WorkerModel

RETRY_S: Final = 10.0
"""Time after a failed load in which requests get its error at once."""
BUSY_RETRY_S: Final = 5.0
LATEST: Final = ":latest"
LONGEST_S: Final = 1e7
"""Longest time of a timer: a third of a year."""
SHARE_OF_FREE: Final = 0.9
"""Share of the memory that is free at the start, which models take without a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How models are loaded.

    engine         ``EngineKeywords`` of each
    memory_budget  bytes of all loaded models together; None: a share of the free memory
    accept_any     requests for unknown names get the first model
    sampling       default sampling parameters, which override those of a model's file
    idle_unload_s  idle time after which a model is unloaded; None: never
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    memory_budget: int | None = None
    accept_any: bool = False
    idle_unload_s: float | None = None
    sampling: SamplingDefaults = NONE
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)


class _ModelSlot:
    """A model that the server offers, and its process if it is loaded.

    bytes      are reserved while ``holds`` is set
    leases     requests that use it or wait for it
    reading    is kept when the model is unloaded: making a tokenizer again takes a second
    keep_s     idle time after which it is unloaded, from its last request
    expiry     timer that unloads it
    dismissed  it is unloaded when its last lease ends
    unloading  runs until its process has ended
    """

    def __init__(self, offer: NamedModel) -> None:
        self.offer = offer
        self.path: Path | None = None
        self.reading: ModelReading | None = None
        self.created = 0
        self.file_bytes = 0
        self.bytes = 0
        self.kv_bytes: int | None = None
        self.holds = False
        self.context: int | None = None
        self.model: WorkerModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.error: TwofoldError | None = None
        self.failed_at = 0.0
        self.leases = 0
        self.used_at = 0.0
        self.keep_s: float | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.dismissed = False
        self.unloading: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.offer.names[0]

    @property
    def state(self) -> ModelState:
        if self.loading is not None:
            return "loading"
        if self.model is not None:
            return "unloaded" if self.model.state == "closed" else self.model.state
        return "unloaded" if self.error is None else "failed"

    @property
    def idle(self) -> bool:
        """Whether it is loaded and not leased."""
        return self.model is not None and self.leases == 0

    def entry(self) -> ModelEntry:
        return ModelEntry(
            self.offer.names,
            self.state,
            self.created,
            self.context,
            self.bytes or self.file_bytes,
            self.reading,
            self.kv_bytes,
        )

    def use(self, now: float) -> ModelUse:
        waiting = 0 if self.model is None else self.model.queued
        running = 0 if self.model is None else self.model.under_way - waiting
        left = None if self.expiry is None else max(0.0, self.expiry.when() - asyncio.get_running_loop().time())
        idle = now - self.used_at if self.idle else None
        return ModelUse(self.entry(), running, waiting, idle, left, None if self.error is None else str(self.error))

    def stop_expiry(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    def look(self, folders: CacheFolders) -> None:
        """Finds its file in the cache, or its size in the table of aliases."""
        alias = ALIASES.get(self.offer.source)
        self.file_bytes = 0 if alias is None else alias.size
        try:
            path = sources.locate(self.offer.source, cache=folders.models).path
            facts = path.stat()
        except (TwofoldError, OSError):
            return
        self.path, self.created, self.file_bytes = path, int(facts.st_mtime), facts.st_size


class WorkerRegistry:
    """``ModelRegistry``: a worker process for each loaded model."""

    def __init__(
        self,
        offers: Sequence[NamedModel],
        settings: RegistrySettings,
        observers: Sequence[EngineObserver] = (),
        progress: sources.Progress = sources.SILENT,
    ) -> None:
        self._settings = settings
        self._options = EngineOptions(**settings.engine)
        self._observers = observers
        self._progress = progress
        self._folders = CacheFolders.of()
        self._slots = [_ModelSlot(offer) for offer in offers]
        self._by_name = {name: slot for slot in self._slots for name in slot.offer.names}
        self._budget = settings.memory_budget or int(read_memory().available * SHARE_OF_FREE)
        self._making_room = asyncio.Lock()
        self._clock = MonotonicClock()
        self._closed = False

    async def start(self) -> None:
        """Loads the first model and reads the files of the others that are in the cache. Raises errors of the first."""
        self._folders.create()
        for slot in self._slots:
            slot.look(self._folders)
        reading = asyncio.create_task(asyncio.to_thread(self._read_ahead))
        async with self.lease(None):
            await reading

    def _read_ahead(self) -> None:
        """Reads all files but the first; requests for an invalid one get its error later."""
        for slot in self._slots[1:]:
            if slot.path is not None:
                with suppress(TwofoldError, OSError):
                    self._read(slot)

    async def close(self) -> None:
        """Unloads all models. Closing twice is fine."""
        self._closed = True
        loading = [slot.loading for slot in self._slots if slot.loading is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for slot in self._slots:
            slot.stop_expiry()
            slot.loading = None  # a task that was cancelled before it began has not
        await asyncio.gather(*(self._unload(slot) for slot in self._slots))

    def entries(self) -> list[ModelEntry]:
        """``ModelRegistry.entries``."""
        return [slot.entry() for slot in self._slots]

    def uses(self) -> list[ModelUse]:
        """``ModelRegistry.uses``."""
        now = self._clock.now()
        return [slot.use(now) for slot in self._slots]

    async def load(self, name: str) -> ModelUse:
        """``ModelRegistry.load``."""
        slot = self._find(name, exactly=True)
        async with self.lease(name):
            pass
        return slot.use(self._clock.now())

    async def unload(self, name: str) -> ModelUse:
        """``ModelRegistry.unload``."""
        slot = self._find(name, exactly=True)
        if slot.leases:
            slot.dismissed = True
        else:
            await self._unload(slot)
        return slot.use(self._clock.now())

    @asynccontextmanager
    async def lease(self, name: str | None, *, keep_s: float | None = None) -> AsyncGenerator[WorkerModel, None]:
        """``ModelRegistry.lease``."""
        slot = self._find(name)
        slot.leases += 1
        slot.stop_expiry()
        slot.keep_s = self._settings.idle_unload_s if keep_s is None else keep_s if keep_s >= 0 else None
        try:
            yield await self._loaded(slot)
        finally:
            slot.leases -= 1
            slot.used_at = self._clock.now()
            if not slot.leases:
                self._let_idle(slot)

    def _let_idle(self, slot: _ModelSlot) -> None:
        """Unloads a model without leases: now if it was dismissed, else after ``keep_s``."""
        if slot.dismissed:
            self._begin_unload(slot)
        elif slot.keep_s is not None and slot.idle and not self._closed:
            loop = asyncio.get_running_loop()
            slot.expiry = loop.call_later(min(slot.keep_s, LONGEST_S), self._begin_unload, slot)

    def _find(self, name: str | None, *, exactly: bool = False) -> _ModelSlot:
        """The model with this name; the first one for None, and, unless ``exactly``, for any name with ``accept_any``.

        The tag "latest", which clients of Ollama add, may be omitted or added. Raises ModelNotFoundError.
        """
        if name is None:
            return self._slots[0]
        slot = self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))
        if slot is not None:
            return slot
        if self._settings.accept_any and not exactly:
            return self._slots[0]
        raise unknown_model(name, self._by_name)

    async def _loaded(self, slot: _ModelSlot) -> WorkerModel:
        """Returns the model, after loading it if necessary. Further callers wait for the same load."""
        if self._closed:
            raise ResourceError("The server is closing.", hint="Retry when it is back.")
        if slot.unloading is not None:
            await asyncio.wait([slot.unloading])
        if slot.model is not None and slot.model.state == "failed":
            slot.error, slot.failed_at = slot.model.error, slot.model.failed_at
            await self._unload(slot)
        if slot.model is None:
            if slot.loading is None:
                if slot.error is not None and self._clock.now() - slot.failed_at < RETRY_S:
                    raise slot.error.with_traceback(None)
                slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.name}")
            await asyncio.wait([slot.loading])  # a caller that is cancelled does not stop it
        if slot.model is None:
            raise (slot.error or WorkerError(f"The model {slot.name} was unloaded.")).with_traceback(None)
        return slot.model

    async def _load(self, slot: _ModelSlot) -> None:
        """Loads a model, or stores the error."""
        slot.error = None
        try:
            reading = await asyncio.to_thread(self._read, slot)
            planned = await self._reserve(slot, reading)
            slot.model = await self._start(slot, reading, planned)
        except TwofoldError as error:
            slot.error, slot.failed_at = error, self._clock.now()
            if isinstance(error, BusyError):
                slot.failed_at -= RETRY_S  # memory may become free at any moment
        finally:
            slot.loading = None
            slot.holds = slot.model is not None

    async def _start(self, slot: _ModelSlot, reading: ModelReading, planned: MemoryPlan) -> WorkerModel:
        options = {**self._settings.engine, "kv_cache_memory_bytes": planned.kv_cache}
        model = WorkerModel(slot.name, reading, options, self._observers, self._settings.restart_policy)
        await model.start()
        slot.bytes, slot.kv_bytes, slot.context = model.ready.bytes, planned.kv_cache, model.ready.context
        slot.used_at = self._clock.now()
        return model

    def _read(self, slot: _ModelSlot) -> ModelReading:
        """Fetches the file if it is missing, and reads it; on a thread."""
        self._folders.create()
        if slot.path is None or not slot.path.exists():
            found = sources.resolve(slot.offer.source, cache=self._folders.models, progress=self._progress)
            slot.path = found.path
        reading = slot.reading
        if reading is None or not reading.is_of(slot.path):
            reading = slot.reading = read_file(
                slot.path, self._folders, self._options.chat_template, self._settings.sampling
            )
        return reading

    async def _reserve(self, slot: _ModelSlot, reading: ModelReading) -> MemoryPlan:
        """Reserves memory for a model; unloads idle ones, the least recently used first."""
        slot.created, slot.file_bytes = reading.created, reading.nbytes
        async with self._making_room:
            others = [other.file_bytes for other in self._slots if other is not slot]
            room = room_for(reading.nbytes, others, self._budget)
            planned = plan(self._options, reading.spec, reading.nbytes, room)
            while self._held() + planned.bytes > self._budget:
                leaving = [other.unloading for other in self._slots if other.unloading is not None]
                if leaving:
                    await asyncio.wait(leaving)
                    continue
                self._check_fits(slot, planned.bytes)
                idle = [other for other in self._slots if other.idle]
                await self._unload(min(idle, key=lambda other: other.used_at))
            slot.bytes, slot.holds = planned.bytes, True
            return planned

    def _held(self) -> int:
        return sum(slot.bytes for slot in self._slots if slot.holds)

    def _check_fits(self, slot: _ModelSlot, needed: int) -> None:
        """Raises ResourceError for a model that never fits, BusyError for one that does not fit beside those in use."""
        if needed > self._budget:
            raise ResourceError(
                f"The model {slot.name} takes {needed:,} bytes of memory; {self._budget:,} may be used.",
                hint="Raise --memory-budget, or lower --max-model-len or --kv-cache-memory-bytes.",
            )
        busy = sum(other.bytes for other in self._slots if other.holds and not other.idle)
        if busy + needed > self._budget:
            raise BusyError(
                f"There is not enough memory to load {slot.name} while other models are in use.",
                retry_after_s=BUSY_RETRY_S,
                hint="Retry later, or raise --memory-budget.",
            )

    async def _unload(self, slot: _ModelSlot) -> None:
        """Ends a model's process and frees its memory."""
        self._begin_unload(slot)
        if slot.unloading is not None:
            await asyncio.wait([slot.unloading])

    def _begin_unload(self, slot: _ModelSlot) -> None:
        """Begins to end its process; the loaded model cannot be leased any more."""
        slot.stop_expiry()
        slot.dismissed = False
        model, slot.model = slot.model, None
        if model is not None:
            slot.unloading = asyncio.create_task(self._end(slot, model), name=f"unload {slot.name}")

    async def _end(self, slot: _ModelSlot, model: WorkerModel) -> None:
        try:
            await model.close()
            if slot.reading is not None:
                slot.reading.tokenizer.stop_rendering()
        finally:
            slot.holds, slot.unloading = False, None
