"""Whom to preempt when blocks run out, and how: keep its blocks on the host, or compute them again.

Swapping costs two moves for each block, at the seconds that moves were seen to take. Computing again costs what the
step-time model says of the tokens that will not be found in the prefix cache on return; how much of what is there now
will still be there is learned from earlier returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from twofold.core.step import StepOutcome, StepPlan
from twofold.engine.kv.manager import BlockManager
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

BLOCK_SECONDS: Final = 5e-4
"""Seconds for a block to be moved, before one was: about a megabyte at a few gigabytes a second."""
SURVIVAL: Final = 0.5
"""Share of a preempted sequence's cached tokens expected to be found again, before one returned."""
DECAY: Final = 0.1


def least_urgent(running: Iterable[Sequence], urgency: Callable[[Sequence], float]) -> Sequence:
    """The one that others can best do without: of the least urgent class, the latest."""
    return max(running, key=lambda sequence: (urgency(sequence), sequence.sequence_id))


class PreemptionCost:
    """What each way of preempting will cost, in seconds."""

    def __init__(self, manager: BlockManager, model: StepTimeModel) -> None:
        self._manager = manager
        self._model = model
        self._block_s = BLOCK_SECONDS
        self._survival = SURVIVAL
        self._lost: dict[int, tuple[int, int]] = {}

    def prefers_swap(self, sequence: Sequence) -> bool:
        """Whether swapping is predicted cheaper; computing again where nothing is known of its cost."""
        again = self.recompute_s(sequence)
        return again is not None and self.swap_s(sequence) < again

    def swap_s(self, sequence: Sequence) -> float:
        """Its blocks out and in again."""
        return 2 * self._block_s * self.blocks(sequence)

    def recompute_s(self, sequence: Sequence) -> float | None:
        """Its computed tokens, less what will be found, in steps of their own beside others."""
        start = int(self._survival * self.findable(sequence))
        nothing = self._model.predict(StepShape(rows=1))
        whole = self._model.predict(StepShape().plus(start, max(sequence.computed - start, 1)))
        if nothing is None or whole is None:
            return None
        return max(whole - nothing, 0.0)

    def blocks(self, sequence: Sequence) -> int:
        """Blocks of all groups that it holds."""
        holding = sequence.holding
        assert holding is not None, "only a running sequence holds blocks"
        return sum(len(holding.own(group)) for group in range(len(holding.tables)))

    def findable(self, sequence: Sequence) -> int:
        """Tokens of it that the prefix cache would give now."""
        found = self._manager.matched(sequence.tokens, sequence.options.cache_salt)
        return min(found, sequence.most_cached, sequence.computed)

    def learn_moves(self, plan: StepPlan, outcome: StepOutcome) -> None:
        if plan.moves and outcome.moves_s > 0:
            self._block_s += DECAY * (outcome.moves_s / len(plan.moves) - self._block_s)

    def lose(self, sequence: Sequence) -> None:
        """Its computed tokens are about to be given up."""
        self._lost[sequence.sequence_id] = sequence.computed, self.findable(sequence)

    def recover(self, sequence: Sequence) -> int:
        """How many tokens that it had must be computed again, now that it starts with what was found."""
        computed, findable = self._lost.pop(sequence.sequence_id, (0, 0))
        if findable:
            self._survival += DECAY * (min(sequence.computed / findable, 1.0) - self._survival)
        return max(computed - sequence.computed, 0)

    def forget(self, sequence: Sequence) -> None:
        """It will not return."""
        self._lost.pop(sequence.sequence_id, None)
