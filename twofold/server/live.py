"""A model's engine as a stream of server-sent events, for GET /v1/twofold/live.

    event    data
    state    the model is not loaded, or loading; once it is ready, hello follows
    hello    once: the engine, the machine, the steps of the last minute and the lanes (``observe.live.board``)
    tick     what is new: steps, lanes, queue and blocks; at most ``hz`` a second, and only where something happened
    lately   each second: latencies of the last five minutes, and counts
    blocks   at most each second, with ``blocks=1``: the KV cache by what its blocks are, and an outline of its tree

A turn of the ticker makes the ticks of all watched models ten times a second; no watcher, no turn. An event is encoded
once for all watchers that see the same. A watcher that does not read keeps nothing waiting: it gets several ticks as
one, and after LATE_S another hello. When MAX_WATCHERS are open, the newest stream of the tenant with the most ends for
one of a tenant that has at least two fewer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson
from starlette.types import Receive

from twofold.core.errors import BusyError
from twofold.core.tasks import start_task
from twofold.observe.live.board import LiveBoard, merged, tick_lanes
from twofold.observe.live.columns import columns
from twofold.observe.live.lanes import Viewer
from twofold.planner.predict.roofline import step_limits
from twofold.server.edge.body import disconnected
from twofold.server.models.registry import ModelRegistry, ServedModel

MAX_WATCHERS: Final = 32
MAX_OWN: Final = 8
"""Streams of one caller."""
TURN_S: Final = 0.1
SECOND_S: Final = 1.0
LATE_S: Final = 5.0
"""A watcher that took no event for so long gets another hello."""
KEEP_S: Final = 60.0
"""How long lanes are kept after the last watcher of a model has left, so that a page that reloads has them."""
QUIET_S: Final = 15.0
QUIET: Final = b": quiet\n\n"


@dataclass(slots=True, eq=False)
class LiveWatcher:
    """A stream of a tenant's key, or of an address (``source``). ``epoch`` and ``tick`` are those of the last events
    that it got, ``due`` is when the next tick may be sent, ``second`` and ``picture`` when the last of lately and of
    blocks were made, ``ended`` whether another one took its place."""

    model: ServedModel
    viewer: Viewer
    period_s: float
    blocks: bool
    tenant: str
    source: str
    ended: bool = False
    epoch: int = -1
    tick: int = 0
    due: float = 0.0
    second: int = -1
    picture: float = -1.0
    state: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class LiveService:
    """All streams of a server. It belongs to the event loop."""

    def __init__(self, registry: ModelRegistry, board: LiveBoard) -> None:
        self._registry = registry
        self._board = board
        self._watchers: dict[LiveWatcher, None] = {}
        self._left: dict[ServedModel, float] = {}
        self._cache: dict[tuple[Any, ...], bytes] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._second = 0
        self._closed = False

    def open(self, watcher: LiveWatcher, receive: Receive) -> AsyncGenerator[bytes, None]:
        """A stream, which ends when its client disconnects. Raises BusyError if too many are open."""
        self._make_room(watcher)
        return self._stream(watcher, receive)

    def _make_room(self, watcher: LiveWatcher) -> None:
        """Ends a stream for a new one if there are too many. Raises BusyError if its tenant, or its source, has as many
        as others."""
        tenants = Counter(each.tenant for each in self._watchers)
        own = sum(each.source == watcher.source for each in self._watchers)
        greedy, most = tenants.most_common(1)[0] if tenants else ("", 0)
        full = len(self._watchers) >= MAX_WATCHERS
        if own >= MAX_OWN or (full and most < tenants[watcher.tenant] + 2):
            raise BusyError(
                "Too many live streams are open.", retry_after_s=SECOND_S, hint="Close another view of the engine."
            )
        if full:
            last = next(each for each in reversed(self._watchers) if each.tenant == greedy)
            del self._watchers[last]
            last.ended = True
            last.woken.set()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for watcher in self._watchers:
            watcher.woken.set()
        if self._ticker is not None:
            self._ticker.cancel()

    async def _stream(self, watcher: LiveWatcher, receive: Receive) -> AsyncGenerator[bytes, None]:
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: watcher.woken.set())
        self._watchers[watcher] = None
        self._left.pop(watcher.model, None)
        if self._ticker is None or self._ticker.done():
            self._ticker = start_task(self._turn(), "live")
        self._follow(watcher.model)
        try:
            while not (gone.done() or self._closed or watcher.ended):
                watcher.woken.clear()
                sent = time.monotonic()
                if data := self._events(watcher, sent):
                    yield data
                    if time.monotonic() - sent > LATE_S:
                        watcher.epoch = -1
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        await watcher.woken.wait()
                        continue
                yield QUIET
        finally:
            gone.cancel()
            self._watchers.pop(watcher, None)
            if all(other.model is not watcher.model for other in self._watchers):
                self._left[watcher.model] = time.monotonic()

    # -- the ticker ----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Makes ticks while a model is watched."""
        began = time.monotonic()
        while self._watchers or self._left:
            await asyncio.sleep(TURN_S)
            second = int((time.monotonic() - began) / SECOND_S)
            whole, self._second = second != self._second, second
            self._cache.clear()
            for model, left in list(self._left.items()):
                if time.monotonic() - left > KEEP_S:
                    self._forget(model)
            watched = {watcher.model for watcher in self._watchers}
            fresh = {model for model in {*watched, *self._left} if self._board.tick(model.names[0])}
            for model in watched if whole else ():
                self._follow(model)
                if model.worker is not None and any(w.blocks for w in self._watchers if w.model is model):
                    model.worker.look()
            for watcher in self._watchers:
                if whole or watcher.model in fresh or watcher.tick < self._board.last(watcher.model.names[0]):
                    watcher.woken.set()

    def _follow(self, model: ServedModel) -> None:
        """Asks the model's engine for the events of its lanes; it may be a new one."""
        if model.worker is not None and not model.worker.watched:
            self._board.watch(model.names[0], on=False)
            self._board.watch(model.names[0], on=True)
            model.worker.watch(on=True)

    def _forget(self, model: ServedModel) -> None:
        del self._left[model]
        self._board.watch(model.names[0], on=False)
        if model.worker is not None:
            model.worker.watch(on=False)

    # -- events --------------------------------------------------------------------------------------------------------

    def _events(self, watcher: LiveWatcher, now: float) -> bytes:
        """What a watcher has not got yet; empty if nothing is due."""
        board, name, state = self._board, watcher.model.names[0], watcher.model.state
        if state != "ready":
            watcher.epoch = -1
            if watcher.state == state:
                return b""
            watcher.state = state
            error = watcher.model.error
            return _event("state", {"state": state, "error": None if error is None else str(error)})
        watcher.state = state
        ticks = board.since(name, watcher.tick)
        if watcher.epoch != board.epoch(name) or ticks is None:
            board.tick(name)  # what it has is in hello, too
            watcher.epoch, watcher.tick = board.epoch(name), board.last(name)
            watcher.due, watcher.second, watcher.picture = now + watcher.period_s, -1, -1.0
            return self._once(("hello", name, watcher.viewer), partial(self._hello, watcher.model, watcher.viewer))
        found = b""
        if ticks and now >= watcher.due - TURN_S / 2:
            first, last = watcher.tick, ticks[-1].number
            watcher.tick, watcher.due = last, now + watcher.period_s
            tick = merged(ticks)
            steps = self._once(("steps", name, first, last), lambda: orjson.dumps(columns(tick.rows)))
            lanes = self._once(
                ("lanes", name, first, last, watcher.viewer),
                lambda: orjson.dumps(tick_lanes(tick.events, watcher.viewer)),
            )
            head = orjson.dumps({"t": tick.at, "queue": tick.queue, "kv": tick.kv})
            found += b'event: tick\ndata: %b,"steps":%b,"lanes":%b}\n\n' % (head[:-1], steps, lanes)
        if watcher.second != self._second:
            watcher.second = self._second
            lately = partial(board.lately, name, watcher.viewer)
            found += self._once(("lately", name, watcher.viewer), lambda: _event("lately", lately()))
        at = board.picture_at(name)
        if watcher.blocks and at > watcher.picture:
            watcher.picture = at
            blocks = partial(board.blocks, name, watcher.viewer)
            found += self._once(("blocks", name, watcher.viewer), lambda: _event("blocks", blocks()))
        return found

    def _hello(self, model: ServedModel, viewer: Viewer) -> bytes:
        worker = model.worker
        facts = None if worker is None else worker.ready.engine
        hello = self._board.hello(model.names[0], viewer, facts)
        return _event("hello", {**hello, **({} if worker is None else step_limits(worker.ceilings))})

    def _once(self, key: tuple[Any, ...], make: Callable[[], bytes]) -> bytes:
        """The bytes under a key, made once in a turn."""
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
        return found


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
