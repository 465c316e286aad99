"""The requests to send, by due time.

    known from the start (made as they are taken) ┐
                                                  ├→ heap by due time → taken when due, if one more may be open
    following an ended request                    ┘

Requests are encoded ahead of time, while the client is idle, so that sending is quick.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from twofold.bench.base import Endpoint
from twofold.bench.client.target import JSON, ServerTarget, head, lowered
from twofold.bench.load.base import Ask

LOOK_AHEAD: Final = 31
"""Requests that are prepared: five levels of the heap."""
AHEAD_S: Final = 2.0


def request_writer(target: ServerTarget, endpoint: Endpoint) -> Callable[[Ask], bytes]:
    """Makes the bytes of requests; their head is made once, up to the length."""
    start = head(target, "POST", endpoint.path, JSON | lowered(endpoint.headers)) + b"\r\ncontent-length: "

    def write(ask: Ask) -> bytes:
        body = endpoint.body(ask)
        return b"%b%d\r\n\r\n%b" % (start, len(body), body)

    return write


@dataclass(slots=True, order=True)
class Planned:
    """A request to send; ``data`` are its bytes once they are made."""

    due_s: float
    count: int
    ask: Ask = field(compare=False)
    data: bytes | None = field(default=None, compare=False)
    known: bool = field(default=True, compare=False)


class RequestSchedule:
    """Invariant: the heap holds the earliest request, since known ones are made in ascending order."""

    def __init__(self, asks: Iterator[Ask], prepare: Callable[[Ask], bytes]) -> None:
        self._asks = asks
        self._prepare = prepare
        self._heap: list[Planned] = []
        self._count = 0
        self._known = 0
        self._exhausted = False
        self.last_due_s = 0.0
        self._pull()

    @property
    def exhausted(self) -> bool:
        """Whether all known requests were taken."""
        return self._exhausted and not self._heap

    @property
    def next_due_s(self) -> float:
        return self._heap[0].due_s if self._heap else math.inf

    def all_due(self, now_s: float) -> bool:
        """Whether all known requests are due."""
        self.pull_due(now_s)
        return self._exhausted and self.last_due_s <= now_s

    def add(self, ask: Ask) -> None:
        """Adds a request that follows an ended one."""
        self._push(ask, known=False)

    def take(self, now_s: float) -> tuple[Ask, bytes] | None:
        """The next request with its bytes, if it is due."""
        if not self._heap or self._heap[0].due_s > now_s:
            return None
        planned = heapq.heappop(self._heap)
        if planned.known:
            self._known -= 1
            if not self._known:
                self._pull()
        return planned.ask, planned.data if planned.data is not None else self._prepare(planned.ask)

    def work_ahead(self, now_s: float) -> bool:
        """Takes one of the next requests from the load, or encodes one; whether there was one."""
        if self._known < LOOK_AHEAD and not self._exhausted:
            self._pull()
            return True
        waiting = [planned for planned in self._heap[:LOOK_AHEAD] if planned.data is None]
        if not waiting:
            return False
        planned = min(waiting)
        if planned.due_s > now_s + AHEAD_S:
            return False
        planned.data = self._prepare(planned.ask)
        return True

    def pull_due(self, now_s: float) -> None:
        """Takes due requests from the load, sent or not, to know when the last one is due."""
        while not self._exhausted and self.last_due_s <= now_s:
            self._pull()

    def rest(self, now_s: float) -> list[Ask]:
        """Due requests that were never taken, in order."""
        self.pull_due(now_s)
        return [planned.ask for planned in sorted(self._heap) if planned.due_s <= now_s]

    def _pull(self) -> None:
        ask = next(self._asks, None)
        if ask is None:
            self._exhausted = True
        else:
            self._known += 1
            self._push(ask, known=True)

    def _push(self, ask: Ask, known: bool) -> None:
        self._count += 1
        self.last_due_s = max(self.last_due_s, ask.due_s)
        heapq.heappush(self._heap, Planned(ask.due_s, self._count, ask, known=known))
