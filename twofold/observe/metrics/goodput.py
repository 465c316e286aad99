"""Goodput: requests that were answered as fast as they should be (DistServe: Zhong et al., OSDI 2024).

A tier has an objective. A request misses it where one of its times is longer, or where the server failed it: an answer
of 5xx, a refusal for want of room included. What the caller did wrong (4xx, a quota used up, going away) says nothing
of the server and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from twofold.core.errors import ParameterError
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.timing import Timing
from twofold.observe.served import ServedRequest

TIERS: Final = ("default", "flex", "priority", "batch")
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The most seconds to the first token, for each token after it, and to the end; None where it does not matter."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ParameterError(f"{name} must be a number of seconds above 0, not {value!r:.60}.", param=name)

    @property
    def limits(self) -> Iterator[tuple[str, float]]:
        """Those that there are, by measure."""
        for measure, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            if limit is not None:
                yield measure, limit

    def missed(self, timing: Timing) -> list[str]:
        """The measures that took longer than they may; one that a request does not have cannot be missed."""
        taken = {"ttft": timing.ttft_s, "tpot": timing.tpot_s, "e2e": timing.e2e_s}
        return [measure for measure, limit in self.limits if (taken[measure] or 0.0) > limit]


DEFAULT_OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {
        "default": Objective(ttft_s=2.0, tpot_s=0.2),
        "flex": Objective(ttft_s=30.0, tpot_s=1.0),
        "priority": Objective(ttft_s=1.0, tpot_s=0.1),
        "batch": Objective(),
    }
)
"""For models of a size that a processor runs; nobody waits for a batch."""


class GoodputMetrics:
    """Judges requests and counts the verdicts by tier."""

    def __init__(self, instruments: Instruments, objectives: Mapping[str, Objective]) -> None:
        unknown = set(objectives) - set(TIERS)
        if unknown:
            raise ParameterError(f"There is no service tier {min(unknown)!r:.60}.", param="objectives")
        self._objectives = objectives
        self._met = instruments.counter("twofold:slo_met", "Requests that met their tier's objective.", "tier")
        self._missed = instruments.counter("twofold:slo_missed", "Requests that missed it.", "tier")
        self._causes = instruments.counter(
            "twofold:slo_missed_by",
            "Misses by what took too long; a request may count several times.",
            "tier",
            "measure",
        )
        self._tell(instruments)

    def judge(self, served: ServedRequest, timing: Timing) -> None:
        answered = served.status < 400 and (served.reports or served.cached_answer)
        if not answered and served.status < 500:
            return
        tier = served.tier
        missed = self._objectives.get(tier, Objective()).missed(timing) if answered else [FAILED]
        (self._missed if missed else self._met).add(1, tier)
        for measure in missed:
            self._causes.add(1, tier, measure)

    def _tell(self, instruments: Instruments) -> None:
        """Shows the objectives, and every tier's counters from the beginning."""
        limits = instruments.gauge("twofold:slo_seconds", "The most seconds of a request.", "tier", "measure")
        for tier in TIERS:
            self._met.add(0, tier)
            self._missed.add(0, tier)
            for measure, limit in self._objectives.get(tier, Objective()).limits:
                limits.set(limit, tier, measure)
