"""Which waiting sequences load the beginning of their prompt from the KV store, and which compute it.

A prefix is loaded if the predicted seconds of the load, at the measured rate of earlier ones, are fewer than the
predicted seconds of computing it. The sequence leaves the queue meanwhile, so others overtake it, and comes back as the
first one; whatever it finds in the prefix cache then, it uses as any other sequence does.
"""

from __future__ import annotations

from typing import Protocol

from twofold.engine.kv.store import KVStore, StoredPrefix, StoreResult
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


class PrefixLoading:
    """The sequences whose prefixes are being loaded.

    Law: a sequence looks into the store at most once before each time it runs, unless its blocks do not suffice.
    """

    def __init__(self, store: KVStore, step_time: StepTimes) -> None:
        self.store = store
        self._step_time = step_time
        self._loading: dict[int, list[Sequence]] = {}
        self._gained: dict[int, tuple[int, int]] = {}

    @property
    def waits(self) -> bool:
        """Whether a sequence waits for a load."""
        return any(self._loading.values())

    def find(self, sequence: Sequence, *, alone: bool) -> StoredPrefix | None:
        """The stored prefix of the head of the queue, if loading it pays."""
        if sequence.state is not SequenceState.WAITING or sequence.sequence_id in self._gained:
            return None
        prefix = self.store.find(sequence.tokens, sequence.options.cache_key, sequence.max_cached)
        if prefix is None:
            self._gained[sequence.sequence_id] = 0, 0
            return None
        compute_s = self._compute_s(prefix)
        if compute_s is not None and self.store.load_s(prefix, alone=alone) >= compute_s:
            self.store.decline(alone=alone)
            self._gained[sequence.sequence_id] = 0, 0
            return None
        return prefix

    def begin(self, sequence: Sequence, prefix: StoredPrefix, now: float, *, alone: bool) -> bool:
        """Begins to load a prefix for a sequence, or waits for another load of it; False, with nothing changed, if
        there are too few blocks."""
        number = self.store.under_way(prefix)
        if number is None:
            number = self.store.load(prefix, now, alone=alone)
        if number is None:
            return False
        self._loading.setdefault(number, []).append(sequence)
        self._gained[sequence.sequence_id] = prefix.matched, prefix.tokens
        return True

    def finish(self, result: StoreResult, now: float) -> list[Sequence]:
        """Takes a result of the store; returns the sequences that waited for it."""
        number = self.store.finish(result, now)
        return [] if number is None else self._loading.pop(number, [])

    def admit(self, sequence: Sequence) -> None:
        """Counts how many of an admitted sequence's cached tokens came from the store."""
        matched, upto = self._gained.pop(sequence.sequence_id, (0, 0))
        if not sequence.record.preemptions:
            sequence.record.loaded = max(0, min(sequence.record.cached, upto) - matched)

    def leave(self, sequence: Sequence) -> None:
        """Forgets a sequence that ended or was paused. Its load continues and puts the prefix into the cache."""
        self._gained.pop(sequence.sequence_id, None)
        for waiting in self._loading.values():
            if sequence in waiting:
                waiting.remove(sequence)

    def _compute_s(self, prefix: StoredPrefix) -> float | None:
        return computing_s(self._step_time, prefix.matched, prefix.tokens)
