"""The ceilings that results are held against, measured in the same run."""

from __future__ import annotations

from twofold.cost.machine import FULL_RUNS, FULL_SIZES, MachineLimits, best_of, measure
from twofold.kernels.isa import choose
from twofold.kernels.jit import Compiler, Target, host_features


def ceilings(threads: int, before: MachineLimits | None = None) -> MachineLimits:
    """Measured now, never taken from a cache; with ``before``, the best of both: neighbours only ever slow a probe."""
    now = measure(Compiler(Target.of(choose(host_features()))), threads, FULL_SIZES, FULL_RUNS)
    return now if before is None else best_of(before, now)
