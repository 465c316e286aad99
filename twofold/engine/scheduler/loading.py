"""Which waiting sequences load the beginning of their prompt from the KV store, and which compute it.

A prefix is loaded if the predicted seconds of the load, at the measured rate of earlier ones, are fewer than the
predicted seconds of computing it. The sequence leaves the queue meanwhile, so others overtake it, and comes back as the
first one; whatever it finds in the prefix cache then, it uses as any other sequence does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from twofold.core.record import WaitReason
from twofold.engine.kv.store import KVStore, StoredPrefix, StoreResult
from twofold.engine.scheduler.feature import StepFeature, Wait
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepShape


class StepTimes(Protocol):
    """Predicts how long steps take: ``StepTimeModel``, or the cost model of a simulation."""

    def predict(self, shape: StepShape) -> float | None:
        """Seconds of a step; None if they cannot be predicted yet."""
        ...


def computing_s(times: StepTimes, matched: int, tokens: int) -> float | None:
    """Predicted seconds to compute what a load would bring, tokens ``matched`` … ``tokens`` − 1; None before the first
    prediction."""
    nothing = times.predict(StepShape(rows=1))
    whole = times.predict(StepShape().plus(matched, tokens - matched))
    return None if nothing is None or whole is None else max(whole - nothing, 0.0)


class PrefixLoading(StepFeature):
    """The sequences whose prefixes are being loaded.

    Law: a sequence looks into the store at most once before each time it runs, unless its blocks do not suffice.
    """

    def __init__(self, store: KVStore, step_time: StepTimes) -> None:
        self._store = store
        self._step_time = step_time
        self._loading: dict[int, list[Sequence]] = {}
        self._gained: dict[int, tuple[int, int]] = {}

    def hold(self, head: Sequence, lasts: Callable[[], bool], now: float, *, alone: bool) -> Wait | None:
        """Lets the head of the queue load its prefix, if that pays, or wait for another load of it."""
        prefix = self._find(head, alone=alone)
        if prefix is None or not lasts():
            return None
        number = self._store.under_way(prefix)
        if number is None:
            number = self._store.load(prefix, now, alone=alone)
        if number is None:  # there are too few blocks for it
            return None
        self._loading.setdefault(number, []).append(head)
        self._gained[head.sequence_id] = prefix.matched, prefix.tokens
        return Wait(WaitReason.LOADING, tokens=prefix.tokens)

    def take_stored(self, results: Iterable[StoreResult], now: float) -> list[Sequence]:
        numbers = [self._store.finish(result, now) for result in results]
        return [sequence for number in numbers if number is not None for sequence in self._loading.pop(number, ())]

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        """Counts how many of the sequence's cached tokens came from the store."""
        matched, upto = self._gained.pop(sequence.sequence_id, (0, 0))
        if not sequence.record.preemptions:
            sequence.record.loaded = max(0, min(sequence.record.cached, upto) - matched)

    def left(self, sequence: Sequence, now: float) -> None:
        """Forgets the sequence. Its load continues and puts the prefix into the cache."""
        self._gained.pop(sequence.sequence_id, None)
        for waiting in self._loading.values():
            if sequence in waiting:
                waiting.remove(sequence)

    def _find(self, sequence: Sequence, *, alone: bool) -> StoredPrefix | None:
        """The stored prefix of the head of the queue, if loading it pays."""
        if sequence.state is not SequenceState.WAITING or sequence.sequence_id in self._gained:
            return None
        prefix = self._store.find(sequence.tokens, sequence.options.cache_key, sequence.max_cached)
        if prefix is not None:
            compute_s = self._compute_s(prefix)
            if compute_s is None or self._store.load_s(prefix, alone=alone) < compute_s:
                return prefix
            self._store.decline(alone=alone)
        self._gained[sequence.sequence_id] = 0, 0
        return None

    def _compute_s(self, prefix: StoredPrefix) -> float | None:
        return computing_s(self._step_time, prefix.matched, prefix.tokens)
