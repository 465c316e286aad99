"""A plan: a configuration, how many of it, and what will come of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.planner.count.memory import DeviceMemory
from twofold.planner.plan.choices import Configuration


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a measure.

    mean   over requests
    at     what the asked share of the requests stays within
    floor  what no server on this machine can go below
    error  the share by which predictions of it were wrong where they were held against measurements; None: unknown
    """

    mean: float
    at: float
    floor: float
    error: float | None

    @property
    def band(self) -> tuple[float, float] | None:
        """Around ``at``, by the error; the floor is its lower end at least."""
        if self.error is None:
            return None
        return max(self.floor, self.at * (1 - self.error)), self.at * (1 + self.error)


@dataclass(frozen=True, slots=True)
class Count:
    """How many replicas: of both phases, or of each."""

    both: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def replicas(self) -> int:
        return self.both + self.prefill + self.decode

    def __str__(self) -> str:
        return str(self.both) if self.both else f"{self.prefill}:{self.decode}"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """``source`` of the estimates: the analytic bounds of ``replica``, or a simulation.

    batch        sequences that decode together on a replica, in the mean
    batch_limit  how many to let in
    room         of each device's memory
    token_bytes  of keys and values
    sequences    of mean length that there is room for on a replica
    prompt_share of a replica's time that prompts take; of a prefill replica's, where they have their own
    cost         an hour; None where the machine has no price
    sure         whether the limits are kept at the bad end of the error bands too; None where these are unknown
    reasons      why it is as it is, in sentences
    attained     the share of the requests that kept all limits in a simulation
    """

    configuration: Configuration
    count: Count
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate
    batch: float
    batch_limit: int
    room: DeviceMemory
    token_bytes: int
    sequences: int
    prompt_share: float
    cost: float | None
    cost_per_million: float | None
    sure: bool | None
    reasons: tuple[str, ...] = ()
    source: Literal["estimate", "simulation"] = "estimate"
    attained: float | None = None

    @property
    def devices(self) -> int:
        return self.count.replicas * self.configuration.tp

    def estimates(self) -> dict[str, Estimate]:
        """By the measure's name."""
        return {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}


Bound = Literal["shape", "floor", "memory", "alone", "devices"]
"""What forbids a configuration, from the hardest to the softest: it cannot be cut up so, no machine of this kind is so
fast, it does not fit, it is too slow even when idle, it takes too many devices."""


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A configuration that cannot do it, and what forbids it: where it is a time, of ``measure``."""

    configuration: Configuration
    bound: Bound
    why: str
    measure: str = ""
    value: float = 0.0
    limit: float = 0.0
