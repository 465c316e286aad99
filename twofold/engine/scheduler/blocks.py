"""The blocks of sequences: sharing, growth, publication and release; whether they will last; and which sequence is
preempted when they run out.

``SequenceBlocks`` is the only place of the scheduler that changes what the block manager holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from operator import le, sub
from typing import Final

from twofold.core.record import HeldPin
from twofold.core.request import STORED_TTL, CachePin, RequestOptions
from twofold.core.step import SequenceStep, StepOutcome, StepPlan
from twofold.engine.kv.block_tables import BlockTables
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.pool import blocks_for
from twofold.engine.kv.segments import SEGMENT_TOKENS
from twofold.engine.kv.store import KVStore
from twofold.engine.scheduler.feature import StepFeature
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel, StepWork

HORIZON: Final = 128
"""Maximum number of future tokens of a sequence that admission plans for."""
MIN_AHEAD: Final = 16
SHARE_DECAY: Final = 0.05
BLOCK_SECONDS: Final = 5e-4
"""Assumed seconds of a block's move until one is measured: about a megabyte at a few gigabytes a second."""
SURVIVAL: Final = 0.5
"""Assumed share of a preempted sequence's cached tokens that will be found again, until one has returned."""
DECAY: Final = 0.1


class SequenceBlocks:
    """Joins sequences and the block manager. A sequence has blocks exactly while it runs."""

    def __init__(self, manager: BlockManager, store: KVStore | None = None) -> None:
        self._manager = manager
        self._store = store
        self._pins: dict[int, tuple[CachePin, ...]] = {}

    def shareable(self, sequence: Sequence) -> int:
        """The number of tokens of a waiting sequence that are expected to need no new blocks."""
        if self._can_share(sequence):
            return sequence.prompt_length - 1
        found = self._manager.matched(sequence.tokens, sequence.options.cache_key)
        return min(found, sequence.max_cached)

    def start(self, sequence: Sequence, now: float) -> bool:
        """Makes a waiting or swapped sequence run, with shared blocks or those from the host; False, with nothing
        changed, if there are too few blocks."""
        if sequence.state is SequenceState.SWAPPED:
            return self._swap_in(sequence, now)
        if not self._share(sequence, now):
            most = sequence.max_cached
            tables = self._manager.open(sequence.tokens, sequence.options.cache_key, now, most=most)
            if self._store is not None and tables.cached:
                self._store.hit(sequence.tokens, sequence.options.cache_key, tables.cached, now)
            self._admit(sequence, tables, tables.cached)
        return True

    def branch(self, sequence: Sequence, parent: Sequence, computed: int, now: float) -> bool:
        """Makes a waiting sequence run with the blocks of its parent's first ``computed`` tokens; False, with nothing
        changed, if the parent no longer has them or there are too few blocks."""
        if parent.tables is None or not self._has_all(parent.tables, computed):
            return False
        tables = self._manager.fork(parent.tables, computed, now)
        if tables is None:
            return False
        self._admit(sequence, tables, computed)
        return True

    def lost(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Those whose states have seen other tokens than they have computed: they must start again."""
        if not self._manager.states:
            return []
        return [each for each in sequences if each.tables is not None and each.tables.reached != each.computed]

    def issue(self, steps: Iterable[SequenceStep], running: Mapping[int, Sequence]) -> None:
        """Notes that these steps will show their tokens to states."""
        for step in steps if self._manager.states else ():
            tables = running[step.sequence_id].tables
            assert tables is not None, "only a running sequence is in a step"
            tables.reached = step.end

    def grow(self, sequence: Sequence, rows: int, now: float) -> bool:
        """Takes blocks for its next ``rows`` rows; False, with nothing changed, if there are too few."""
        assert sequence.tables is not None, "only a running sequence grows"
        return self._manager.grow(sequence.tables, sequence.computed, sequence.computed + rows, now)

    def publish(self, sequence: Sequence, now: float) -> None:
        """Publishes computed blocks and sets requested pins; to be called after ``computed`` moved."""
        tables, computed = sequence.tables, sequence.computed
        assert tables is not None, "only a running sequence computes"
        if computed >= tables.due:
            self._manager.publish(tables, sequence.tokens, computed, now)
        if self._pins:
            self._pin(sequence, tables, now)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Releases the blocks of a running sequence; it will compute its tokens again."""
        self._close(sequence, now)
        sequence.preempt()

    def swap_out(self, sequence: Sequence) -> bool:
        """Moves a running sequence's blocks to the host; False, with nothing changed, if there is no room, or if its
        states have seen rows that are not counted."""
        assert sequence.tables is not None, "only a running sequence has blocks to swap"
        swapped = None if self.lost((sequence,)) else self._manager.swap_out(sequence.tables)
        if swapped is None:
            return False
        self._pins.pop(sequence.sequence_id, None)
        sequence.swap_out(swapped)
        return True

    def release(self, sequence: Sequence, now: float) -> None:
        """Releases all blocks of a sequence that ends, in the cache or on the host."""
        if sequence.tables is not None:
            self._close(sequence, now)
            if self._store is not None:
                computed = sequence.tokens[: sequence.computed]
                self._store.ended(computed, sequence.options.cache_key, sequence.record.cached, now)
        if sequence.swapped is not None:
            self._manager.drop(sequence.swapped)
            sequence.swapped = None

    def _can_share(self, sequence: Sequence) -> bool:
        """Whether its parent's blocks hold all of the prompt but the last row, which it computes itself."""
        parent, computed = sequence.parent, sequence.prompt_length - 1
        return (
            parent is not None
            and sequence.state is SequenceState.WAITING
            and parent.tables is not None
            and self._has_all(parent.tables, computed)
            and computed <= min(parent.computed, sequence.max_cached)
        )

    def _share(self, sequence: Sequence, now: float) -> bool:
        if sequence.parent is None or not self._can_share(sequence):
            return False
        return self.branch(sequence, sequence.parent, sequence.prompt_length - 1, now)

    def _swap_in(self, sequence: Sequence, now: float) -> bool:
        assert sequence.swapped is not None, "a swapped sequence is on the host"
        computed = sequence.computed
        tables = self._manager.swap_in(sequence.swapped, computed, computed + 1, now)
        if tables is None:
            return False
        sequence.resume(tables)
        self._set_pins(sequence)
        return True

    def _admit(self, sequence: Sequence, tables: BlockTables, computed: int) -> None:
        sequence.admit(tables, computed)
        self._set_pins(sequence)

    def _set_pins(self, sequence: Sequence) -> None:
        if sequence.options.cache_pins:
            self._pins[sequence.sequence_id] = sequence.options.cache_pins

    def _pin(self, sequence: Sequence, tables: BlockTables, now: float) -> None:
        pins = self._pins.get(sequence.sequence_id, ())
        while pins and pins[0].tokens <= sequence.computed:
            whole = self._kept(sequence, tables, pins[0], now)
            if whole:
                sequence.record.pins.append(HeldPin(whole, pins[0].seconds))
            pins = pins[1:]
            self._pins[sequence.sequence_id] = pins
        if not pins:
            self._pins.pop(sequence.sequence_id, None)

    def _kept(self, sequence: Sequence, tables: BlockTables, pin: CachePin, now: float) -> int:
        """Sets a pin; the number of tokens that it keeps, 0 if it was refused."""
        if pin.ttl != STORED_TTL:
            kept = self._manager.pin(tables, pin.tokens, pin.seconds, now)
            return pin.tokens - pin.tokens % self._manager.block_size if kept else 0
        assert self._store is not None, "without a store such a pin is an error"
        whole = pin.tokens - pin.tokens % SEGMENT_TOKENS
        counts = self._manager.counters.pins_of(pin.seconds)
        if whole and self._store.save(sequence.tokens[:whole], sequence.options.cache_key, now, pinned=True):
            counts.written += whole
            return whole
        counts.refused += pin.tokens
        return 0

    def _has_all(self, tables: BlockTables, computed: int) -> bool:
        """Whether there is something to share: ``BlockManager.has_all``."""
        return computed >= 1 and self._manager.has_all(tables, computed)

    def _close(self, sequence: Sequence, now: float) -> None:
        assert sequence.tables is not None, "only a running sequence has blocks"
        self._manager.close(sequence.tables, now)
        sequence.tables = None
        self._pins.pop(sequence.sequence_id, None)


class LookAhead(StepFeature):
    """Whether blocks will last: an admitted sequence must not cause preemptions again and again.

    A sequence is admitted if the obtainable blocks cover its tokens and the growth of all running sequences: the tokens
    that they are expected to generate, by the share of their limits that earlier ones used, up to HORIZON. If nothing
    else runs, it is admitted as soon as its tokens and one more fit. In a group with a window a sequence never holds
    more than the window and one step.

    ``rows`` is the maximum of a step. ``share`` is the share of their limits that recent completions have used.
    """

    def __init__(self, manager: BlockManager, blocks: SequenceBlocks, rows: int) -> None:
        self._manager = manager
        self._blocks = blocks
        self.share = 1.0
        self._refused: tuple[int, tuple[int, ...]] | None = None
        step = blocks_for(rows, manager.block_size)
        self._most = [window.max_blocks() + step for window in manager.windows]

    def left(self, sequence: Sequence, now: float) -> None:
        """Learns from a sequence that ended by itself how much of its limit it used."""
        if sequence.samples and sequence.finish_reason in {"stop", "length"}:
            used = sequence.generated / (sequence.limit - sequence.prompt_length)
            self.share += SHARE_DECAY * (used - self.share)

    def lasts(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Whether blocks last if ``sequence`` runs beside ``others``."""
        needs = [self._needed(sequence, self._expected(sequence, alone=not others))]
        for other in others:
            positions = self._expected(other, alone=False)
            if other.tables is None or positions > other.tables.room:
                needs.append(self._needed(other, positions))
        return all(map(lasts, self._manager.obtainable(), zip(*needs, strict=True)))

    def start(self, sequence: Sequence, running: Collection[Sequence], now: float) -> bool:
        """Gives the sequence its blocks; False, with nothing changed, if blocks would not last beside ``running``."""
        if running and self._is_hopeless(sequence):
            return False
        swapped = sequence.state is SequenceState.SWAPPED
        if self.lasts(sequence, running) and self._blocks.start(sequence, now):
            if swapped or self.lasts(sequence, running):  # now it is known which cached blocks it took
                return True
            self._blocks.preempt(sequence, now)
        self._refused = sequence.sequence_id, self._manager.obtainable()
        return False

    def _is_hopeless(self, sequence: Sequence) -> bool:
        """Whether no block has become free since this sequence was refused; a cheap check."""
        if self._refused is None or self._refused[0] != sequence.sequence_id:
            return False
        before, free = self._refused[1], self._manager.obtainable()
        self._refused = sequence.sequence_id, free
        return all(map(le, free, before))

    def _expected(self, sequence: Sequence, *, alone: bool) -> int:
        """Positions that the sequence is expected to need."""
        known = sequence.known
        tokens = known + 1 if alone else expected(known, sequence.limit, sequence.prompt_length, self.share)
        return min(tokens, sequence.positions_needed)

    def _needed(self, sequence: Sequence, positions: int) -> tuple[int, ...]:
        """New blocks of each group that the sequence needs for ``positions``."""
        tables = sequence.tables
        if tables is None:
            found = self._blocks.shareable(sequence)
            return tuple(map(min, self._manager.needed(None, found, max(positions, found)), self._most))
        counts = self._manager.needed(tables, sequence.computed, max(positions, sequence.computed))
        own = map(len, map(tables.own, range(len(counts))))
        return tuple(min(n, max(most - o, 0)) for n, most, o in zip(counts, self._most, own, strict=True))


def expected(known: int, limit: int, prompt: int = 0, share: float = 1.0) -> int:
    """The tokens, of the ``known`` ones on, that admission plans for. Completions use this ``share`` of the ``limit``
    less the ``prompt``."""
    left = int(share * (limit - prompt)) - (known - prompt)
    return known + min(max(left, MIN_AHEAD), HORIZON)


def lasts(free: int, needs: Iterable[int]) -> bool:
    """Whether so many ``free`` blocks cover all ``needs``, one after the other: some give blocks back."""
    return all(left >= 0 for left in accumulate(needs, sub, initial=free))


def least_urgent(running: Iterable[Sequence], urgency: Callable[[Sequence], float]) -> Sequence:
    """The sequence to preempt: the newest one of the least urgent class."""
    return max(running, key=lambda sequence: (urgency(sequence), sequence.sequence_id))


def sequences_above_share(running: Collection[Sequence], head: RequestOptions) -> list[Sequence]:
    """The sequences of the tenant that runs most, unless that are less than two more than the tenant of the ``head`` of
    the queue runs; without those that rest or are more urgent than the head."""
    slots = Counter(sequence.options.tenant for sequence in running)
    greedy, most = slots.most_common(1)[0] if slots else ("", 0)
    if most < slots[head.tenant] + 2:
        return []
    own = [sequence for sequence in running if sequence.options.tenant == greedy and not sequence.resting]
    return [sequence for sequence in own if sequence.options.priority >= head.priority]


class PreemptionCost(StepFeature):
    """The cost of preemption in seconds, if blocks are swapped to the host or computed again.

    Swapping costs two moves for each block, at the measured time of moves. Computing again costs the predicted time of
    the tokens that will not be found in the prefix cache when the sequence returns; the share of its cached tokens that
    will still be cached then is learned from earlier returns.
    """

    def __init__(self, manager: BlockManager, model: StepTimeModel) -> None:
        self._manager = manager
        self._model = model
        self._block_s = BLOCK_SECONDS
        self._survival = SURVIVAL
        self._lost: dict[int, tuple[int, int]] = {}

    def prefers_swap(self, sequence: Sequence) -> bool:
        """Whether swapping is predicted to be cheaper; False while the cost of computing again is unknown."""
        again = self.recompute_s(sequence)
        return again is not None and self.swap_s(sequence) < again

    def swap_s(self, sequence: Sequence) -> float:
        """Seconds to move its blocks to the host and back."""
        return 2 * self._block_s * self.blocks(sequence)

    def recompute_s(self, sequence: Sequence) -> float | None:
        """Seconds to compute its tokens again, except those that will be found; None before the first prediction."""
        start = int(self._survival * self.findable(sequence))
        nothing = self._model.predict(StepShape(rows=1))
        whole = self._model.predict(StepShape().plus(start, max(sequence.computed - start, 1)))
        if nothing is None or whole is None:
            return None
        return max(whole - nothing, 0.0)

    def blocks(self, sequence: Sequence) -> int:
        """Blocks of all groups that it holds."""
        tables = sequence.tables
        assert tables is not None, "only a running sequence holds blocks"
        return sum(len(tables.own(group)) for group in range(len(tables.blocks)))

    def findable(self, sequence: Sequence) -> int:
        """The number of its tokens that are in the prefix cache now."""
        found = self._manager.matched(sequence.tokens, sequence.options.cache_key)
        return min(found, sequence.max_cached, sequence.computed)

    def computed(self, plan: StepPlan, outcome: StepOutcome, work: StepWork) -> None:
        """Learns the time of moves."""
        if plan.moves and outcome.moves_s > 0:
            self._block_s += DECAY * (outcome.moves_s / len(plan.moves) - self._block_s)

    def lose(self, sequence: Sequence) -> None:
        """Notes its computed tokens, before it is preempted without swapping."""
        self._lost[sequence.sequence_id] = sequence.computed, self.findable(sequence)

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        """Counts the tokens that must be computed again, now that the sequence has its cached ones."""
        computed, findable = self._lost.pop(sequence.sequence_id, (0, 0))
        if findable:
            self._survival += DECAY * (min(sequence.computed / findable, 1.0) - self._survival)
        sequence.record.recomputed += max(computed - sequence.computed, 0)

    def left(self, sequence: Sequence, now: float) -> None:
        if sequence.finish_reason is not None:
            self._lost.pop(sequence.sequence_id, None)
