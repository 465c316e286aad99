"""Blocks of keys and values on their way from one replica to another, through the hub: the workers' side.

    hub → target      FetchBlocks, then the request that waits for them; or PrefetchBlocks
    hub → source      SendBlocks: hold the blocks of this prefix that are computed when its step ends
    target → source   PullBlocks: send blocks up to this one. At most WINDOW_BYTES, or two blocks, are on their way
    source → target   BlockData, one block a message, in order; BlocksGone if it has no more
    target → hub      BlocksFetched; the request enters the engine, whatever arrived. Of a prefetch, the names of the
                      blocks come before
    hub → both        EndTransfer: a replica was lost, or it takes too long

A message has the block of each KV group at one place of the prompt. A group with an attention window has only those
blocks that the row after the whole prefix reads; the target can use the prefix when they are all there.

The target takes blocks of its cache, fills them and publishes them in its prefix tree, as a load from the KV store
does; no step reads them before. It accepts a block if it has the right number, size and keyed digest, and computes the
rest of the prompt. Both sides hold their blocks until the end of the transfer, so none is evicted while it is read or
filled. A transfer belongs to one request, and its blocks to the request's cache salt.
"""

from __future__ import annotations

import hmac
import logging
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import le
from threading import Lock
from typing import Any, Final

from blake3 import blake3

from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.kv.block_tables import BlockTables
from twofold.engine.kv.names import BlockKeys
from twofold.engine.loop import EngineThread
from twofold.fleet.messages import (
    BlockData,
    BlocksFetched,
    BlocksGone,
    EndTransfer,
    FetchBlocks,
    FromWorker,
    PrefetchBlocks,
    PullBlocks,
    SendBlocks,
    ToTransfer,
)
from twofold.models.ops import BlockMemory

log = logging.getLogger("twofold.serve")
WINDOW_BYTES: Final = 1 << 20
"""Bytes of one transfer that may be on their way, so that tokens on the same connections wait little."""
SPARE: Final = 0.1
"""Share of the blocks that a fetch leaves to sequences."""
STUCK_S: Final = 300.0
"""Maximum seconds that a call waits for the engine. Then the engine hangs: the error of the call ends the process."""


@dataclass(slots=True)
class _Sending:
    """A transfer to another replica, for which this one holds ``blocks`` blocks; None until its step has ended. It has
    sent the blocks before ``sent``, and the other replica has asked for those before ``upto``."""

    salt: str
    goal: int
    tables: BlockTables | None = None
    blocks: int | None = None
    sent: int = 0
    upto: int = 0


@dataclass(slots=True)
class _Fetch:
    """Blocks of a text that are filled, up to the block ``end``: those before ``have`` are there, from ``first`` on
    they were fetched. In the end ``goal`` blocks are needed. A request may wait for them."""

    salt: str
    text: Sequence[int]
    end: int
    goal: int
    began: float
    request_id: str | None = None
    tables: BlockTables | None = None
    first: int = 0
    have: int = 0
    nbytes: int = 0


class BlockTransfers:
    """The transfers of one worker, on a thread of its own. ``enter`` passes a request to the engine, with the seconds
    that it has waited; ``report`` reports the engine's blocks to its hubs, on the engine's thread."""

    def __init__(
        self,
        thread: EngineThread,
        keys: BlockKeys,
        memory: BlockMemory,
        post: Callable[[FromWorker], None],
        enter: Callable[[EngineRequest, float], None],
        report: Callable[[], None],
    ) -> None:
        self._engine = thread
        self._keys = keys
        self._memory = memory
        self._post = post
        self._enter = enter
        self._report_blocks = report
        self._thread = ThreadPoolExecutor(1, "twofold-blocks")
        self._expected: dict[str, FetchBlocks] = {}
        self._held: dict[str, EngineRequest] = {}
        self._lock = Lock()
        self._fetches: dict[int, _Fetch] = {}
        self._sending: dict[int, _Sending] = {}

    # -- requests, on the thread that receives messages ---------------------------------------------------------------

    def hold(self, request: EngineRequest) -> bool:
        """Keeps a request until its blocks are there; False if it waits for none."""
        wanted = self._expected.pop(request.request_id, None)
        if wanted is None:
            return False
        with self._lock:
            self._held[request.request_id] = request
        salt, began = request.options.cache_key, time.monotonic()
        fetch = _Fetch(salt, request.token_ids, wanted.blocks, wanted.blocks, began, request.request_id)
        self._thread.submit(self._guarded, self._begin, wanted.number, fetch)
        return True

    def drop(self, request_id: str) -> EngineRequest | None:
        """Takes a request that waits for blocks, which may arrive all the same; None if it does not wait."""
        with self._lock:
            return self._held.pop(request_id, None)

    def handle(self, message: FetchBlocks | ToTransfer) -> None:
        """Handles a message of the hub, all but FetchBlocks on the thread of transfers."""
        match message:
            case FetchBlocks():
                self._expected[message.request_id] = message
            case PrefetchBlocks(number, salt, token_ids, goal):
                fetch = _Fetch(salt, token_ids, len(token_ids), goal, time.monotonic())
                self._thread.submit(self._guarded, self._begin, number, fetch)
            case SendBlocks():
                self._thread.submit(self._guarded, self._open, message.number, message)
            case PullBlocks():
                self._thread.submit(self._guarded, self._pull, message.number, message)
            case BlockData():
                self._thread.submit(self._guarded, self._fill, message.number, message)
            case EndTransfer():
                self._thread.submit(self._guarded, self._end, message.number, message)

    def close(self) -> None:
        """Ends all transfers, and waits for that. No request enters the engine afterwards."""
        with self._lock:
            self._held.clear()
        self._thread.submit(self._end_all).result(STUCK_S)
        self._thread.shutdown()

    # -- on the thread of transfers -----------------------------------------------------------------------------------

    def _guarded(self, step: Callable[..., None], number: int, argument: object) -> None:
        """A request enters the engine, whatever happens to its blocks."""
        try:
            step(number, argument)
        except Exception as error:
            log.warning("blocks could not be fetched or sent: %r", error)
            if number in self._fetches:
                self._finish(number)
            elif isinstance(argument, _Fetch):
                self._report(number, argument)

    def _open(self, number: int, wanted: SendBlocks) -> None:
        """Holds the blocks that the prefix tree has of a prefix. Other transfers continue until the step ends."""
        text = array("i", wanted.token_ids)
        sending = self._sending[number] = _Sending(wanted.salt, wanted.goal)

        def take(engine: Engine) -> None:
            manager = engine.scheduler.manager
            whole, gaps = manager.kept(text, wanted.salt)
            firsts = [min(first, whole) for first in manager.reads(sending.goal)]
            if whole and all(map(le, gaps, firsts)) and not manager.moving:
                held = text[: whole * manager.block_size]
                sending.tables = manager.reserve(held, wanted.salt, whole, whole, firsts, engine.now())
            sending.blocks = 0 if sending.tables is None else whole

        def opened(taken: Future[None]) -> None:
            if (error := taken.exception()) is not None:
                log.warning("blocks could not be held for another replica: %r", error)
                sending.blocks = 0
            with suppress(RuntimeError):  # the hub has gone
                self._thread.submit(self._guarded, self._send, number, sending)

        self._engine.call(take).add_done_callback(opened)

    def _pull(self, number: int, asked: PullBlocks) -> None:
        """The target asks for more blocks."""
        sending = self._sending.get(number)
        if sending is None:
            return
        if not sending.upto:
            sending.sent = asked.first
        sending.upto = max(sending.upto, asked.upto)
        self._send(number, sending)

    def _send(self, number: int, sending: _Sending) -> None:
        """Sends the blocks that it holds and that the target has asked for."""
        if sending.blocks is None or number not in self._sending:
            return
        while sending.sent < min(sending.upto, sending.blocks):
            assert sending.tables is not None, "it has blocks"
            place = sending.sent
            payload: Any = bytearray(self._size(sending.tables, place))  # encoded as bytes are
            for group, blocks, content in self._parts(sending.tables, place, payload):
                self._memory.read_blocks(group, blocks, content)
            self._post(BlockData(number, place, self._digest(sending.salt, number, place, payload), payload))
            sending.sent += 1
        if sending.sent < sending.upto:
            self._post(BlocksGone(number))

    def _begin(self, number: int, fetch: _Fetch) -> None:
        """Takes blocks for what the prefix tree lacks, and asks for their contents."""
        salt = fetch.salt

        def take(engine: Engine) -> tuple[BlockTables | None, int]:
            manager = engine.scheduler.manager
            text = array("i", fetch.text[: fetch.end * manager.block_size])
            fetch.end = min(fetch.end, len(text) // manager.block_size)
            whole, gaps = manager.kept(text, salt)
            firsts = [min(first, fetch.end) for first in manager.reads(fetch.goal)]
            keep = min(whole, *(first for first, gap in zip(firsts, gaps, strict=True) if gap > first), fetch.end)
            if keep >= fetch.end or manager.moving:
                return None, keep
            return manager.reserve(text, salt, keep, fetch.end, firsts, engine.now(), spare=SPARE), keep

        fetch.tables, fetch.first = self._engine.call(take).result()
        fetch.have = fetch.first
        if fetch.tables is None:
            self._report(number, fetch)
            return
        self._fetches[number] = fetch
        self._ask(number, fetch)

    def _ask(self, number: int, fetch: _Fetch) -> None:
        assert fetch.tables is not None, "it has blocks"
        size = sum(map(self._memory.block_nbytes, range(len(fetch.tables.blocks))))
        upto = min(fetch.end, fetch.have + max(2, WINDOW_BYTES // size))
        self._post(PullBlocks(number, fetch.first, upto))

    def _fill(self, number: int, data: BlockData) -> None:
        fetch = self._fetches.get(number)
        if fetch is None:
            return
        assert fetch.tables is not None, "it has blocks"
        size = self._size(fetch.tables, fetch.have)
        digest = self._digest(fetch.salt, number, data.place, data.payload)
        if data.place != fetch.have or len(data.payload) != size or not hmac.compare_digest(digest, data.digest):
            log.warning("a replica sent a damaged block; the rest of the prompt is computed")
            self._finish(number)
            return
        for group, blocks, content in self._parts(fetch.tables, fetch.have, data.payload):
            self._memory.write_blocks(group, blocks, content)
        fetch.have += 1
        fetch.nbytes += size
        if fetch.have == fetch.end:
            self._finish(number)
        else:
            self._ask(number, fetch)

    def _size(self, tables: BlockTables, place: int) -> int:
        """Bytes of the tables' blocks at a place, of each group whose window has not passed it."""
        return sum(self._memory.block_nbytes(group) for group, first in enumerate(tables.first) if first <= place)

    def _parts(self, tables: BlockTables, place: int, payload: bytes) -> Iterator[tuple[int, array[int], memoryview]]:
        """Those groups, each with its block, and the part of the payload that has its contents."""
        at = 0
        for group, first in enumerate(tables.first):
            if first <= place:
                end = at + self._memory.block_nbytes(group)
                yield group, tables.blocks[group][place : place + 1], memoryview(payload)[at:end]
                at = end

    def _end(self, number: int, _: object) -> None:
        """The hub ends a transfer."""
        if number in self._fetches:
            self._finish(number)
        sending = self._sending.pop(number, None)
        if sending is not None:
            self._engine.call(partial(_release, sending))

    def _end_all(self) -> None:
        for number in {*self._fetches, *self._sending}:
            self._guarded(self._end, number, None)

    def _finish(self, number: int) -> None:
        """Publishes the blocks that are there; the request enters the engine."""
        fetch = self._fetches.pop(number)
        tables = fetch.tables
        assert tables is not None, "it has blocks"

        def publish(engine: Engine) -> None:
            manager, now = engine.scheduler.manager, engine.now()
            tokens = array("i", fetch.text)
            manager.publish(tables, tokens, fetch.have * manager.block_size, now)
            manager.close(tables, now)
            if fetch.request_id is None:
                self._report_blocks()

        arrived, published = time.monotonic(), self._engine.call(publish)
        if fetch.request_id is None:
            published.result()
        self._report(number, fetch, time.monotonic() - arrived)  # it enters the engine after the blocks
        published.result()

    def _report(self, number: int, fetch: _Fetch, publish_s: float = 0.0) -> None:
        seconds = time.monotonic() - fetch.began - publish_s
        self._post(BlocksFetched(number, fetch.have - fetch.first, fetch.nbytes, seconds, publish_s))
        if fetch.request_id is None:
            return
        with self._lock:  # an abort comes before it, or after the request has entered
            request = self._held.pop(fetch.request_id, None)
            if request is not None:
                self._enter(request, seconds)

    def _digest(self, salt: str, number: int, place: int, payload: bytes) -> bytes:
        """The MAC of a block of a transfer, which only a worker of this fleet can compute."""
        key = blake3(self._keys.secret + self._keys.root(salt)).digest()
        mac = blake3(number.to_bytes(8, "little") + place.to_bytes(8, "little"), key=key)
        return mac.update(payload).digest()


def _release(sending: _Sending, engine: Engine) -> None:
    """Releases the blocks of a transfer. The engine runs its calls in order, so it has taken them before."""
    if sending.tables is not None:
        engine.scheduler.manager.close(sending.tables, engine.now())
