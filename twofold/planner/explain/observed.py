"""A request as it was: from a server's record of it, from ``twofold run --json``, or from a bench.

Each source knows something else. A record knows the stalls and the floors of its phases; a client that measured a
server knows when tokens came, and nothing of why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Spent:
    """What a phase took, where that was measured, beside what the source itself says of it.

    predicted    by the step-time model that the engine learned from its own steps
    floor        the least that the machine which ran it could have taken, and by which limit
    flops, nbytes    what was done in it on one device
    """

    seconds: float | None = None
    predicted: float | None = None
    floor: float | None = None
    bound: Literal["memory", "arithmetic"] | None = None
    flops: float | None = None
    nbytes: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One request that ended. ``title`` says which; ``batch`` is how many ran in its decode steps, in the mean.

    ``notes`` tell how figures were come by that nobody measured directly.
    """

    title: str
    model: str | None
    prompt: int
    cached: int
    output: int
    batch: float = 1.0
    phases: Mapping[str, Spent] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(spent.seconds or 0.0 for spent in self.phases.values())
