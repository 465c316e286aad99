"""A worker process: it receives the path of a model, loads and tests it, and serves until the server closes its end of
the socket. It ignores interrupts; the server ends it.

An uncaught exception on any thread ends the process; the server starts another one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Final

from twofold.core.errors import ResourceError, TwofoldError
from twofold.core.limits import MachineLimits
from twofold.engine.config import EngineConfig, EngineOptions
from twofold.engine.load import LoadedModel, load_model
from twofold.formats.open import open_model
from twofold.host.paths import CacheFolders
from twofold.server.models.memory import plan_of
from twofold.server.workers.channel import Channel
from twofold.server.workers.messages import LoadModel, Ping, Pong, Ready, Unloadable
from twofold.server.workers.service import Service

CRASHED: Final = 70
"""Exit code after an uncaught exception: sysexits.h's internal software error."""


def main(descriptor: int) -> None:
    """Serves over the connected socket with this file descriptor; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _crash
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if isinstance(first, LoadModel):
        _Worker(channel, first).serve()
    os._exit(0)  # without waiting for the engine's thread


class _Worker:
    """Receives messages while another thread loads the model, so that the server's end is noticed meanwhile."""

    def __init__(self, channel: Channel, load: LoadModel) -> None:
        self._channel = channel
        self._service: Service | None = None
        threading.Thread(target=self._load, args=(load,), name="twofold-load", daemon=True).start()

    def serve(self) -> None:
        """Handles messages until the server closes its end."""
        while (message := self._channel.receive()) is not None:
            if self._service is not None:
                self._service.handle(message)
            elif isinstance(message, Ping):
                self._channel.send(Pong(message.number, None))

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
        machine = options.open_backend().limits(path.stat().st_size)
        loaded = load_model(path, options, tokenizer_cache=folders.tokenizers, cache=folders.root)
        service = Service(loaded, self._channel.send)
        service.test()
        self._service = service
        self._channel.send(_ready(loaded, path, machine))

    def _refuse(self, error: TwofoldError) -> None:
        self._channel.send(Unloadable(error))
        self._channel.drain()
        os._exit(error.exit_code)


def _ready(loaded: LoadedModel, path: Path, machine: MachineLimits | None) -> Ready:
    config: EngineConfig = loaded.config
    with open_model(path) as file:
        weights = file.nbytes
    return Ready(
        context=config.context,
        hidden_size=loaded.spec.hidden_size,
        bytes=plan_of(config, loaded.spec, weights).bytes,
        load_s=loaded.load_s,
        compile_s=loaded.compile_s,
        machine=machine,
        kv_type=config.kv_type,
    )


def _crash(failure: threading.ExceptHookArgs) -> None:
    """Prints the exception's traceback without its message, which may quote a request, and ends the process."""
    sys.stderr.write(
        f"twofold worker: {failure.exc_type.__name__}\n{''.join(traceback.format_tb(failure.exc_traceback))}"
    )
    sys.stderr.flush()
    os._exit(CRASHED)
