"""Arrival processes.

Gaps between arrivals have a gamma distribution with mean 1/rate and shape ``burstiness``, as in vLLM's benchmark: their
coefficient of variation is 1/√burstiness. 1 is a Poisson process, less is burstier, more is more even; a constant rate
is the limit of infinite burstiness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, Final, Literal, TypeAlias, get_args

from twofold.bench.load.checks import MAX_RATE, above_zero
from twofold.bench.load.draws import Draws, RandomStream
from twofold.core.errors import ParameterError, describe_name, did_you_mean

Kind: TypeAlias = Literal["constant", "poisson", "gamma"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process of ``rate`` requests a second; with an infinite rate all requests arrive at the start.

    At a constant rate the first request arrives at 0; otherwise it arrives after a gap. ``burstiness`` is only for
    "gamma". Raises ParameterError for invalid values.
    """

    rate: float
    kind: Kind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != math.inf:
            above_zero("rate", self.rate, MAX_RATE)
        if self.kind not in KINDS:
            message = f"{describe_name(self.kind)} is not an arrival process."
            raise ParameterError(message, param="arrivals", hint=did_you_mean(self.kind, KINDS))
        if self.kind != "gamma" and self.burstiness != 1:
            message = f"burstiness is for gamma arrivals, not for {self.kind} ones."
            raise ParameterError(message, param="burstiness", hint="Give --arrivals gamma.")
        above_zero("burstiness", self.burstiness, 1e6)

    def describe(self) -> Mapping[str, Any]:
        rate = None if math.isinf(self.rate) else self.rate
        found = {"kind": self.kind, "rate": rate}
        return found | {"burstiness": self.burstiness} if self.kind == "gamma" else found

    def moments(self, seed: int) -> Iterator[float]:
        """Arrival times in seconds, ascending and endless."""
        if self.kind == "constant":
            return (index / self.rate for index in count())
        mean = 1 / self.rate
        gaps = Draws[float](
            seed, RandomStream.ARRIVALS, lambda rng, size: rng.gamma(self.burstiness, mean / self.burstiness, size)
        )
        return accumulate(gaps)
