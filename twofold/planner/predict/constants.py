"""What a machine really reaches: the few constants between counted work and seconds, each with where it is from.

    eta_m     share of the peak bandwidth at which weights are read
    eta_c     share of the peak at which products are made
    eta_k     share of the peak bandwidth at which keys and values are read and written
    eta_l     share of the links' bandwidth
    t_layer   seconds that each layer of a step takes, whatever is in it: starts of kernels, gaps between them
    t_step    seconds that each step takes, whatever is in it: planning, tables, sampling
    t_req     seconds for each sequence of a step: its part of planning, its token's way out
    t_ar      seconds of summing up almost nothing over all devices
    t_first   seconds that a request spends outside of steps before its first token
    ahead     others' prompts that are computed before a request's own, where that many others are open
    ahead_c   further ones, as a share of the other open requests

Shares are above 0 and at most 1, times and ``ahead`` not negative: so no prediction is below the speed of light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Self

from twofold.planner.machines.machine import Cited

SHARES: Final = ("eta_m", "eta_c", "eta_k", "eta_l")
TIMES: Final = ("t_layer", "t_step", "t_req", "t_ar", "t_first")
PROMPTS: Final = ("ahead", "ahead_c")
PERFECT: Final = Cited(1.0, "the data sheet: nothing is lost")
FREE: Final = Cited(0.0, "nothing is spent outside of the work")
ALONE: Final = Cited(0.0, "no prompt waits for another one")


@dataclass(frozen=True, slots=True)
class Constants:
    """A set of constants. ``error`` is the mean of |predicted − measured| / measured of steps that they were not
    fitted to, where a calibration found it.

    ``overlap``: the machine reads while it multiplies, so that the longer of both counts, and not their sum.
    """

    eta_m: Cited = PERFECT
    eta_c: Cited = PERFECT
    eta_k: Cited = PERFECT
    eta_l: Cited = PERFECT
    t_layer: Cited = FREE
    t_step: Cited = FREE
    t_req: Cited = FREE
    t_ar: Cited = FREE
    t_first: Cited = FREE
    ahead: Cited = ALONE
    ahead_c: Cited = ALONE
    overlap: bool = True
    error: Cited | None = None

    def __post_init__(self) -> None:
        for name in SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share above 0 and at most 1, not {getattr(self, name)}")
        for name in (*TIMES, *PROMPTS):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a {'time' if name in TIMES else 'number'} ≥ 0, not {getattr(self, name)}")

    def values(self) -> dict[str, Cited]:
        """Shares, times and numbers by name."""
        names = (*SHARES, *TIMES, *PROMPTS)
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in names}

    def prompts_ahead(self, batch: int) -> float:
        """Others' prompts that are computed before one's own, of ``batch`` requests that are open: at most all."""
        others = batch - 1
        return min(others, self.ahead + self.ahead_c * others)

    def having(self, values: Mapping[str, float], source: str) -> Self:
        """With other values for some, all from one source."""
        return replace(self, **{name: Cited(value, source) for name, value in values.items()})  # type: ignore[arg-type]


BARE: Final = Constants()
"""The bare roofline: what data sheets promise, and no time for anything else."""

RULES: Final = "rule of thumb: 80% of bandwidth, 70% of arithmetic"
EFFICIENT: Final = BARE.having({"eta_m": 0.8, "eta_c": 0.7, "eta_k": 0.8}, RULES)
"""The roofline with the efficiencies that everybody assumes."""
