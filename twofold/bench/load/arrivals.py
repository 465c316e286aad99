"""When requests arrive that do not wait for each other: how the gaps between them are distributed.

Gaps are drawn from a gamma distribution with mean 1/rate and shape ``burstiness``, as vLLM's benchmark defines it:
the deviation of a gap is 1/√burstiness of its mean. At 1 that is a Poisson process; below it arrivals are burstier,
above it more even. A constant rate is the limit of infinite burstiness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, Final, Literal, TypeAlias, get_args

from twofold.bench.load.checks import MAX_RATE, above_zero
from twofold.bench.load.draws import Draws, RandomStream
from twofold.core.errors import ParameterError, closest_match, describe_name

Kind: TypeAlias = Literal["constant", "poisson", "gamma"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process of ``rate`` requests a second; an infinite rate is all of them at once, at the start.

    With a constant rate the first arrives at 0 and the others 1/rate apart; else the first arrives after a gap too.
    ``burstiness`` is for "gamma" alone. ParameterError for what is impossible.
    """

    rate: float
    kind: Kind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != math.inf:
            above_zero("rate", self.rate, MAX_RATE)
        if self.kind not in KINDS:
            close = closest_match(self.kind, KINDS)
            raise ParameterError(
                f"{describe_name(self.kind)} is not an arrival process.",
                param="arrivals",
                hint=f"Did you mean {close!r}?" if close else f"Known: {', '.join(KINDS)}.",
            )
        if self.kind != "gamma" and self.burstiness != 1:
            raise ParameterError(
                f"burstiness is for gamma arrivals, not for {self.kind} ones.",
                param="burstiness",
                hint="Give --arrivals gamma.",
            )
        above_zero("burstiness", self.burstiness, 1e6)

    def describe(self) -> Mapping[str, Any]:
        rate = None if math.isinf(self.rate) else self.rate
        said = {"kind": self.kind, "rate": rate}
        return said | {"burstiness": self.burstiness} if self.kind == "gamma" else said

    def moments(self, seed: int) -> Iterator[float]:
        """When each request is due, in seconds, ascending and without end."""
        if self.kind == "constant":
            return (index / self.rate for index in count())
        mean = 1 / self.rate
        gaps = Draws[float](
            seed, RandomStream.ARRIVALS, lambda rng, size: rng.gamma(self.burstiness, mean / self.burstiness, size)
        )
        return accumulate(gaps)
