"""What a worker reports to hubs that route requests: its work, and which blocks its prefix cache holds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from twofold.core.request import MAX_PRIORITY
from twofold.engine.engine import Engine
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.names import BlockKeys
from twofold.engine.scheduler.forecast import EngineWork
from twofold.engine.scheduler.sequence import Sequence
from twofold.fleet.messages import MAX_NAMES, Blocks, WorkReport


class WorkReporter:
    """The work of an engine, on its thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cached: dict[int, int] = {}

    def work(self) -> EngineWork:
        """The work of the engine, of all its hubs."""
        ahead = self._engine.scheduler.queue_ahead(MAX_PRIORITY, math.inf)
        before, self._cached = self._cached, {}
        for sequence in ahead.waiting:
            number = sequence.sequence_id
            self._cached[number] = before[number] if number in before else self._find(sequence)
        return ahead.work(lambda sequence: self._cached[sequence.sequence_id], self._engine.now())

    def _find(self, sequence: Sequence) -> int:
        if sequence.swapped is not None:
            return sequence.computed
        return self._engine.scheduler.manager.matched(sequence.tokens, sequence.options.cache_key)


class HubReporter:
    """What is reported to one hub of an engine, whose blocks are named with the hub's keys; on the engine's thread."""

    def __init__(self, manager: BlockManager, keys: BlockKeys) -> None:
        self._manager = manager
        self._journal = manager.name_blocks(keys)
        self._event = 0

    def report(self, received: int, work: EngineWork) -> WorkReport:
        """The work of the engine, which has received so many requests of the hub, and the changes of its blocks since
        the last call."""
        added, removed = self._journal.take()
        if added or removed:
            self._event += 1
        return WorkReport(received, work, self._event, added, removed)

    def blocks(self) -> Iterator[Blocks]:
        """The names of all blocks, in parts. The changes so far are in them."""
        self._journal.take()
        names = self._journal.names
        for first in range(0, len(names) or 1, MAX_NAMES):
            yield Blocks(self._event, names[first : first + MAX_NAMES], first, first + MAX_NAMES < len(names))

    def close(self) -> None:
        """The hub has gone."""
        self._manager.end_names(self._journal)
