"""Records of plans: a configuration, its number of replicas, and its estimated times; or why it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.planner.count.memory import DeviceMemory
from twofold.planner.plan.choices import Configuration


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a measure.

    mean   over requests
    at     percentile of the attainment
    floor  least seconds on this machine
    error  mean relative error of its predictions against measurements; None: unknown
    """

    mean: float
    at: float
    floor: float
    error: float | None

    @property
    def band(self) -> tuple[float, float] | None:
        """``at`` ± error, not below the floor."""
        if self.error is None:
            return None
        return max(self.floor, self.at * (1 - self.error)), self.at * (1 + self.error)


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of replicas: of both phases, or of each."""

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
    """A configuration with a number of replicas. ``source`` of the estimates: the closed forms of ``replica``, or a
    simulation.

    batch        mean sequences that decode together on a replica
    batch_limit  most concurrent sequences to set
    room         memory of each device
    token_bytes  bytes of keys and values of a token
    sequences    sequences of mean length that fit on a replica
    prompt_share share of a replica's time in prefill; of a prefill replica's, if separate
    cost         dollars an hour; None if the machine has no price
    sure         whether limits are met at the upper ends of the error bands; None if these are unknown
    reasons      explanations, in sentences
    attained     share of the requests that met all limits in a simulation
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
"""Why a configuration is refused, from the hardest reason to the softest: devices cannot share the model, a limit is
below the machine's floor, it does not fit, it is too slow when idle, it needs too many devices."""


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A refused configuration, with the bound that it exceeds; ``value`` and ``limit`` are seconds of ``measure``."""

    configuration: Configuration
    bound: Bound
    why: str
    measure: str = ""
    value: float = 0.0
    limit: float = 0.0
