"""Goodput: requests that meet the latency objective of their tier (DistServe: Zhong et al., OSDI 2024).

A request misses it where one of its times is longer, or where the server fails with a 5xx, which includes refusals
under overload. Errors of the caller (4xx, an exceeded quota, a disconnect) are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from twofold.core.errors import ParameterError
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.served import ServedRequest

TIERS: Final = ("default", "flex", "priority", "batch")
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Max seconds to the first token, per token after it, and to the end; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ParameterError(f"{name} must be a number of seconds above 0, not {value!r:.60}.", param=name)

    @property
    def limits(self) -> dict[str, float]:
        """The limits by measure."""
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        return {measure: limit for measure, limit in limits.items() if limit is not None}

    def missed(self, served: ServedRequest) -> list[str]:
        """The measures beyond their limits; a request without a measure does not miss it."""
        taken = {"ttft": served.ttft_s, "tpot": served.tpot_s, "e2e": served.duration_s}
        return [measure for measure, limit in self.limits.items() if (taken[measure] or 0.0) > limit]


NO_OBJECTIVE: Final = Objective()
DEFAULT_OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {
        "default": Objective(ttft_s=2.0, tpot_s=0.2),
        "flex": Objective(ttft_s=30.0, tpot_s=1.0),
        "priority": Objective(ttft_s=1.0, tpot_s=0.1),
        "batch": NO_OBJECTIVE,
    }
)
"""For models of a size that a CPU runs. Batches have no limits."""


class GoodputMetrics:
    """Counts requests by tier that met or missed its objective."""

    def __init__(self, instruments: Instruments, objectives: Mapping[str, Objective]) -> None:
        unknown = set(objectives) - set(TIERS)
        if unknown:
            raise ParameterError(f"There is no service tier {min(unknown)!r:.60}.", param="objectives")
        self._objectives = objectives
        counter = instruments.counter
        self._met = counter("twofold:slo_met", "Requests that met their tier's objective.", "tier")
        self._missed = counter("twofold:slo_missed", "Requests that missed it.", "tier")
        self._causes = counter(
            "twofold:slo_missed_by", "Misses by measure; a request may miss several.", "tier", "measure"
        )
        limits = instruments.gauge("twofold:slo_seconds", "The objectives: max seconds.", "tier", "measure")
        for tier in TIERS:
            self._met.add(0, tier)
            self._missed.add(0, tier)
            for measure, limit in objectives.get(tier, NO_OBJECTIVE).limits.items():
                limits.set(limit, tier, measure)

    def judge(self, served: ServedRequest) -> None:
        completed = served.status < 400 and (served.reports or served.cached_answer)
        if not completed and served.status < 500:
            return
        tier = served.tier
        missed = self._objectives.get(tier, NO_OBJECTIVE).missed(served) if completed else [FAILED]
        (self._missed if missed else self._met).add(1, tier)
        for measure in missed:
            self._causes.add(1, tier, measure)
