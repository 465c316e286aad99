"""Plays a load as a client and a server would that take no time themselves: what begins, and when."""

from __future__ import annotations

import heapq

from twofold.bench.load.base import Ask, Load, Outcome
from twofold.bench.record import RequestSample


def ended(ask: Ask, at_s: float, *, outcome: Outcome = "ok", text: str = "so it is") -> RequestSample:
    """``ask``, whose answer came whole at ``at_s``."""
    sample = RequestSample(ask, outcome=outcome, started_s=ask.due_s, sent_s=ask.due_s, ended_s=at_s)
    if text and outcome == "ok":
        sample.response.chunk(at_s, text, 3)
    return sample


def played(load: Load, service_s: float, *, outcome: Outcome = "ok", most: int = 5000) -> list[Ask]:
    """Asks in the order in which they began, each answered after ``service_s``; no more than ``most``."""
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
