"""Counts of a run while it lasts: what a live table shows, at a cost that does not grow with the run.

A look takes up what began since the last one, and goes through some hundred of the requests that are open, in turn;
those that ended are never looked at again. Latencies are those of the last seconds, in buckets 5 % wide, so that a
percentile is at most 5 % too high. Of the gaps between chunks each look takes the latest one of some answers: a sample,
for the eye.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.record import RequestSample

WINDOW_S: Final = 10
"""Seconds that the latencies and rates reach back."""

MAX_LOOKED: Final = 400
"""Open requests that a look goes through; of very many, a part that lets each have its turn within a second."""

MAX_GAPS: Final = 100
"""Gaps that a look takes."""

_MIN_PART: Final = 8
_GROWTH: Final = math.log(1.05)
_MIN_S: Final = 1e-6
_ENDLESS: Final = 10**6


class RecentValues:
    """Values of the last ``WINDOW_S`` seconds, by the second in which they were noted."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, Counter[int]]] = deque()

    def note(self, now_s: float, value: float) -> None:
        """A value above 0, or infinite."""
        bucket = _ENDLESS if math.isinf(value) else math.ceil(math.log(max(value, _MIN_S)) / _GROWTH)
        self._slot(int(now_s))[bucket] += 1

    def forget(self, now_s: float) -> None:
        """What is older than the window."""
        while self._slots and self._slots[0][0] <= now_s - WINDOW_S:
            self._slots.popleft()

    def percentiles(self, *shares: float) -> list[float | None]:
        """By nearest rank, each up to 5 % too high; None of no values."""
        counts: Counter[int] = Counter()
        for _, slot in self._slots:
            counts.update(slot)
        total, buckets = counts.total(), sorted(counts)
        return [_at(counts, buckets, math.ceil(share * total)) for share in shares]

    def _slot(self, second: int) -> Counter[int]:
        if not self._slots or self._slots[-1][0] != second:
            self._slots.append((second, Counter()))
        return self._slots[-1][1]


def _at(counts: Counter[int], buckets: list[int], wanted: int) -> float | None:
    passed = 0
    for bucket in buckets:
        passed += counts[bucket]
        if passed >= wanted:
            return math.inf if bucket == _ENDLESS else math.exp(bucket * _GROWTH)
    return None


class RecentCount:
    """Events a second over the last ``WINDOW_S`` seconds, or since the start."""

    def __init__(self) -> None:
        self._slots: deque[tuple[float, int]] = deque()
        self._sum = 0

    def note(self, now_s: float, count: int) -> None:
        if count:
            self._slots.append((now_s, count))
            self._sum += count

    def rate(self, now_s: float) -> float:
        while self._slots and self._slots[0][0] <= now_s - WINDOW_S:
            self._sum -= self._slots.popleft()[1]
        return self._sum / max(min(now_s, WINDOW_S), 1e-9)


class ProgressTally:
    """What happened so far. ``outcomes`` are those of the requests that ended."""

    def __init__(self) -> None:
        self.began = 0
        self.chunks = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.ttft, self.tpot, self.itl = RecentValues(), RecentValues(), RecentValues()
        self.started, self.answered, self.output = RecentCount(), RecentCount(), RecentCount()
        self._open: deque[_OpenRequest] = deque()

    @property
    def done(self) -> int:
        return self.outcomes["ok"]

    @property
    def failed(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if outcome in FAILURES)

    def look(self, now_s: float, samples: list[RequestSample]) -> None:
        """``samples`` are all that began, in the order in which they did: what was there at the last look still is."""
        began = len(samples)
        self._open.extend(_OpenRequest(samples[place]) for place in range(self.began, began))
        self.started.note(now_s, began - self.began)
        self.began = began
        chunks, done = self.chunks, self.done
        turn = min(len(self._open), max(MAX_LOOKED, len(self._open) // _MIN_PART))
        for place in range(turn):
            each = self._open.popleft()
            if not self._ended(each, now_s, gap=place < MAX_GAPS):
                self._open.append(each)
        self.output.note(now_s, self.chunks - chunks)
        self.answered.note(now_s, self.done - done)
        for values in (self.ttft, self.tpot, self.itl):
            values.forget(now_s)

    def _ended(self, each: _OpenRequest, now_s: float, *, gap: bool) -> bool:
        """Notes what is new of a request, its latest ``gap`` if that is wanted, and whether it is over."""
        sample = each.sample
        outcome, moments = sample.outcome, sample.answer.moments
        count = len(moments)
        if count != each.chunks:
            if not each.chunks:
                self.ttft.note(now_s, moments[0] - sample.ask.due_s)
            if gap and count > 1:
                self.itl.note(now_s, moments[-1] - moments[-2])
            self.chunks += count - each.chunks
            each.chunks = count
        if outcome == "unfinished":
            return False
        self.outcomes[outcome] += 1
        self._note_end(sample, now_s)
        return True

    def _note_end(self, sample: RequestSample, now_s: float) -> None:
        moments = sample.answer.moments
        if sample.outcome in FAILURES:
            self.tpot.note(now_s, math.inf)
            if not moments:
                self.ttft.note(now_s, math.inf)
            return
        tokens = sample.output_tokens or len(moments)
        if len(moments) > 1 and tokens > 1:
            self.tpot.note(now_s, (moments[-1] - moments[0]) / (tokens - 1))


class _OpenRequest:
    """A request, and how many of its chunks were counted."""

    __slots__ = ("chunks", "sample")

    def __init__(self, sample: RequestSample) -> None:
        self.sample = sample
        self.chunks = 0
