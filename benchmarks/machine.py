"""The ceilings that results are held against, measured in the same run."""

from __future__ import annotations

from twofold.cost.machine import FULL_RUNS, FULL_SIZES, MachineLimits, measure
from twofold.kernels.isa import choose
from twofold.kernels.jit import Compiler, Target, host_features


def ceilings(threads: int) -> MachineLimits:
    """Measured now, never taken from a cache: neighbours change what the machine can do."""
    return measure(Compiler(Target.of(choose(host_features()))), threads, FULL_SIZES, FULL_RUNS)
