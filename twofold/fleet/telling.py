"""What a worker tells a hub that routes requests: its work, and which blocks its prefix cache holds."""

from __future__ import annotations

import math

from twofold.core.request import MAX_PRIORITY
from twofold.engine.engine import Engine
from twofold.engine.kv.names import BlockKeys
from twofold.engine.scheduler.sequence import Sequence
from twofold.fleet.messages import Blocks, ToldWork


class WorkTeller:
    """The work and the blocks of an engine, on its thread. ``received`` counts the requests that have reached it."""

    def __init__(self, engine: Engine, keys: BlockKeys) -> None:
        self._engine = engine
        self._journal = engine.scheduler.manager.name_blocks(keys)
        self._cached: dict[int, int] = {}
        self._event = 0
        self.received = 0

    def work(self) -> ToldWork:
        """The work of the engine, and the changes of its blocks since the last call."""
        now = self._engine.now()
        ahead = self._engine.scheduler.queue_ahead(MAX_PRIORITY, math.inf)
        before, self._cached = self._cached, {}
        for sequence in ahead.waiting:
            number = sequence.sequence_id
            self._cached[number] = before[number] if number in before else self._find(sequence)
        work = ahead.work(lambda sequence: self._cached[sequence.sequence_id], now)
        added, removed = self._journal.take()
        if added or removed:
            self._event += 1
        return ToldWork(self.received, work, self._event, added, removed)

    def blocks(self) -> Blocks:
        """The names of all blocks. The changes so far are in it."""
        self._journal.take()
        return Blocks(self._event, self._journal.names)

    def _find(self, sequence: Sequence) -> int:
        if sequence.swapped is not None:
            return sequence.computed
        return self._engine.scheduler.manager.matched(sequence.tokens, sequence.options.cache_salt)
