"""Simulates a load with a client and a server without overhead: which requests start, and when."""

from __future__ import annotations

import heapq

from twofold.bench.load.base import Ask, Load, Outcome
from twofold.bench.record import RequestSample


def ended(ask: Ask, at_s: float, *, outcome: Outcome = "ok", text: str = "so it is") -> RequestSample:
    """``ask`` with a complete response at ``at_s``."""
    sample = RequestSample(ask, outcome=outcome, started_s=ask.due_s, sent_s=ask.due_s, ended_s=at_s)
    if text and outcome == "ok":
        sample.response.chunk(at_s, text, 3)
    return sample


def played(load: Load, service_s: float, *, outcome: Outcome = "ok", most: int = 5000) -> list[Ask]:
    """Requests in the order of their starts, each completed after ``service_s``; at most ``most``."""
    waiting = [(ask.due_s, ask.index, ask) for ask in load.begin()]
    heapq.heapify(waiting)
    began: list[Ask] = []
    while waiting and len(began) < most:
        _, _, ask = heapq.heappop(waiting)
        began.append(ask)
        end_s = ask.due_s + service_s
        following = load.follow(ended(ask, end_s, outcome=outcome), end_s)
        if following is not None:
            heapq.heappush(waiting, (following.due_s, following.index, following))
    return began
