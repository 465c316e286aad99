"""Whether a request would get its first token in time: one that would not is refused at once.

An engine says what a request would meet if it arrived now (``engine.scheduler.forecast``). That is asked at most every
FRESH_S; in between time passes, and each admitted request takes a slot.

    A tenant's first jobs are admitted: its even part of a few, or of those in progress if they are more. A caller of
    few requests would rather wait. Slots say less: a slow machine has more of them than it can serve in time.
    A request is refused if its queue is predicted to make its TTFT longer than FAR times its tier's objective.
    For CALM_S after a refusal, the limit is the share AIM of the objective: under overload every place is at the limit,
    and what is admitted should meet the objective.

No I/O; time is an argument.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from twofold.core.forecast import Forecast

FRESH_S: Final = 0.25
FAR: Final = 3.0
AIM: Final = 0.6
CALM_S: Final = 10.0
FEW: Final = 4
"""Jobs that are admitted without a prediction; on many slots a quarter of them."""


def admitted_part(slots: int, running: Counter[str], tenant: str) -> int:
    """How many jobs of a tenant are admitted without a prediction, beside the ``running`` ones of all tenants."""
    few = min(slots, max(FEW, slots // 4))
    return max(1, max(few, running.total()) // len({*running, tenant}))


@dataclass(slots=True)
class Outlook:
    """The queue of the next requests of a class, as it was predicted ``at`` some time, and how many were admitted since
    then. Times are in seconds."""

    queues_s: tuple[float, ...] = ()
    prefill_s: float = 0.0
    admitted: int = 0
    at: float = -math.inf
    asked_at: float = -math.inf
    refused_at: float = -math.inf

    def asks(self, now: float) -> bool:
        """Whether the engine should be asked now, by the caller."""
        due = now - max(self.at, self.asked_at) >= FRESH_S
        self.asked_at = now if due else self.asked_at
        return due

    def learn(self, forecast: Forecast, now: float) -> None:
        """Takes the engine's prediction; without one, nothing is refused."""
        self.queues_s, self.prefill_s = forecast.queues_s, forecast.prefill_s or 0.0
        self.admitted, self.at = 0, now

    def refuses(self, objective_s: float, now: float) -> float | None:
        """Seconds after which a request that arrives now would not be refused any more; None if it is admitted."""
        limit_s = self._limit_s((AIM if now - self.refused_at < CALM_S else FAR) * objective_s)
        queue_s = self.queues_s[min(self.admitted, len(self.queues_s) - 1)] if self.queues_s else 0.0
        wait_s = queue_s - (now - self.at)
        if wait_s <= limit_s:
            self.admitted += 1
            return None
        self.refused_at = now
        return wait_s - self._limit_s(AIM * objective_s)

    def _limit_s(self, ttft_s: float) -> float:
        """Seconds of the queue that leave time for the prompt; at least half, for prompts that take too long alone."""
        return max(ttft_s - self.prefill_s, ttft_s / 2)
