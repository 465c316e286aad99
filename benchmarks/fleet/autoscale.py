"""Processor time of a decision of ``--autoscale``, by rate of the requests and number of replicas: simulations only.

``python -m benchmarks.fleet autoscale``. Requests have 50 to 1,500 prompt tokens, of which up to half are cached, and
20 to 300 output tokens; steps take as long as those of a small model on two cores (``SIMULATED``), or a multiple of
that.
"""

from __future__ import annotations

import random
import time
from typing import Any

from twofold.fleet.scale import EngineLimits, PastRequest, ScaleQuestion, forecast
from twofold.observe.metrics.requests import Objective
from twofold.planner.simulate.setting import SIMULATED
from twofold.server.planning.work import SCALE_S

OBJECTIVES = {"default": Objective(ttft_s=2.0, tpot_s=0.2)}
CASES = ((2.0, 300.0, 1.0, 8, 1), (2.0, 300.0, 1.0, 8, 2), (2.0, 600.0, 1.0, 8, 2), (2.0, 300.0, 2.0, 8, 4))
"""Requests a second, seconds, multiple of the step times, most replicas, present ones."""
LARGE = ((20.0, 50.0, 2.0, 64, 1), (20.0, 50.0, 2.0, 64, 40))


def traffic(rate: float, seconds: float) -> tuple[PastRequest, ...]:
    """Poisson arrivals."""
    draw, at, found = random.Random(0), 0.0, []
    while (at := at + draw.expovariate(rate)) < seconds:
        prompt = draw.randint(50, 1500)
        found.append(PastRequest(at, prompt, draw.randint(0, prompt // 2), draw.randint(20, 300)))
    return tuple(found)


def decide(rate: float, seconds: float, slower: float, most: int, present: int) -> dict[str, Any]:
    """One decision, as the server's helper process makes it."""
    engine = EngineLimits(32, 512, 16, 4096, tuple(weight * slower for weight in SIMULATED.prior), SIMULATED, 0.05)
    asked = ScaleQuestion(traffic(rate, seconds), engine, OBJECTIVES, 0.9, 1, most, present)
    began = time.process_time()
    found = forecast(asked, lambda: time.process_time() > began + SCALE_S)
    return {
        "rate": rate,
        "requests": found.requests,
        "of": len(asked.requests),
        "present": present,
        "wanted": found.replicas,
        "attainment": {replicas: round(share, 3) for replicas, share in found.attainment.items()},
        "cut": found.cut,
        "seconds": round(time.process_time() - began, 2),
    }


def decisions() -> list[dict[str, Any]]:
    """The figures of each case, which it prints."""
    found = [decide(*case) for case in (*CASES, *LARGE)]
    for each in found:
        print(*(f"{name}={value}" for name, value in each.items()))
    return found
