"""An open loop: requests come as they come, whether or not the server keeps up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from twofold.bench.load.arrivals import Arrivals
from twofold.bench.load.base import Ask, EndedRequest
from twofold.bench.load.checks import MOST_REQUESTS, an_end, before, whole
from twofold.bench.load.requests import RandomRequests
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that become due by ``arrivals`` in ``duration_s`` seconds, at most ``requests`` of them.

    At most ``most_open`` are open at once; what is due beyond that waits at the client. ParameterError where there is
    no end.
    """

    arrivals: Arrivals
    asks: RandomRequests
    duration_s: float | None = None
    requests: int | None = None
    most_open: int | None = None

    def __post_init__(self) -> None:
        an_end(self.duration_s, self.requests, "An open loop")
        if self.most_open is not None:
            whole("concurrency", self.most_open, 1, MOST_REQUESTS)
        if self.requests is None and self.arrivals.rate == float("inf"):
            raise ParameterError("An infinite rate needs a number of requests.", param="requests")

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "open",
            "arrivals": self.arrivals.describe(),
            "duration_s": self.duration_s,
            "requests": self.requests,
            "concurrency": self.most_open,
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
