"""The server: joins all parts, from the socket to the models, and shuts them down.

start     binds the socket and loads the first model; meanwhile /health succeeds and /ready fails
serve     until SIGTERM or Ctrl-C
drain     accepts no new request; running ones may finish within ``shutdown_s``
end       after that time, or at a second signal, ends every stream with an error event
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from starlette.types import ASGIApp

from twofold.api.body import encode
from twofold.core.errors import BusyError, UsageError
from twofold.core.tasks import start_task
from twofold.formats.fetch import sources
from twofold.host.env import read_environment
from twofold.host.paths import private_folder
from twofold.host.versions import twofold_version
from twofold.observe.live.board import LiveBoard
from twofold.observe.metrics.server import ServerMetrics
from twofold.observe.served import ServedObserver
from twofold.planner.price.catalog import read_table
from twofold.server.accounting import Accounting, RecentRequests, UsageStore
from twofold.server.admission import Admission
from twofold.server.batches.run import LineRunner
from twofold.server.config import ServerConfig
from twofold.server.edge.hosts import Hosts, Origins
from twofold.server.edge.keys import Caller, KeyFile, KeyRing, single_keys
from twofold.server.edge.middleware import EdgeMiddleware, check_exposure
from twofold.server.edge.protocol import EdgeServer
from twofold.server.edge.quotas import Quotas
from twofold.server.estimates import Estimates
from twofold.server.http.about import features
from twofold.server.http.admin import replica_figures
from twofold.server.live import LiveService
from twofold.server.models.autoscaler import Autoscaler, on_process
from twofold.server.models.registry import ModelRegistry, ServedModel
from twofold.server.openapi.document import document
from twofold.server.planning.jobs import PlanJobs
from twofold.server.planning.process import PlannerProcess
from twofold.server.pool import ByteBudget, WorkPool
from twofold.server.reference_prices import ReferencePrices
from twofold.server.response_cache import ResponseCache
from twofold.server.routes import ROUTES, build_app, dialect_of
from twofold.server.runner import RequestRunner
from twofold.server.services import Services, Stores, open_stores
from twofold.server.storage.tenants import DataFolder, claim_folder
from twofold.web.page import WebPage

log = logging.getLogger("twofold.serve")

FORCED_S: Final = 2.0
"""Time in which interrupted streams must send their last event."""
DRAIN_POLL_S: Final = 0.02
SWITCH_S: Final = 0.001
"""How long a pool thread keeps the interpreter after the event loop asks for it. Python's default of 5 ms adds up: one
request asks many times."""


def notify(state: Literal["READY=1", "STOPPING=1"]) -> None:
    """Sends ``state`` to the socket that NOTIFY_SOCKET names; does nothing if it is unset or no process listens."""
    address = read_environment().notify_socket
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address  # @ stands for the abstract name space
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), path)


class Server:
    """One server. ``say`` prints a sentence to the user who started it."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        observers: Sequence[ServedObserver] = (),
        say: Callable[[str], None] = print,
        progress: sources.Progress = sources.SILENT,
    ) -> None:
        self._config = config
        self._say = say
        self._keys = _keys(config, say)
        check_exposure(config.host, self._keys())
        private_folder(config.data)
        self._folder = DataFolder(config.data) if config.own_data else claim_folder(config.data, config.port)
        self._metrics = ServerMetrics(config.objectives)
        board = LiveBoard(self._metrics.recent)
        self._registry = ModelRegistry(config.offers, config.registry, [self._metrics, board], progress, say)
        self._metrics.replicas.read = partial(replica_figures, self._registry)
        self._planner = PlannerProcess()
        self._autoscaler = self._make_autoscaler()
        self._live = LiveService(self._registry, board)
        self._usage = UsageStore(self._folder.path / "usage.sqlite")
        references = ReferencePrices(read_table())
        observers = [self._metrics, *observers, *([] if self._autoscaler is None else [self._autoscaler])]
        self._accounting = Accounting(config.prices, RecentRequests(), self._usage, observers, references, Estimates())
        self._cache = (
            None
            if config.response_cache is None
            else ResponseCache(self._folder.path / "answers.sqlite", config.response_cache, time.time)
        )
        self._pool = WorkPool()
        self._admission = Admission(config.tiers, config.queue, config.objectives)
        self._runner = RequestRunner(self._registry, self._admission, self._accounting, self._pool, self._cache)
        self._quotas = Quotas()
        self._ready = False
        self._signals: asyncio.Queue[int] = asyncio.Queue()

    async def run(self, announce: Callable[[str], None] = lambda _url: None) -> None:
        """Serves until a signal or ``stop`` ends it; calls ``announce`` with its URL once it is ready.

        Raises UsageError if the address cannot be bound, and the errors of its stores and of loading the first model.
        """
        asyncio.get_running_loop().set_exception_handler(_log_fault)
        sys.setswitchinterval(SWITCH_S)
        with _listening_socket(self._config) as listening:
            async with AsyncExitStack() as stack:
                stack.callback(self._folder.close)
                stack.callback(self._pool.close)
                stack.callback(self._planner.close)
                stack.push_async_callback(self._usage.close)
                if self._cache is not None:
                    stack.callback(self._cache.close)
                stack.push_async_callback(self._registry.close)
                config = self._config
                lines = LineRunner(self._runner, self._caller_of, self._quotas, self._pool, tolerant=config.tolerant)
                stores = await stack.enter_async_context(open_stores(self._folder.path, lines))
                web = EdgeServer(
                    self._app(stores),
                    config.connections,
                    dialect_of,
                    certificate=config.certificate,
                    private_key=config.private_key,
                )
                stack.enter_context(self._signalled())
                writing = start_task(self._usage.run(), "sums of usage")
                stack.callback(writing.cancel)
                serving = asyncio.create_task(web.serve([listening]))
                try:
                    await self._start(lambda: announce(self._config.url(listening.getsockname()[1])))
                    await self._until_signalled()
                finally:
                    await self._end(web, serving)

    def _make_autoscaler(self) -> Autoscaler | None:
        bounds, objectives = self._config.registry.autoscale, self._config.objectives
        if bounds is None:
            return None
        return Autoscaler(self._registry, bounds, objectives, on_process(self._planner), self._metrics.instruments)

    def models(self) -> Sequence[ServedModel]:
        """The served models; the first one is loaded at the start."""
        return self._registry.models

    def stop(self) -> None:
        """Shuts the server down as SIGTERM does; a second call ends it at once."""
        self._signals.put_nowait(signal.SIGTERM)

    async def _until_signalled(self) -> None:
        """Serves, and follows the traffic, until a signal ends the server."""
        scaling = None if self._autoscaler is None else start_task(self._autoscaler.run(), "autoscaler")
        try:
            await self._signals.get()
        finally:
            if scaling is not None:
                scaling.cancel()

    async def _start(self, announce: Callable[[], None]) -> None:
        """Loads the first model, unless a signal ends the server first."""
        loading = asyncio.create_task(self._registry.start())
        signalled = asyncio.create_task(self._signals.get())
        try:
            await asyncio.wait({loading, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if signalled.done():
                self.stop()
                return
            await loading
            gc.freeze()  # present objects, such as vocabularies, live long: garbage collections need not traverse them
            self._ready = True
            if self._folder.path != (data := self._config.data):
                self._say(f"Another server uses {data}; this one keeps its data in {self._folder.path}.")
            announce()
            notify("READY=1")
        finally:
            signalled.cancel()
            loading.cancel()

    async def _end(self, web: EdgeServer, serving: asyncio.Task[None]) -> None:
        self._ready, self._runner.closing = False, True
        notify("STOPPING=1")
        if web.started:
            web.stop_listening()
        await self._drain()
        self._live.close()
        web.should_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FORCED_S):
                await serving

    async def _drain(self) -> None:
        """Waits for requests in progress; interrupts them at a second signal or after ``shutdown_s``."""
        if self._runner.in_progress:
            self._say(f"Requests in progress: {self._runner.in_progress}. Waiting for them; a second signal ends them.")
        until = time.monotonic() + self._config.shutdown_s
        while self._runner.in_progress and self._signals.empty() and time.monotonic() < until:
            await asyncio.sleep(DRAIN_POLL_S)
        self._runner.interrupt(BusyError("The server is shutting down.", retry_after_s=5))
        until = time.monotonic() + FORCED_S
        while self._runner.in_progress and time.monotonic() < until:
            await asyncio.sleep(DRAIN_POLL_S)

    def _caller_of(self, tenant: str, key_id: str) -> Caller:
        """The caller that created a batch, by its key as it is now."""
        return self._keys().named(tenant, key_id, datetime.now(UTC))

    def _app(self, stores: Stores) -> ASGIApp:
        config, registry, keyed = self._config, self._config.registry, self._keys().required
        names = [name for offer in config.offers for name in offer.names]
        described = document(
            ROUTES, names, dialect_of, version=twofold_version(), keyed=keyed, any_model=registry.accept_any
        )
        services = Services(
            config=config,
            registry=self._registry,
            admission=self._admission,
            runner=self._runner,
            accounting=self._accounting,
            metrics=self._metrics,
            quotas=self._quotas,
            pool=self._pool,
            bodies=ByteBudget(config.body.together, self._pool.trim),
            stores=stores,
            live=self._live,
            planner=self._planner,
            plans=PlanJobs(self._planner),
            document=encode(described),
            features=features(route.path for route in ROUTES),
            page=WebPage.read() if config.web else None,
            is_ready=self._is_ready,
            stop=self.stop,
        )
        hosts, origins = Hosts.of(config.hosts), Origins.of(config.origins)
        return EdgeMiddleware(build_app(services), self._keys, dialect_of, hosts, origins, config.web)

    def _is_ready(self) -> bool:
        """Whether a request for the first model would run now; an unloaded model would be loaded for it."""
        return self._ready and self._registry.models[0].state in {"ready", "unloaded"}

    @contextmanager
    def _signalled(self) -> Iterator[None]:
        """A context in which SIGTERM and SIGINT are put into the queue."""
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signals.put_nowait, number)
        except (ValueError, RuntimeError):  # not the main thread: the caller calls ``stop``
            yield
            return
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an uncaught exception. asyncio's own handler would quote its text, which may contain a caller's input."""
    log.error("%s", context["message"], exc_info=context.get("exception"))


def _keys(config: ServerConfig, say: Callable[[str], None]) -> Callable[[], KeyRing]:
    """A function that returns the current keys."""
    fixed = single_keys(config.api_keys)
    if config.api_keys_file is None:
        ring = KeyRing(fixed, required=False)
        return lambda: ring
    file = KeyFile(config.api_keys_file, fixed, warn=say)
    return lambda: file.ring(time.monotonic())


@contextmanager
def _listening_socket(config: ServerConfig) -> Iterator[socket.socket]:
    """A socket bound to the server's address. Raises UsageError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Only if the protocol is given does asyncio set TCP_NODELAY, so that small writes are sent at once.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((config.host, config.port))
        except OSError as error:
            raise _bind_error(config, error) from error
        yield listening


def _bind_error(config: ServerConfig, error: OSError) -> UsageError:
    """The error for an address that cannot be bound: the reason, and a remedy."""
    if isinstance(error, socket.gaierror):
        return UsageError(f"The host {config.host!r} is unknown.", hint="Set --host to an address of this machine.")
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"Port {config.port} is in use.",
            hint="Choose another --port (0 takes a free one), or stop the program that uses it.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(
            f"{config.host} is not an address of this machine.", hint="Set --host to 127.0.0.1, or 0.0.0.0 for all."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(
            f"Port {config.port} needs a privilege that this process does not have.",
            hint="Choose a --port of 1024 or above.",
        )
    return UsageError(f"{config.host}:{config.port} cannot be bound: {error.strerror}.", hint="Choose another --port.")
