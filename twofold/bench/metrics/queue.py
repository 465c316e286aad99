"""How long a request waited in the server before its prefill: an estimate, from outside.

Without a queue, TTFT from send is what a prompt of that length takes, and that grows at least linearly with its length.
So the run's own fastest requests bound it: the envelope is the greatest convex function, nowhere falling, that lies
above no measured (tokens to prefill, TTFT from send). What a request has beyond it is its queue. Tokens that the server
says it took from its cache are not prefilled. Where no request found an idle server, the envelope holds the least queue
that there was, and the estimate is too low by that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from twofold.bench.record import RequestSample

FEWEST: Final = 20
"""Answers that an envelope is made of at least."""

METHOD: Final = "TTFT from send, less the convex lower envelope of TTFT over the tokens to prefill in this run"

_Point: TypeAlias = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Envelope:
    """Seconds to the first output by tokens to prefill: corners, ascending in both; flat outside of them."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, samples: Iterable[RequestSample]) -> Envelope | None:
        """Of the answers that are complete; None where they are fewer than ``FEWEST``."""
        points = [point for point in map(_point, samples) if point is not None]
        if len(points) < FEWEST:
            return None
        corners = _hull(_rising(_fastest(points)))
        return cls(tuple(tokens for tokens, _ in corners), tuple(seconds for _, seconds in corners))

    def at(self, tokens: int) -> float:
        """Least seconds to the first output of a prompt with so many tokens to prefill."""
        after = bisect_right(self.tokens, tokens)
        if after in (0, len(self.tokens)):
            return self.seconds[0 if after == 0 else -1]
        left, right = self.tokens[after - 1], self.tokens[after]
        part = (tokens - left) / (right - left)
        return self.seconds[after - 1] + part * (self.seconds[after] - self.seconds[after - 1])

    def queue(self, sample: RequestSample) -> float | None:
        """Seconds that a request waited beyond its prefill; None where its answer is not complete."""
        point = _point(sample)
        return None if point is None else max(0.0, point[1] - self.at(point[0]))


def prompt_tokens(sample: RequestSample) -> int:
    """As the server counts them; else as they were asked for."""
    told = sample.answer.prompt_tokens
    return sample.ask.input_tokens if told is None else told


def _point(sample: RequestSample) -> _Point | None:
    """An answer that came whole says nothing of its first token."""
    if sample.outcome != "ok" or sample.started_s is None or sample.first_s is None or not sample.answer.streamed:
        return None
    cached = sample.answer.cached_tokens or 0
    return max(0, prompt_tokens(sample) - cached), sample.first_s - sample.started_s


def _fastest(points: Iterable[_Point]) -> list[_Point]:
    """The fastest of each length, ascending in length."""
    least: dict[int, float] = {}
    for tokens, seconds in points:
        least[tokens] = min(seconds, least.get(tokens, seconds))
    return sorted(least.items())


def _rising(points: list[_Point]) -> list[_Point]:
    """From the fastest of all on: a shorter prompt takes at most as long."""
    start = min(range(len(points)), key=lambda at: points[at][1])
    return points[start:]


def _hull(points: list[_Point]) -> list[_Point]:
    """Lower convex hull of points that ascend in length (A. M. Andrew, 1979)."""
    hull: list[_Point] = []
    for point in points:
        while len(hull) >= 2 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _above(left: _Point, middle: _Point, right: _Point) -> bool:
    """Whether ``middle`` lies on or above the line from ``left`` to ``right``."""
    rise = (right[1] - left[1]) * (middle[0] - left[0])
    return (middle[1] - left[1]) * (right[0] - left[0]) >= rise
