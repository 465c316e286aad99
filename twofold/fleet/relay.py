"""Transfers of blocks between replicas, in the hub: it relays what their workers send, and ends what takes too long.

Laws
    A transfer ends: when its target reports, when either replica is lost, or at its deadline. Both workers hear that.
    Data passes only from the source to the target of a transfer, in order, and only as many blocks as were chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Protocol

from twofold.core.request import EngineRequest
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.fleet.checks import PeerError
from twofold.fleet.messages import (
    BlockData,
    BlocksFetched,
    BlocksGone,
    EndTransfer,
    FetchBlocks,
    FromTransfer,
    PrefetchBlocks,
    PullBlocks,
    Ready,
    SendBlocks,
    ToWorker,
)
from twofold.fleet.routing.index import windows_of
from twofold.fleet.routing.router import BlockFetch, Choice
from twofold.fleet.streams import RequestRoute
from twofold.observe.served import FetchedBlocks

FIRST_RATE: Final = 1e8
"""Bytes per second of a pair of replicas until a transfer between them was measured."""
MIN_RATE: Final = 1.0
FIXED_S: Final = 0.005
"""Seconds of a transfer beside those of its bytes."""
RATE_WEIGHT: Final = 0.3
MAX_FETCHES: Final = 4
"""Transfers to one replica at once; further requests compute."""
LIMIT_S: Final = 2.0
"""A transfer ends after this time and four times its prediction."""


class LinkRates:
    """Bytes per second between pairs of replicas, by the transfers so far."""

    def __init__(self) -> None:
        self._rates: dict[tuple[int, int], float] = {}

    def seconds(self, source: int, target: int, nbytes: int) -> float:
        """Predicted seconds of a transfer."""
        return FIXED_S + nbytes / self._rates.get((source, target), FIRST_RATE)

    def learn(self, source: int, target: int, nbytes: int, seconds: float) -> None:
        """Notes the seconds that bytes took, beside what is fixed."""
        rate, pair = max(MIN_RATE, nbytes / max(seconds, 1e-4)), (source, target)
        known = self._rates.get(pair)
        self._rates[pair] = rate if known is None else known + RATE_WEIGHT * (rate - known)

    def forget(self, replica: int) -> None:
        """A replica was lost; another one may get its number."""
        self._rates = {pair: rate for pair, rate in self._rates.items() if replica not in pair}


@dataclass(slots=True)
class _Transfer:
    fetch: BlockFetch
    target: int
    done: Callable[[FetchedBlocks | None], None]
    deadline: asyncio.TimerHandle
    next: int | None = None
    first_at: float | None = None


class Peer(Protocol):
    """A replica: the message that it sent when it was ready, and its work."""

    ready: Ready | None

    def ahead(self, now: float) -> WorkAhead: ...

    def send(self, message: ToWorker) -> None: ...


class BlockRelay:
    """The transfers between the replicas of a fleet."""

    def __init__(self, replicas: Mapping[int, Peer], clock: Callable[[], float]) -> None:
        self.rates = LinkRates()
        self._replicas = replicas
        self._clock = clock
        self._numbers = count(1)
        self._transfers: dict[int, _Transfer] = {}

    def __len__(self) -> int:
        return len(self._transfers)

    def find(
        self, numbers: Sequence[int], target: int, cached: Sequence[int], goal_tokens: int = 0
    ) -> BlockFetch | None:
        """What the ``target``-th of the replicas ``numbers`` could fetch of a prompt, given the cached tokens of each,
        if in the end it needs ``goal_tokens``, or else what it fetches now; None if no other one has more, or if all
        layers have windows."""
        best, ready = max(range(len(cached)), key=cached.__getitem__), self._replicas[numbers[target]].ready
        if ready is None or ready.engine.groups[0].window is not None:
            return None
        size = ready.engine.block_size
        blocks, have = cached[best] // size, cached[target] // size
        if blocks <= have:
            return None
        goal, nbytes = max(blocks, goal_tokens // size), 0
        for group, window in zip(ready.engine.groups, windows_of(ready.engine), strict=True):
            nbytes += max(0, blocks - max(have, window.first(goal * size, goal))) * group.block_bytes
        source = numbers[best]
        seconds = self.rates.seconds(source, numbers[target], nbytes)
        busy_s = self._replicas[source].ahead(self._clock()).busy_s
        return BlockFetch(source, blocks, size, goal, nbytes, seconds, busy_s)

    def begin(self, request: EngineRequest, choice: Choice, route: RequestRoute) -> None:
        """Begins a transfer for a request that is sent to its replica next."""
        fetch, target = choice.fetch, choice.replica
        assert fetch is not None, "it fetches"
        if self.busy(target):
            return
        number = self._open(request, fetch, target, partial(setattr, route, "fetched"))
        self._send(target, FetchBlocks(number, request.request_id, fetch.blocks))

    def prefetch(
        self, request: EngineRequest, fetch: BlockFetch, target: int, done: Callable[[FetchedBlocks | None], None]
    ) -> None:
        """Begins a transfer for a request that runs elsewhere. ``done`` is called at its end, with None if nothing was
        transferred."""
        number = self._open(request, fetch, target, done)
        tokens = request.token_ids[: fetch.tokens]
        self._send(target, PrefetchBlocks(number, request.options.cache_key, tokens, fetch.goal))

    def busy(self, target: int) -> bool:
        """Whether a replica has as many transfers as it may."""
        return sum(each.target == target for each in self._transfers.values()) >= MAX_FETCHES

    def _open(
        self, request: EngineRequest, fetch: BlockFetch, target: int, done: Callable[[FetchedBlocks | None], None]
    ) -> int:
        number = next(self._numbers)
        limit_s = LIMIT_S + 4 * (fetch.wait_s + fetch.seconds)
        deadline = asyncio.get_running_loop().call_later(limit_s, self._end, number)
        self._transfers[number] = _Transfer(fetch, target, done, deadline)
        tokens = request.token_ids[: fetch.tokens]
        self._send(fetch.source, SendBlocks(number, request.options.cache_key, tokens, fetch.goal))
        return number

    def hear(self, replica: int, message: FromTransfer) -> None:
        """Takes a message about a transfer. One that does not fit is ignored."""
        transfer = self._transfers.get(message.number)
        if transfer is None:
            return
        from_target = isinstance(message, PullBlocks | BlocksFetched)
        if replica != (transfer.target if from_target else transfer.fetch.source):
            return
        match message:
            case PullBlocks():
                if transfer.next is None:
                    transfer.next = message.first
                self._send(transfer.fetch.source, message)
            case BlockData():
                if transfer.next != message.place or message.place >= transfer.fetch.blocks:
                    self._end(message.number)
                    return
                transfer.next += 1
                transfer.first_at = self._clock() if transfer.first_at is None else transfer.first_at
                self._send(transfer.target, message)
            case BlocksGone():
                self._send(transfer.target, EndTransfer(message.number))
            case BlocksFetched():
                self._finish(message, transfer)

    def lose(self, replica: int) -> None:
        """A replica is lost or does not answer: its transfers end."""
        self.rates.forget(replica)
        for number, transfer in list(self._transfers.items()):
            if replica in (transfer.target, transfer.fetch.source):
                self._end(number)

    def close(self) -> None:
        for number in list(self._transfers):
            self._end(number)

    def _finish(self, message: BlocksFetched, transfer: _Transfer) -> None:
        if message.blocks > transfer.fetch.blocks:
            raise PeerError(f"{message.blocks} blocks of {transfer.fetch.blocks} were fetched")
        source, tokens = transfer.fetch.source, message.blocks * transfer.fetch.block_size
        if message.blocks > 1 and transfer.first_at is not None:  # without the wait for the first one
            later = message.bytes * (message.blocks - 1) // message.blocks
            self.rates.learn(source, transfer.target, later, self._clock() - transfer.first_at - message.publish_s)
        found = FetchedBlocks(source, message.blocks, tokens, message.bytes, message.seconds)
        self._end(message.number, found if message.blocks > 0 else None)

    def _end(self, number: int, found: FetchedBlocks | None = None) -> None:
        transfer = self._transfers.pop(number)
        transfer.deadline.cancel()
        for replica in (transfer.fetch.source, transfer.target):
            self._send(replica, EndTransfer(number))
        transfer.done(found)

    def _send(self, number: int, message: ToWorker) -> None:
        """Sends a message to a replica, if it is there."""
        replica = self._replicas.get(number)
        if replica is not None:
            replica.send(message)
