"""Finds completions that repeat themselves, from their tokens."""

from __future__ import annotations

from collections import deque
from typing import Final

from twofold.core.record import Repetition

MAX_PERIOD: Final = 256
"""Longest part that is recognised when it repeats, in tokens."""
MIN_TIMES: Final = 4
MIN_TOKENS: Final = 64
"""A repetition is a part that follows itself at least MIN_TIMES times, and has at least MIN_TOKENS tokens together."""


class LoopFinder:
    """The repetitions in a sequence of tokens, which are pushed one by one: ``longest`` is the one of the most tokens.

    The text has the period p for as long as each token equals the one p tokens before it. A repetition is found by its
    last token, with the smallest of its periods, whatever steps the tokens arrive in. A token costs one operation for
    each time it occurs among the last MAX_PERIOD, and within a repetition only one.

    Invariant: ``_places`` has the positions of the last MAX_PERIOD tokens, and ``_runs``, by period, how many of the
    tokens since the last repetition have it without a gap. Within a repetition only its ``_period`` is followed.
    """

    def __init__(self) -> None:
        self.longest: Repetition | None = None
        self._recent: deque[int] = deque(maxlen=MAX_PERIOD)
        self._places: dict[int, deque[int]] = {}
        self._runs: dict[int, int] = {}
        self._count = 0
        self._period = 0
        self._length = 0

    def push(self, token: int) -> bool:
        """Adds a token. Returns whether the last tokens are a repetition."""
        if self._period and self._recent[-self._period] == token:
            self._length += 1
        else:
            self._follow(token)
        if self._period:
            current = Repetition(self._period, self._length // self._period)
            self.longest = Repetition.longest((self.longest, current))
        self._remember(token)
        return self._period > 0

    def _follow(self, token: int) -> None:
        """Counts the periods that the token continues or begins."""
        self._period = 0
        runs, at = self._runs, self._count
        self._runs = {at - place: runs.get(at - place, 0) + 1 for place in self._places.get(token, ())}
        long = [p for p, run in self._runs.items() if run + p >= max(MIN_TOKENS, MIN_TIMES * p)]
        if long:
            self._period = min(long)
            self._length = self._runs[self._period] + self._period
            self._runs = {}

    def _remember(self, token: int) -> None:
        if len(self._recent) == MAX_PERIOD:
            oldest = self._recent[0]
            places = self._places[oldest]
            places.popleft()
            if not places:
                del self._places[oldest]
        self._recent.append(token)
        self._places.setdefault(token, deque()).append(self._count)
        self._count += 1
