"""All models of a server: loaded on demand, kept while there is memory, unloaded when others need it.

    unloaded → loading → ready      a request leases the model; further requests wait for the same load
    loading  → failed               these requests get the error; after RETRY_S the next request tries again
    ready    → unloaded             no request leases it, and it was idle for ``idle_unload_s``, an operator unloaded
                                    it, or another model needs its memory (``server.models.turns``)
    ready    → loading → ready      its process ended and is started again by its ``FleetReplica``

The registry belongs to the event loop; files are fetched and read on threads. Nevertheless, making a tokenizer of a
large vocabulary stops all threads for up to half a second, so cached files are read before the server is ready.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from twofold.core.errors import BusyError, ParameterError, ResourceError, TwofoldError
from twofold.core.request import DEFAULT_OPTIONS, RequestOptions
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.core.tasks import start_task
from twofold.core.units import count, format_bytes
from twofold.engine.config import BACKEND_KEYWORDS, EngineOptions
from twofold.engine.draft_source import find_draft
from twofold.fleet.fleet import ABSENT_S, Fleet
from twofold.fleet.joining import FleetAddress, NodeListener, check_node
from twofold.fleet.link import NodeLink
from twofold.fleet.memory import MemoryPlan, plan, room_for
from twofold.fleet.messages import Hello
from twofold.fleet.observer import EngineObserver
from twofold.fleet.ray import RayPlan
from twofold.fleet.ray_nodes import RayNodes
from twofold.fleet.reading import ModelReading, read_file
from twofold.fleet.replica import RestartPolicy
from twofold.fleet.routing.router import Role, make_router
from twofold.fleet.scale import ScaleRange
from twofold.formats.fetch import sources
from twofold.formats.fetch.names import ALIASES
from twofold.formats.identity import changed, file_digest, model_parts
from twofold.host.paths import CacheFolders
from twofold.server.models.named_models import NamedModel, unknown_model
from twofold.server.models.turns import CHECK_S, KEPT_S, MAX_WAIT_S, ROOM_S, Claim, ModelTurns, ModelUse

ModelState: TypeAlias = Literal["unloaded", "loading", "ready", "failed"]

RETRY_S: Final = 10.0
"""Time after a failed load in which requests get its error at once."""
BUSY_RETRY_S: Final = 5.0
LATEST: Final = ":latest"
LONGEST_S: Final = 1e7
"""Maximum time of a timer: a third of a year."""
UNLIMITED: Final = 1 << 62
"""Bytes that hold the cache of any model."""
SHARE_OF_FREE: Final = 0.9
"""The default budget, as a share of the memory that is free at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How models are loaded.

    engine         ``EngineKeywords`` of each model
    memory_budget  bytes of all loaded models together; None: a share of the free memory
    accept_any     requests for unknown names get the first model
    sampling       default sampling parameters, which override those of a model's file
    idle_unload_s  idle time after which a model is unloaded; None: never
    replicas       worker processes of each model, which share its memory and the machine's threads
    roles          of the first of them; the others prefill and decode
    nodes          where nodes may join as further replicas; None: nowhere
    router         name of the router that chooses between them
    ray            replicas that a Ray cluster runs; ``replicas`` is 0 then
    autoscale      between which numbers the replicas change; ``replicas`` are there at first
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    memory_budget: int | None = None
    accept_any: bool = False
    idle_unload_s: float | None = None
    replicas: int = 1
    roles: Sequence[Role] = ()
    nodes: FleetAddress | None = None
    router: str = "predicted"
    ray: RayPlan | None = None
    autoscale: ScaleRange | None = None
    sampling: SamplingDefaults = NONE
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)

    @property
    def max_replicas(self) -> int:
        """The most replicas of a model on this machine."""
        return self.replicas if self.autoscale is None or self.ray is not None else self.autoscale.maximum


class ServedModel(ModelUse):
    """A model that the server offers, and its process if it is loaded. Times are in seconds.

    names      the names that requests may use; the first one is its own
    created    time of its file, in seconds since 1970
    context    tokens; None until it was loaded
    reserved   bytes of its weights, its KV cache and its swap space
    kv_bytes   bytes of its KV cache; None until it was loaded
    changing   is held while replicas are started or drained
    reading    its file without the weights; None until it was read. It is kept when the model is unloaded: making a
               tokenizer again takes a second
    error      why it could not be loaded
    keep_s     idle time after which it is unloaded, by its last request; None: no limit
    expiry     timer that unloads it
    dismissed  it is unloaded when its last lease ends
    unloading  task that ends its process
    opened     is done when a closed model is unloaded, or open again
    fleet      ``worker`` from the time when it begins to load
    nodes      connections of nodes that joined, with their roles
    digest     of its file, with the times of its parts; None until a node asked
    """

    def __init__(self, offer: NamedModel) -> None:
        super().__init__()
        self.names = offer.names
        self.source = offer.source
        self.path: Path | None = None
        self.reading: ModelReading | None = None
        self.created = 0
        self.file_bytes = 0
        self.kv_bytes: int | None = None
        self.changing = asyncio.Lock()
        self.context: int | None = None
        self.worker: Fleet | None = None
        self.fleet: Fleet | None = None
        self.nodes: dict[NodeLink, Role] = {}
        self.digest: tuple[tuple[int, ...], str] | None = None
        self.loading: asyncio.Task[None] | None = None
        self.error: TwofoldError | None = None
        self.failed_at = 0.0
        self.keep_s: float | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.dismissed = False
        self.unloading: asyncio.Task[None] | None = None
        self.opened: asyncio.Future[None] | None = None

    @property
    def state(self) -> ModelState:
        if self.loading is not None:
            return "loading"
        if self.worker is not None:
            return "unloaded" if self.worker.state == "closed" else self.worker.state
        return "unloaded" if self.error is None else "failed"

    @property
    def bytes(self) -> int:
        """Memory of the loaded model; the size of its file until it was loaded once."""
        return self.reserved or self.file_bytes

    @property
    def idle(self) -> bool:
        """Whether the model is loaded and not leased."""
        return self.worker is not None and not self.leases

    @property
    def idle_s(self) -> float | None:
        """Time since the last request ended; None while the model is in use or not loaded."""
        return time.monotonic() - self.used_at if self.idle else None

    @property
    def unloads_in_s(self) -> float | None:
        """Time until the model is unloaded for being idle; None if it stays until another one needs its memory."""
        return None if self.expiry is None else max(0.0, self.expiry.when() - asyncio.get_running_loop().time())

    def stop_expiry(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    def find_file(self, folders: CacheFolders) -> None:
        """Finds the model's file in the cache; without it, its size in the table of aliases."""
        alias = ALIASES.get(self.source)
        self.file_bytes = 0 if alias is None else alias.size
        with suppress(TwofoldError, OSError):
            path = sources.locate(self.source, cache=folders.models).path
            self.file_bytes = sum(part.stat().st_size for part in model_parts(path))
            self.path, self.created = path, int(path.stat().st_mtime)


class ModelRegistry:
    """All models of a server, with a worker process for each loaded one; the first of ``models`` is the default."""

    def __init__(
        self,
        offers: Sequence[NamedModel],
        settings: RegistrySettings,
        observers: Sequence[EngineObserver] = (),
        progress: sources.Progress = sources.SILENT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``say`` prints a sentence to the user who started the server."""
        self._settings = settings
        self._say = say
        self._options = EngineOptions(**settings.engine)
        self._backend = self._options.open_backend()
        self._observers = observers
        self._progress = progress
        self._folders = CacheFolders.of()
        self.models = [ServedModel(offer) for offer in offers]
        self._by_name = {name: model for model in self.models for name in model.names}
        self._budget = settings.memory_budget or int(self._backend.free_memory() * SHARE_OF_FREE)
        self._turns: ModelTurns[ServedModel] = ModelTurns(self.models, self._budget)
        self._room = asyncio.Event()
        self.listener = None if settings.nodes is None else NodeListener(settings.nodes, self._admit)
        self.ray: RayNodes | None = None
        self._closed = False

    @property
    def tpot_target_s(self) -> float | None:
        """The TPOT that engines keep, unless a request has its own; None with a fixed token budget."""
        return self._options.tpot_target_s if self._options.token_budget == "live" else None

    async def start(self) -> None:
        """Loads the first model, and reads cached files of the others. Raises the errors of loading the first one."""
        self._folders.create()
        for model in self.models:
            model.find_file(self._folders)
        if self.listener is not None:
            await self.listener.start()
            waits = "" if self._settings.replicas else "; the server is ready when the first one has loaded the model"
            self._say(f"Nodes may join at {self.listener.address}{waits}")
            await self._start_ray(self.listener.address)
        reading = asyncio.create_task(asyncio.to_thread(self._read_ahead))
        async with self.lease(None, absent_s=None):
            await reading

    async def _start_ray(self, join: str) -> None:
        """Lets Ray run nodes that join at this address. Raises ResourceError if it cannot be reached."""
        if self._settings.ray is None or self._settings.nodes is None:
            return
        models = [(model.names[0], model.source) for model in self.models]
        draft = self._options.speculation.model
        self.ray = RayNodes(self._settings.ray, join, models, self._settings.nodes.certificates, draft)
        await self.ray.start()
        self._say(f"Ray runs {count(self._settings.ray.replicas, 'replica')} of each model")

    async def _admit(self, link: NodeLink, hello: Hello) -> None:
        """Takes a node as a replica of its model, now or when the model is loaded. Raises TwofoldError."""
        model = self.find(hello.model, exactly=True)
        if model.path is None:
            raise BusyError("The hub has not loaded the model yet.", retry_after_s=BUSY_RETRY_S)
        parts = model_parts(model.path)
        if model.digest is None or model.digest[0] != changed(parts):
            model.digest = changed(parts), await asyncio.to_thread(file_digest, parts)
        check_node(hello, model.digest[1])
        link.slot = None if self.ray is None else self.ray.slot(model.names[0], hello.node)
        model.nodes = {each: role for each, role in model.nodes.items() if not each.ended.is_set()}
        model.nodes[link] = hello.role
        if model.fleet is not None and model.fleet.state != "closed":
            model.fleet.join(link, hello.role)

    def _read_ahead(self) -> None:
        """Reads the cached files of all models but the first; requests for an invalid one get its error later."""
        for model in self.models[1:]:
            if model.path is not None:
                with suppress(TwofoldError, OSError):
                    self._read(model)

    async def close(self) -> None:
        """Unloads all models. Closing twice is fine."""
        self._closed = True
        if self.ray is not None:
            await self.ray.close()
        if self.listener is not None:
            await self.listener.close()
        loading = [model.loading for model in self.models if model.loading is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for model in self.models:
            model.stop_expiry()
            model.loading = None  # a task that was cancelled before it began has not done this
        await asyncio.gather(*(self._unload(model) for model in self.models))

    async def load(self, name: str) -> ServedModel:
        """Loads a model if necessary. Raises the errors of ``lease``."""
        model = self.find(name, exactly=True)
        async with self.lease(name):
            pass
        return model

    async def unload(self, name: str) -> ServedModel:
        """Unloads a model: now if it is idle, else when its last request, or its loading, has ended.

        Raises ModelNotFoundError.
        """
        model = self.find(name, exactly=True)
        if model.leases or model.loading is not None:
            model.dismissed = True
        else:
            await self._unload(model)
        return model

    async def scale(self, name: str, replicas: int) -> Fleet:
        """Starts or drains replicas of a loaded model. Raises the errors of ``Lifecycle.scale`` and ``fleet``, and
        ResourceError if the memory budget has no room for them here."""
        async with self._changing(name) as (model, fleet):
            each = fleet.own_bytes
            needed = each * max(0, replicas - len(fleet.lifecycle.own))
            if not self._has_room(needed):
                raise ResourceError(
                    f"{replicas} replicas of {model.names[0]} take {each * replicas:,} bytes of memory, and all models "
                    f"together may use {self._budget:,}.",
                    hint="Raise --memory-budget, or lower --kv-cache-memory-bytes.",
                )
            model.reserved += needed
            await fleet.lifecycle.scale(replicas)
            return fleet

    async def drain(self, name: str, replica: int) -> Fleet:
        """Drains a replica of a loaded model. Raises the errors of ``Lifecycle.drain`` and ``fleet``."""
        async with self._changing(name) as (_, fleet):
            await fleet.lifecycle.drain(replica)
            return fleet

    async def restart(self, name: str) -> bool:
        """Replaces the replicas of a loaded model; returns whether each new one was ready before the old one ended:
        this takes room for one more. Raises the errors of ``Lifecycle.restart`` and ``fleet``."""
        async with self._changing(name) as (model, fleet):
            room = self._has_room(fleet.own_bytes)
            model.reserved += fleet.own_bytes if room else 0
            return await fleet.lifecycle.restart(room=room)

    def _has_room(self, needed: int) -> bool:
        """Whether the budget has so many bytes beside the loaded models."""
        return sum(model.reserved for model in self.models if model.holds) + needed <= self._budget

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncGenerator[tuple[ServedModel, Fleet], None]:
        """A loaded model while its replicas change, which one caller at a time may do. Afterwards it has reserved what
        they take. Raises the errors of ``fleet``."""
        model = self.find(name, exactly=True)
        async with model.changing:
            fleet = self.fleet(name)
            before = len(fleet.lifecycle.own)
            try:
                yield model, fleet
            finally:
                if model.worker is fleet:
                    present = len(fleet.lifecycle.own)
                    model.reserved = fleet.own_bytes * present
                    model.kv_bytes = (model.kv_bytes or 0) // max(1, before) * present

    def fleet(self, name: str) -> Fleet:
        """A loaded model. Raises ModelNotFoundError, and ParameterError if it is not loaded."""
        model = self.find(name, exactly=True)
        if model.worker is None:
            raise ParameterError(f"{model.names[0]} is not loaded.", param="model", hint="`twofold load` loads it.")
        return model.worker

    @asynccontextmanager
    async def lease(
        self,
        name: str | None,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        keep_s: float | None = None,
        absent_s: float | None = ABSENT_S,
    ) -> AsyncGenerator[Fleet, None]:
        """The model with this name or alias, the first one for None; loads it if necessary. Afterwards it stays loaded
        for ``keep_s`` seconds without use: below 0 without limit; None takes the server's setting. ``options`` has the
        tenant and the class that wait for memory, and how long. Waits ``absent_s`` seconds for a first node if the
        server has no replica of its own; None: without limit.

        Raises ModelNotFoundError with the closest name, BusyError if it waited too long for memory, WorkerError without
        a node, and the error of a failed load.
        """
        model = self.find(name)
        model.stop_expiry()
        model.keep_s = self._settings.idle_unload_s if keep_s is None else keep_s if keep_s >= 0 else None
        lease: int | None = None
        try:
            fleet = await self._loaded(model, options, absent_s)
            lease = self._turns.enter(model, options.tenant, time.monotonic())
            yield fleet
        finally:
            if lease is not None:
                self._turns.leave(model, lease, time.monotonic())
            if not model.leases:
                self._room.set()
                self._unload_if_idle(model)

    def _unload_if_idle(self, model: ServedModel) -> None:
        """Unloads a model without leases: now if an operator has unloaded it, else after ``keep_s``."""
        if model.leases or model.loading is not None or self._closed or self._turns.wants(model, time.monotonic()):
            return
        if model.dismissed:
            self._begin_unload(model)
        elif model.idle and model.keep_s is not None:
            loop = asyncio.get_running_loop()
            model.expiry = loop.call_later(min(model.keep_s, LONGEST_S), self._begin_unload, model)

    def find(self, name: str | None, *, exactly: bool = False) -> ServedModel:
        """The model with this name; the first one for None, and, unless ``exactly``, for any name with ``accept_any``.

        The tag "latest", which clients of Ollama add, may be omitted or added. Raises ModelNotFoundError.
        """
        if name is None:
            return self.models[0]
        model = self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))
        if model is not None:
            return model
        if self._settings.accept_any and not exactly:
            return self.models[0]
        raise unknown_model(name, self._by_name)

    async def _loaded(self, model: ServedModel, options: RequestOptions, absent_s: float | None) -> Fleet:
        """Returns the model, after loading it if necessary. Further callers wait for the same load."""
        claim: Claim[ServedModel] | None = None
        keep_s, loads = 0.0, False
        began = time.monotonic()
        until = began + (ROOM_S if options.queue_limit_s is None else options.queue_limit_s)
        absent = math.inf if absent_s is None else began + absent_s
        try:
            while True:
                if self._closed:
                    raise ResourceError("The server is closing.", hint="Retry when it is back.")
                if model.worker is not None and model.worker.state == "failed":
                    model.error, model.failed_at = model.worker.error, model.worker.failed_at
                    await self._unload(model)
                if model.worker is not None and not model.closed:
                    return model.worker
                claim = claim or self._turns.wait(model, options, time.monotonic())
                if model.worker is None and model.loading is None and model.unloading is None:
                    failed = model.error is not None and time.monotonic() - model.failed_at < RETRY_S
                    if model.error is not None and (loads or failed):
                        raise model.error.with_traceback(None)
                    model.loading, loads = start_task(self._load(model), f"load {model.names[0]}"), True
                loads = loads or model.loading is not None
                if time.monotonic() >= until and (model.closed or model.needs is not None):
                    keep_s = self._turns.retry_after_s(time.monotonic())
                    raise BusyError(
                        f"The model {model.names[0]} waited for memory that other models use.",
                        retry_after_s=keep_s,
                        hint="Retry after the delay in Retry-After, or raise --memory-budget.",
                    )
                await self._changed(model, until, absent)
        finally:
            if claim is not None:
                self._turns.stop_waiting(claim, time.monotonic(), keep_s + KEPT_S if keep_s else 0.0)
                self._take_turns()

    async def _changed(self, model: ServedModel, *until: float) -> None:
        """Waits until a model is loaded, unloaded or open again, or one of these times has come: up to the last one a
        node may join. Raises WorkerError without a node then."""
        change = model.unloading or model.loading or model.opened
        assert change is not None, "a model that is there is closed"
        left = [each - time.monotonic() for each in until]
        timeout = min((each for each in left if each > 0), default=MAX_WAIT_S)
        await asyncio.wait([change], timeout=min(timeout, MAX_WAIT_S))  # a caller that is cancelled does not stop it
        absent = model.loading is not None and model.fleet is not None and not model.fleet.replicas
        if absent and model.fleet is not None and time.monotonic() >= until[-1]:
            raise model.fleet.no_replica()

    def _take_turns(self) -> ServedModel | None:
        """Closes, opens and unloads models as their turns are; returns the one that has room to be loaded now."""
        found = self._turns.next(time.monotonic())
        for model in self.models:
            if model.closed and model.opened is None:
                model.opened = asyncio.get_running_loop().create_future()
            elif not model.closed and model.opened is not None:
                model.opened.set_result(None)
                model.opened = None
        for model in found.unload:
            self._begin_unload(model)
        return found.load

    async def _load(self, model: ServedModel) -> None:
        """Loads a model, or stores the error."""
        model.error = None
        try:
            reading = await asyncio.to_thread(self._read, model)
            planned = await self._reserve(model, reading)
            if planned is None:
                return
            settings, began = self._settings, time.monotonic()
            replicas, several = settings.replicas, settings.max_replicas != 1 or settings.nodes is not None
            options, for_nodes = self._engine_options(planned)
            worker = Fleet(
                model.names[0],
                reading,
                options,
                self._observers,
                settings.restart_policy,
                replicas=replicas,
                router=make_router(settings.router) if several else None,
                routes=several,
                node_options=for_nodes,
                roles=settings.roles,
                cluster=self.ray,
            )
            model.fleet = worker
            for link, role in [each for each in model.nodes.items() if not each[0].ended.is_set()]:
                worker.join(link, role)
            waits = model is self.models[0] and model.context is None  # the server starts with its first node
            await worker.start(None if waits else ABSENT_S)
            model.kv_bytes = planned.kv_cache * replicas
            model.begin_turn(time.monotonic(), time.monotonic() - began)
            model.reserved, model.context, model.worker = worker.own_bytes * replicas, worker.ready.context, worker
        except TwofoldError as error:
            model.error, model.failed_at = error, time.monotonic()
        finally:
            model.loading = None
            model.holds = model.worker is not None
            self._room.set()
        self._unload_if_idle(model)  # all requests that waited for it may have left

    def _engine_options(self, planned: MemoryPlan) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of this machine's replicas, and those of nodes, which choose the size of their KV cache and the
        options of the backend themselves. With nodes all have the context that was planned here."""
        settings = self._settings
        if settings.nodes is not None:
            common = {**settings.engine, "max_model_len": planned.context}
        else:
            common = dict(settings.engine)
        sizes = {"kv_cache_memory_bytes": planned.kv_cache or None}
        options = {**common, **sizes, **self._backend.share(settings.max_replicas)}
        return options, {name: value for name, value in common.items() if name not in BACKEND_KEYWORDS}

    def _read(self, model: ServedModel) -> ModelReading:
        """Fetches the file if it is missing, and reads it; on a thread."""
        self._folders.create()
        if model.path is None or not model.path.exists():
            found = sources.resolve(model.source, cache=self._folders.models, progress=self._progress)
            model.path = found.path
        reading = model.reading
        if reading is None or not reading.is_of(model.path):
            reading = model.reading = read_file(
                model.path,
                self._folders,
                self._options.chat_template,
                self._settings.sampling,
                find_draft(self._options, self._progress),
            )
        return reading

    async def _reserve(self, model: ServedModel, reading: ModelReading) -> MemoryPlan | None:
        """Reserves memory for a model when it is its turn; None if no request waits for it any more. A model that only
        nodes run takes none. Raises ResourceError if it never fits."""
        model.created, model.file_bytes = reading.created, reading.nbytes
        chunk = self._backend.attention_chunk
        if not self._settings.replicas:
            context = plan(self._options, reading.spec, 0, UNLIMITED, chunk, reading.draft).context
            return MemoryPlan(0, 0, 0, context)
        others = [other.file_bytes for other in self.models if other is not model]
        room = room_for(reading.nbytes, others, self._budget)
        draft, weights = reading.draft, reading.nbytes + reading.draft_bytes
        planned = plan(self._options, reading.spec, weights, room // self._settings.max_replicas, chunk, draft)
        needed = planned.bytes * self._settings.replicas
        if needed > self._budget:
            raise ResourceError(
                f"{model.names[0]} takes {format_bytes(needed)} of memory; {format_bytes(self._budget)} may be used.",
                hint="Raise --memory-budget, or lower --max-model-len or --kv-cache-memory-bytes.",
            )
        model.needs = needed
        try:
            while self._take_turns() is not model:
                if not self._turns.wants(model, time.monotonic()):
                    return None
                self._room.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), CHECK_S)
        finally:
            model.needs = None
        model.reserved, model.holds = needed, True
        return planned

    async def _unload(self, model: ServedModel) -> None:
        """Ends a model's process and frees its memory."""
        self._begin_unload(model)
        if model.unloading is not None:
            await asyncio.wait([model.unloading])

    def _begin_unload(self, model: ServedModel) -> None:
        """Begins to end a model's process; a later lease loads the model again."""
        model.stop_expiry()
        model.dismissed = False
        worker, model.worker = model.worker, None
        if worker is not None:
            model.ending, model.began = True, None
            model.unloading = start_task(self._end(model, worker), f"unload {model.names[0]}")

    async def _end(self, model: ServedModel, worker: Fleet) -> None:
        try:
            await worker.close()
            if model.reading is not None:
                model.reading.tokenizer.stop_rendering()
        finally:
            model.holds, model.ending, model.unloading = False, False, None
            self._room.set()
