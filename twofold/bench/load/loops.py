"""Open loops, whose requests are due at given times, and closed loops, whose clients wait for their replies.

A closed loop measures what a server can do at a concurrency, never how it copes with a rate: a server that stalls gets
no requests, and so its clients wait for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from twofold.bench.load.arrivals import Arrivals
from twofold.bench.load.base import FAILURES, Ask, EndedRequest
from twofold.bench.load.checks import MAX_REQUESTS, MAX_SECONDS, an_end, before, number, whole
from twofold.bench.load.requests import RandomRequests
from twofold.core.errors import ParameterError

PAUSE_S: Final = 0.1
"""A client whose request failed asks again no sooner than so long after that request was due, or else a server that
refuses at once would be asked thousands of times a second."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that become due by ``arrivals`` in ``duration_s`` seconds, at most ``requests`` of them.

    At most ``max_open`` are open at once; what is due beyond that waits at the client. ParameterError where there is
    no end.
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
        """Nothing: nobody waits for an answer before the next request."""
        del ended, now_s
        return None


class ClosedLoop:
    """``concurrency`` clients, each of which sends its next request when the one before was answered.

    They begin evenly spread over ``ramp_s`` seconds, and end when ``duration_s`` is over or ``requests`` were sent.
    Raises ParameterError for what is impossible.
    """

    def __init__(
        self,
        concurrency: int,
        asks: RandomRequests,
        *,
        duration_s: float | None = None,
        requests: int | None = None,
        ramp_s: float = 0.0,
    ) -> None:
        an_end(duration_s, requests, "A closed loop")
        self._clients = whole("concurrency", concurrency, 1, MAX_REQUESTS)
        self._ramp_s = number("ramp", ramp_s, 0, MAX_SECONDS)
        if not before(ramp_s, duration_s):
            raise ParameterError(
                f"A ramp of {ramp_s:g} s must be shorter than the run of {duration_s:g} s.",
                param="ramp",
                hint="Let it be shorter than --duration.",
            )
        self._asks = asks
        self._most = MAX_REQUESTS if requests is None else requests
        self.duration_s, self.requests = duration_s, requests
        self._next = 0

    @property
    def max_open(self) -> int | None:
        return self._clients

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "closed",
            "concurrency": self._clients,
            "ramp_s": self._ramp_s,
            "pause_after_failure_s": PAUSE_S,
            "duration_s": self.duration_s,
            "requests": self.requests,
            **self._asks.describe(),
        }

    def begin(self) -> Iterator[Ask]:
        first = min(self._clients, self._most)
        self._next = first
        return (self._asks.ask(index, index * self._ramp_s / self._clients) for index in range(first))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next request of the client whose request ended."""
        due_s = max(now_s, ended.ask.due_s + PAUSE_S) if ended.outcome in FAILURES else now_s
        if self._next >= self._most or not before(due_s, self.duration_s):
            return None
        self._next += 1
        return self._asks.ask(self._next - 1, due_s)
