"""The client: sends a load to a server and records every request."""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import time
from collections.abc import Iterator
from typing import Final

from twofold.bench.client.loop import ClientOptions, Loop, Watcher
from twofold.bench.client.target import ServerTarget, reachable
from twofold.bench.endpoints.endpoint import ApiEndpoint
from twofold.bench.load.base import Load
from twofold.bench.record import Client, RunRecord
from twofold.core.errors import ResourceError

SPARE_FILES: Final = 64


class LoadClient:
    """Sends loads to one server in one thread. Proxies are not used, since they would be measured too."""

    def __init__(self, target: ServerTarget, endpoint: ApiEndpoint, options: ClientOptions | None = None) -> None:
        self._target = target
        self._endpoint = endpoint
        self._options = options if options is not None else ClientOptions()
        self._stopped = False
        self._listen, self._call = socket.socketpair()
        for end in (self._listen, self._call):
            end.setblocking(False)

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._listen.close()
        self._call.close()

    def stop(self) -> None:
        """Ends the current run and all later ones. May be called by a signal handler or another thread."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._call.send(b"x")

    def run(self, load: Load, watcher: Watcher | None = None) -> RunRecord:
        """Sends ``load`` until all of it has ended, or until ``stop`` or Ctrl-C.

        Raises NetworkError if no connection can be made at the start, and ResourceError if this process may not open
        as many connections as the load needs.
        """
        max_open = room_for_connections(load.max_open)
        address = reachable(self._target)
        with _no_collection():
            loop = Loop(self._target, address, self._endpoint, load, self._options, max_open, watcher)
            cpu = time.process_time()
            try:
                try:
                    if not self._stopped:
                        loop.run(self._listen.fileno())
                    interrupted = self._stopped
                except KeyboardInterrupt:
                    interrupted = True
                wall_s = loop.now()
                cpu_s = time.process_time() - cpu
                samples = loop.finish(interrupted)
            finally:
                loop.close()
            responses = [sample.response for sample in samples]
            client = Client(
                wall_s=wall_s,
                cpu_s=cpu_s,
                lag_p50_s=loop.stamps.lag(0.5),
                lag_p99_s=loop.stamps.lag(0.99),
                stamps=loop.stamps.source,
                events=sum(len(response.moments) + response.empty + response.pings for response in responses),
            )
            duration_s = load.describe().get("duration_s")
            if duration_s is None:
                duration_s = loop.last_sent_s
            elif interrupted:
                duration_s = min(duration_s, loop.now())
        return RunRecord(load.describe(), samples, duration_s, client, loop.stamps.began_unix, interrupted)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables the garbage collector, whose pauses would delay requests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def room_for_connections(wanted: int | None) -> int:
    """``wanted`` connections, or as many as this process may open; raises its limit of open files to the hard limit.

    Raises ResourceError if it may open fewer than ``wanted``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    room = soft - SPARE_FILES if soft != resource.RLIM_INFINITY else 1 << 20
    if wanted is not None and wanted > room:
        message = f"{wanted} requests at once need more connections than the {room} that this process may open."
        raise ResourceError(message, hint="Raise the limit with `ulimit -n`, or lower --concurrency.")
    return room if wanted is None else wanted
