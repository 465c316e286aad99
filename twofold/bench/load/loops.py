"""Open loops, whose requests are due at given times, and closed loops, whose clients wait for their responses.

A closed loop measures a server at a concurrency, not at a rate: a server that stalls gets no further requests.

Gaps between arrivals have a gamma distribution with mean 1/rate and shape ``burstiness``, as in vLLM's benchmark: their
coefficient of variation is 1/√burstiness. 1 is a Poisson process, less is burstier, more is more even; a constant rate
is the limit of infinite burstiness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, count, islice
from typing import Any, Final, Literal, TypeAlias, get_args

from twofold.bench.load.base import FAILURES, Ask, EndedRequest
from twofold.bench.load.checks import MAX_RATE, MAX_REQUESTS, MAX_SECONDS, above_zero, an_end, before, number, whole
from twofold.bench.load.lengths import Draws, RandomStream
from twofold.bench.load.requests import RandomRequests
from twofold.core.errors import ParameterError, describe_name, did_you_mean

Kind: TypeAlias = Literal["constant", "poisson", "gamma"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process of ``rate`` requests a second; with an infinite rate all requests arrive at the start.

    At a constant rate the first request arrives at 0; otherwise it arrives after a gap. ``burstiness`` is only for
    "gamma". Raises ParameterError for invalid values.
    """

    rate: float
    kind: Kind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != math.inf:
            above_zero("rate", self.rate, MAX_RATE)
        if self.kind not in KINDS:
            message = f"{describe_name(self.kind)} is not an arrival process."
            raise ParameterError(message, param="arrivals", hint=did_you_mean(self.kind, KINDS))
        if self.kind != "gamma" and self.burstiness != 1:
            message = f"burstiness is for gamma arrivals, not for {self.kind} ones."
            raise ParameterError(message, param="burstiness", hint="Give --arrivals gamma.")
        above_zero("burstiness", self.burstiness, 1e6)

    def describe(self) -> Mapping[str, Any]:
        rate = None if math.isinf(self.rate) else self.rate
        found = {"kind": self.kind, "rate": rate}
        return found | {"burstiness": self.burstiness} if self.kind == "gamma" else found

    def moments(self, seed: int) -> Iterator[float]:
        """Arrival times in seconds, ascending and endless."""
        if self.kind == "constant":
            return (index / self.rate for index in count())
        mean = 1 / self.rate
        gaps = Draws[float](
            seed, RandomStream.ARRIVALS, lambda rng, size: rng.gamma(self.burstiness, mean / self.burstiness, size)
        )
        return accumulate(gaps)


PAUSE_S: Final = 0.1
"""Minimum time from a failed request of a client to its next one: a server that refuses at once would otherwise get
thousands of requests a second."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that arrive by ``arrivals`` for ``duration_s`` seconds, at most ``requests``.

    At most ``max_open`` are open at once; others wait at the client. Raises ParameterError without an end.
    """

    arrivals: Arrivals
    asks: RandomRequests
    duration_s: float | None = None
    requests: int | None = None
    max_open: int | None = None

    def __post_init__(self) -> None:
        an_end(self.duration_s, self.requests, "An open loop")
        if self.max_open is not None:
            whole("concurrency", self.max_open, 1, MAX_REQUESTS)
        if self.requests is None and self.arrivals.rate == float("inf"):
            raise ParameterError("An infinite rate needs a number of requests.", param="requests")

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "open",
            "arrivals": self.arrivals.describe(),
            "duration_s": self.duration_s,
            "requests": self.requests,
            "concurrency": self.max_open,
            **self.asks.describe(),
        }

    def begin(self) -> Iterator[Ask]:
        moments = islice(self.arrivals.moments(self.asks.seed), self.requests)
        for index, due_s in enumerate(moments):
            if not before(due_s, self.duration_s):
                return
            yield self.asks.ask(index, due_s)

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """None: no request waits for another."""
        del ended, now_s
        return None


@dataclass(slots=True)
class ClosedLoop:
    """``max_open`` clients, each of which sends its next request when the one before has ended.

    They start evenly spread over ``ramp_s`` seconds, and stop after ``duration_s`` seconds or ``requests`` requests.
    Raises ParameterError for invalid values.
    """

    max_open: int
    asks: RandomRequests
    duration_s: float | None = None
    requests: int | None = None
    ramp_s: float = 0.0
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        an_end(self.duration_s, self.requests, "A closed loop")
        whole("concurrency", self.max_open, 1, MAX_REQUESTS)
        number("ramp", self.ramp_s, 0, MAX_SECONDS)
        if not before(self.ramp_s, self.duration_s):
            message = f"A ramp of {self.ramp_s:g} s must be shorter than the run of {self.duration_s:g} s."
            raise ParameterError(message, param="ramp", hint="Make it shorter than --duration.")

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "closed",
            "concurrency": self.max_open,
            "ramp_s": self.ramp_s,
            "pause_after_failure_s": PAUSE_S,
            "duration_s": self.duration_s,
            "requests": self.requests,
            **self.asks.describe(),
        }

    def begin(self) -> Iterator[Ask]:
        self._next = min(self.max_open, self.requests or MAX_REQUESTS)
        return (self.asks.ask(index, index * self.ramp_s / self.max_open) for index in range(self._next))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next request of the client whose request ended."""
        due_s = max(now_s, ended.ask.due_s + PAUSE_S) if ended.outcome in FAILURES else now_s
        if self._next >= (self.requests or MAX_REQUESTS) or not before(due_s, self.duration_s):
            return None
        self._next += 1
        return self.asks.ask(self._next - 1, due_s)
