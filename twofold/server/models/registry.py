"""All models of a server: loaded when first asked for, kept while there is memory, unloaded when others need it.

    unloaded → loading → ready      a request leases the model; requests that come meanwhile wait for it together
    loading  → failed               they get the error; RETRY_S later the next request tries again
    ready    → unloaded             nobody leases it, and: it was idle for ``idle_unload_s``, or somebody asked for
                                    that, or it was used longest ago and another model needs its memory
    ready    → loading → ready      its process ended; ``WorkerModel`` sees to that

It belongs to the event loop. What takes long is done in threads: fetching a file, reading its vocabulary. Making a
tokenizer of a large vocabulary stops all threads for up to half a second all the same, so files that are here are read
before the server is ready; one that must be fetched first costs that pause once.
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
from twofold.server.workers.client import WorkerModel
from twofold.server.workers.restart_policy import RestartPolicy

RETRY_S: Final = 10.0
"""After a failed load: so long requests get its error at once."""
BUSY_RETRY_S: Final = 5.0
LATEST: Final = ":latest"
LONGEST_S: Final = 1e7
"""Timers count no further; a third of a year is for ever here."""
SHARE_OF_FREE: Final = 0.9
"""Without a budget, models take this much of the memory that is free at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How models are loaded.

    engine         ``EngineKeywords`` of each
    memory_budget  bytes of all loaded models together; None: what is free
    accept_any     requests for unknown names get the first model
    sampling       sampling parameters of requests that leave them out, before those of a model's file
    idle_unload_s  a model that nothing used for so long is unloaded; None: it stays
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    memory_budget: int | None = None
    accept_any: bool = False
    idle_unload_s: float | None = None
    sampling: SamplingDefaults = NONE
    patience: RestartPolicy = field(default_factory=RestartPolicy)


class _Place:
    """One offered model: what is known of it, and its process where it is loaded.

    ``bytes`` are reserved while ``holds``; ``leases`` counts who uses it or waits for it. ``reading`` is kept when the
    model is unloaded: making a tokenizer again would cost a second. ``keep_s`` is how long it stays without use, as its
    last user asked; ``expiry`` is when to unload it; ``dismissed``: it is unloaded as soon as nobody leases it;
    ``unloading`` runs until its process has ended.
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
        """Whether it could be unloaded."""
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
        """Learns what can be learned without fetching anything."""
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
        self._places = [_Place(offer) for offer in offers]
        self._by_name = {name: place for place in self._places for name in place.offer.names}
        self._budget = settings.memory_budget or int(read_memory().available * SHARE_OF_FREE)
        self._making_room = asyncio.Lock()
        self._clock = MonotonicClock()
        self._closed = False

    @property
    def memory_budget(self) -> int:
        """Bytes that all loaded models may take together."""
        return self._budget

    async def start(self) -> None:
        """Loads the first model, and meanwhile reads the files of the others that are here. Raises what stands in the
        way of the first."""
        await asyncio.to_thread(self._look)
        reading = asyncio.create_task(asyncio.to_thread(self._read_ahead))
        async with self.lease(None):
            await reading

    def _read_ahead(self) -> None:
        """Reads all files but the first; what is wrong with one is told to whoever asks for that model."""
        for place in self._places[1:]:
            if place.path is not None:
                with suppress(TwofoldError, OSError):
                    self._read(place)

    async def close(self) -> None:
        """Unloads all models. Closing twice is fine."""
        self._closed = True
        loading = [place.loading for place in self._places if place.loading is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for place in self._places:
            place.stop_expiry()
            place.loading = None  # one that was cancelled before it began could not say so
        await asyncio.gather(*(self._unload(place) for place in self._places))

    def entries(self) -> list[ModelEntry]:
        """``ModelRegistry.entries``."""
        return [place.entry() for place in self._places]

    def uses(self) -> list[ModelUse]:
        """``ModelRegistry.uses``."""
        now = self._clock.now()
        return [place.use(now) for place in self._places]

    async def load(self, name: str) -> ModelUse:
        """``ModelRegistry.load``."""
        place = self._exactly(name)
        async with self.lease(name):
            pass
        return place.use(self._clock.now())

    async def unload(self, name: str) -> ModelUse:
        """``ModelRegistry.unload``."""
        place = self._exactly(name)
        if place.leases:
            place.dismissed = True
        else:
            await self._unload(place)
        return place.use(self._clock.now())

    def loaded(self) -> list[WorkerModel]:
        """The models that have a process, or had one a moment ago."""
        return [place.model for place in self._places if place.model is not None]

    @asynccontextmanager
    async def lease(self, name: str | None, *, keep_s: float | None = None) -> AsyncGenerator[WorkerModel, None]:
        """``ModelRegistry.lease``."""
        place = self._find(name)
        place.leases += 1
        place.stop_expiry()
        place.keep_s = self._settings.idle_unload_s if keep_s is None else keep_s if keep_s >= 0 else None
        try:
            yield await self._loaded(place)
        finally:
            place.leases -= 1
            place.used_at = self._clock.now()
            if not place.leases:
                self._let_idle(place)

    def _let_idle(self, place: _Place) -> None:
        """Nobody leases it any more: it is unloaded after its time, or now if somebody asked for that."""
        if place.dismissed:
            self._begin_unload(place)
        elif place.keep_s is not None and place.idle and not self._closed:
            loop = asyncio.get_running_loop()
            place.expiry = loop.call_later(min(place.keep_s, LONGEST_S), self._begin_unload, place)

    def _look(self) -> None:
        self._folders.create()
        for place in self._places:
            place.look(self._folders)

    def _find(self, name: str | None) -> _Place:
        place = self._places[0] if name is None else self._named(name)
        if place is not None:
            return place
        if self._settings.accept_any:
            return self._places[0]
        raise unknown_model(name or "", self._by_name)

    def _exactly(self, name: str) -> _Place:
        place = self._named(name)
        if place is None:
            raise unknown_model(name, self._by_name)
        return place

    def _named(self, name: str) -> _Place | None:
        """The place of this name; a tag "latest", which Ollama's clients add, may be left out or added."""
        return self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))

    async def _loaded(self, place: _Place) -> WorkerModel:
        """The place's model, loaded by whoever comes first."""
        if self._closed:
            raise ResourceError("The server is closing.", hint="Retry when it is back.")
        if place.unloading is not None:
            await asyncio.wait([place.unloading])
        if place.model is not None and place.model.state == "failed":
            await self._give_up(place)
        if place.model is None:
            if place.loading is None:
                self._refuse_early_retry(place)
                place.loading = asyncio.create_task(self._load(place), name=f"load {place.name}")
            await asyncio.wait([place.loading])  # whoever leaves does not stop it
        if place.model is None:
            raise (place.error or WorkerError(f"The model {place.name} was unloaded.")).with_traceback(None)
        return place.model

    def _refuse_early_retry(self, place: _Place) -> None:
        if place.error is not None and self._clock.now() - place.failed_at < RETRY_S:
            raise place.error.with_traceback(None)

    async def _give_up(self, place: _Place) -> None:
        """Its process ended too often: it counts as a load that failed."""
        assert place.model is not None
        place.error, place.failed_at = place.model.error, place.model.failed_at
        await self._unload(place)

    async def _load(self, place: _Place) -> None:
        """Loads a model, or leaves the error with its place."""
        place.error = None
        try:
            reading = await asyncio.to_thread(self._read, place)
            planned = await self._reserve(place, reading)
            place.model = await self._start(place, reading, planned)
        except TwofoldError as error:
            place.error, place.failed_at = error, self._clock.now()
            if isinstance(error, BusyError):
                place.failed_at -= RETRY_S  # there may be room any moment
        finally:
            place.loading = None
            place.holds = place.model is not None

    async def _start(self, place: _Place, reading: ModelReading, planned: MemoryPlan) -> WorkerModel:
        options = {**self._settings.engine, "kv_cache_memory_bytes": planned.kv_cache}
        model = WorkerModel(place.name, reading, options, self._observers, self._settings.patience)
        await model.start()
        place.bytes, place.kv_bytes, place.context = model.ready.bytes, planned.kv_cache, model.ready.context
        place.used_at = self._clock.now()
        return model

    def _read(self, place: _Place) -> ModelReading:
        """Fetches the file where need be, and reads it; in a thread."""
        self._folders.create()
        if place.path is None or not place.path.exists():
            found = sources.resolve(place.offer.source, cache=self._folders.models, progress=self._progress)
            place.path = found.path
        reading = place.reading
        if reading is None or not reading.is_of(place.path):
            reading = place.reading = read_file(
                place.path, self._folders, self._options.chat_template, self._settings.sampling
            )
        return reading

    async def _reserve(self, place: _Place, reading: ModelReading) -> MemoryPlan:
        """Memory for a model; what was used longest ago and is idle gives way."""
        place.created, place.file_bytes = reading.created, reading.nbytes
        async with self._making_room:
            others = [other.file_bytes for other in self._places if other is not place]
            room = room_for(reading.nbytes, others, self._budget)
            planned = plan(self._options, reading.spec, reading.nbytes, room)
            while self._held() + planned.bytes > self._budget:
                leaving = [other.unloading for other in self._places if other.unloading is not None]
                if leaving:
                    await asyncio.wait(leaving)
                    continue
                self._check_fits(place, planned.bytes)
                idle = [other for other in self._places if other.idle]
                await self._unload(min(idle, key=lambda other: other.used_at))
            place.bytes, place.holds = planned.bytes, True
            return planned

    def _held(self) -> int:
        return sum(place.bytes for place in self._places if place.holds)

    def _check_fits(self, place: _Place, needed: int) -> None:
        """Raises ResourceError for what never fits, BusyError for what does not fit beside the models in use."""
        if needed > self._budget:
            raise ResourceError(
                f"The model {place.name} takes {needed:,} bytes of memory; {self._budget:,} may be used.",
                hint="Raise --memory-budget, or lower --max-model-len or --kv-cache-memory-bytes.",
            )
        busy = sum(other.bytes for other in self._places if other.holds and not other.idle)
        if busy + needed > self._budget:
            raise BusyError(
                f"There is not enough memory to load {place.name} while other models are in use.",
                retry_after_s=BUSY_RETRY_S,
                hint="Retry later, or raise --memory-budget.",
            )

    async def _unload(self, place: _Place) -> None:
        """Ends a model's process and gives its memory back."""
        self._begin_unload(place)
        if place.unloading is not None:
            await asyncio.wait([place.unloading])

    def _begin_unload(self, place: _Place) -> None:
        """From now on nobody can lease the loaded model; its process ends meanwhile."""
        place.stop_expiry()
        place.dismissed = False
        model, place.model = place.model, None
        if model is not None:
            place.unloading = asyncio.create_task(self._end(place, model), name=f"unload {place.name}")

    async def _end(self, place: _Place, model: WorkerModel) -> None:
        try:
            await model.close()
            if place.reading is not None:
                place.reading.tokenizer.stop_rendering()
        finally:
            place.holds, place.unloading = False, None
