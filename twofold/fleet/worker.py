"""A worker process: runs an engine for the server's process, over a socket, or for several servers (hubs).

    reader threads   one for each hub: receive LoadModel, then requests, Abort, SetPaused, Ping, Watch, Look, Foresee,
                     ListBlocks
    engine thread    runs steps; sends StepOutputs after each
    beat thread      sends a Beat every quarter of a second, however long a step or the loading takes

StepOutputs has the deltas of a hub's requests and the reports of steps since the last message; four times a second, and
when no work is left, also a snapshot of the engine, and what requests without a stream have so far, so that another
worker can go on with them. While lanes are watched, it is sent ten times a second at least. To a hub that routes
requests it also has the engine's work and its new blocks, and is sent after each step with prompt rows.

The process receives the path of a model, loads and tests it, and serves until the server closes its end of the socket.
A node's process gets a socket on which further ones arrive, one for each hub: the first hub's LoadModel loads the
model, that of the others finds it loaded. When a hub's socket ends, so do its requests; the others notice nothing. A
hub that does not read what it is sent, or sends invalid data, is disconnected.

The process ignores interrupts; its parent ends it by closing the socket. An uncaught exception on any other thread ends
the process, and another one is started.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Final

from twofold.backends.base import Backend
from twofold.core.errors import ResourceError, TwofoldError
from twofold.core.limits import MachineLimits
from twofold.engine.config import EngineOptions
from twofold.engine.load import load_model
from twofold.fleet.channel import Channel
from twofold.fleet.memory import plan_of
from twofold.fleet.messages import Beat, FromWorker, LoadModel, Ping, Pong, Ready, Unloadable
from twofold.fleet.service import Service, facts
from twofold.fleet.session import HubSession, print_fault
from twofold.host.paths import CacheFolders

CRASHED: Final = 70
"""Exit code after an uncaught exception: sysexits.h's internal software error."""
BEAT_S: Final = 0.25
HUB_MARK: Final = "\x1e"
"""Stands between the number of a hub and the ids of its requests, which have no control characters."""


def main(descriptor: int, *, shared: bool = False) -> None:
    """Serves over the connected socket with this file descriptor, or, if ``shared``, over those that arrive on it;
    never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _crash
    worker, connection = _Worker(), socket.socket(fileno=descriptor)
    if shared:
        worker.serve_hubs(connection)
    else:
        worker.serve(_Hub(Channel(connection), ""))
    worker.save()
    os._exit(0)  # without waiting for the engine's thread


class _Hub:
    """A connection to a hub. ``load`` is its first message; ``session`` is there when the model is."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self.channel, self.prefix = channel, prefix
        self.load: LoadModel | None = None
        self.session: HubSession | None = None


class _Worker:
    """Receives messages while another thread loads the model, so that the end of the server is noticed meanwhile."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._hubs: list[_Hub] = []
        self._loading = False
        self._loaded: tuple[Service, Ready] | None = None

    def serve_hubs(self, connections: socket.socket) -> None:
        """Serves each hub whose socket arrives, on a thread of its own, until the node closes its end."""
        for number in count():
            descriptors = socket.recv_fds(connections, 1, 1)[1]
            if not descriptors:
                return
            hub = _Hub(Channel(socket.socket(fileno=descriptors[0]), patient=False), f"{number}{HUB_MARK}")
            threading.Thread(target=self._serve_hub, args=(hub,), name=f"twofold-hub-{number}", daemon=True).start()

    def serve(self, hub: _Hub) -> None:
        """Handles a hub's messages until it closes its end."""
        first = hub.channel.receive()
        if not isinstance(first, LoadModel):
            return
        hub.load = first
        with self._changing:
            self._hubs.append(hub)
            loads, self._loading = not self._loading, True
            self._begin(hub)
        if loads:
            threading.Thread(target=self._load, args=(first,), name="twofold-load", daemon=True).start()
            threading.Thread(target=self._beat, name="twofold-beat", daemon=True).start()
        while (message := hub.channel.receive()) is not None:
            if hub.session is not None:
                hub.session.handle(message)
            elif isinstance(message, Ping):
                hub.channel.send(Pong(None))

    def save(self) -> None:
        """Saves the prefix cache, if the model has a KV store."""
        if self._loaded is not None:
            self._loaded[0].save()

    def _serve_hub(self, hub: _Hub) -> None:
        """Serves one of several hubs: what it sends harms no other."""
        try:
            self.serve(hub)
        except Exception as error:
            print_fault(type(error), error.__traceback__)
        with self._changing:
            if hub in self._hubs:
                self._hubs.remove(hub)
        if hub.session is not None:
            hub.session.close()
        hub.channel.close()

    def _begin(self, hub: _Hub) -> None:
        """Begins the session of a hub, if the model is loaded."""
        if self._loaded is None:
            return
        assert hub.load is not None, "it has sent it"
        service, ready = self._loaded
        hub.session = service.open(hub.channel.send, hub.prefix, shares_clock=hub.load.shares_clock, keys=hub.load.keys)
        service.begin(hub.session, ready)

    def _send_all(self, message: FromWorker) -> None:
        for hub in list(self._hubs):  # without the lock: a hub that begins waits for the step that runs
            hub.channel.send(message)

    def _beat(self) -> None:
        while True:
            self._send_all(Beat())
            time.sleep(BEAT_S)

    def _load(self, load: LoadModel) -> None:
        try:
            self._open(load)
        except TwofoldError as error:
            self._refuse(error)
        except MemoryError:
            hint = "Use a smaller model, or lower max_model_len or kv_cache_memory_bytes."
            self._refuse(ResourceError("There is not enough memory for the model.", hint=hint))

    def _open(self, load: LoadModel) -> None:
        folders = CacheFolders.of().create()
        options = EngineOptions(**load.options)
        path = Path(load.path)
        machine = _limits(options.open_backend(), path.stat().st_size)
        loaded = load_model(path, options, tokenizer_cache=folders.tokenizers, cache=folders.root)
        service = Service(loaded)
        began = time.monotonic()
        service.test()
        test_s = time.monotonic() - began
        config = loaded.config
        size = plan_of(config, loaded.spec, loaded.nbytes).bytes
        times = (loaded.load_s, loaded.compile_s, test_s)
        ready = Ready(config.context, size, machine, config.options.kv_type, facts(loaded), *times)
        with self._changing:
            self._loaded = service, ready
            for hub in self._hubs:
                self._begin(hub)

    def _refuse(self, error: TwofoldError) -> None:
        self._send_all(Unloadable(error))
        for hub in list(self._hubs):
            hub.channel.drain()
        os._exit(error.exit_code)


def _limits(backend: Backend, working_set: int) -> MachineLimits | None:
    """The limits of the machine while a step reads so many bytes; None if they cannot be measured."""
    try:
        return backend.probe(working_set).limits()
    except (TwofoldError, OSError, MemoryError):
        return None


def _crash(failure: threading.ExceptHookArgs) -> None:
    """Ends the process after an uncaught exception."""
    print_fault(failure.exc_type, failure.exc_traceback)
    sys.stderr.flush()
    os._exit(CRASHED)
