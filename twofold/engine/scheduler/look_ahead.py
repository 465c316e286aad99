"""Whether blocks will last: who is admitted must not make those that run thrash.

A sequence is admitted when the blocks that can be had cover its tokens, and what it and all running sequences will
come to need over the next tokens: what they are expected to generate, by the share of their limits that earlier ones
used, and at most a horizon. Alone it is admitted as soon as its tokens and one more fit.

A window's blocks go back while a sequence advances: in such a group it never holds more than the window and one step.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Row
from operator import le
from typing import Final

from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.pool import blocks_for
from twofold.engine.kv.reach import Reach
from twofold.engine.scheduler.sequence import Sequence

HORIZON: Final = 128
"""Tokens that are looked ahead."""
LEAST_AHEAD: Final = 16
SHARE_DECAY: Final = 0.05


class LookAhead:
    """``reaches`` tell how far each KV group sees; ``rows`` is the most that a step computes.

    ``share`` is how much of their limits answers have used of late.
    """

    def __init__(self, manager: BlockManager, reaches: Row[Reach], rows: int) -> None:
        self._manager = manager
        self.share = 1.0
        self._refused: tuple[int, tuple[int, ...]] | None = None
        step = blocks_for(rows, manager.block_size)
        self._most = [sys.maxsize if reach.window is None else reach.most() + step for reach in reaches]

    def learn(self, sequence: Sequence) -> None:
        """How much of its limit a sequence used that came to its end."""
        if sequence.draws:
            used = sequence.generated / (sequence.limit - sequence.prompt_length)
            self.share += SHARE_DECAY * (used - self.share)

    def lasts(self, sequence: Sequence, others: Collection[Sequence], found: int = 0) -> bool:
        """Whether blocks last when ``sequence`` runs beside ``others``; if it has none yet, its first ``found`` tokens
        are taken to need no new ones."""
        free = self._manager.obtainable()
        free = _minus(free, self._needed(sequence, self._expected(sequence, alone=not others), found))
        for other in others:
            if min(free) < 0:
                return False
            positions = self._expected(other, alone=False)
            if other.holding is None or positions > other.holding.room:
                free = _minus(free, self._needed(other, positions, 0))
        return min(free) >= 0

    def refuse(self, sequence: Sequence) -> None:
        """It did not fit as things are."""
        self._refused = sequence.sequence_id, self._manager.obtainable()

    def is_hopeless(self, sequence: Sequence) -> bool:
        """Whether no block came free since this sequence was refused: a look that costs nothing."""
        if self._refused is None or self._refused[0] != sequence.sequence_id:
            return False
        before, free = self._refused[1], self._manager.obtainable()
        self.refuse(sequence)
        return all(map(le, free, before))

    def _expected(self, sequence: Sequence, *, alone: bool) -> int:
        """Positions that it will come to need, as far as we look."""
        if alone:
            return min(sequence.known + 1, sequence.positions_needed)
        answer = self.share * (sequence.limit - sequence.prompt_length)
        ahead = min(max(int(answer) - sequence.generated, LEAST_AHEAD), HORIZON)
        return min(sequence.known + ahead, sequence.positions_needed)

    def _needed(self, sequence: Sequence, positions: int, found: int) -> tuple[int, ...]:
        """New blocks of each group until it has ``positions``."""
        holding = sequence.holding
        if holding is None:
            return tuple(map(min, self._manager.needed(None, found, max(positions, found)), self._most))
        counts = self._manager.needed(holding, sequence.computed, max(positions, sequence.computed))
        own = map(len, map(holding.own, range(len(counts))))
        return tuple(min(n, max(most - o, 0)) for n, most, o in zip(counts, self._most, own, strict=True))


def _minus(free: Iterable[int], used: Iterable[int]) -> tuple[int, ...]:
    return tuple(f - u for f, u in zip(free, used, strict=True))
