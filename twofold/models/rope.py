"""Tables of rotations for rotary position embeddings (Su et al. 2021) and their stretched variants."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.model import FactorScaling, LinearScaling, RopeSpec, YarnScaling

PIECE: Final = 256
"""Positions that are computed at once: their float64 values stay in the cache, which is three times as fast."""


def rope_table(rope: RopeSpec, positions: int) -> NDArray[np.float32]:
    """Cosines and sines of each pair at positions 0 … positions - 1: float32 [positions, 2, dims / 2].

    Angles and functions are computed in float64, multiplied by the magnitude of the scaling, and rounded once.
    """
    turns, scale = frequencies(rope), magnitude(rope)
    table = np.empty((positions, 2, len(turns)), np.float32)
    for first in range(0, positions, PIECE):
        rows = table[first : first + PIECE]
        angles = np.arange(first, first + len(rows), dtype=np.float64)[:, None] * turns
        rows[:, 0], rows[:, 1] = np.cos(angles) * scale, np.sin(angles) * scale
    return table


def frequencies(rope: RopeSpec) -> NDArray[np.float64]:
    """Radians by which one position turns each pair: float64 [dims / 2]."""
    plain = rope.base ** -(np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case FactorScaling(factors):
            return plain / np.asarray(factors, dtype=np.float64)
        case YarnScaling() as yarn:
            kept = yarn.extrapolation * _kept_share(rope, yarn)
            return plain / yarn.factor * (1 - kept) + plain * kept


def magnitude(rope: RopeSpec) -> float:
    """The factor of cosines and sines. YaRN multiplies it by 0.1 · ln(factor) + 1 (Peng et al. 2023)."""
    match rope.scaling:
        case FactorScaling(_, magnitude=value):
            return value
        case YarnScaling(extrapolation=share) as yarn if share != 0 and yarn.factor > 1:
            return yarn.attention_factor * (0.1 * math.log(yarn.factor) + 1)
        case YarnScaling() as yarn:
            return yarn.attention_factor
        case _:
            return 1.0


def _kept_share(rope: RopeSpec, yarn: YarnScaling) -> NDArray[np.float64]:
    """1 for pairs that turn often enough in the original context to be kept, 0 for those that are interpolated."""
    low = max(0, math.floor(_pair_that_turns(yarn.beta_fast, rope, yarn)))
    high = min(rope.dims - 1, math.ceil(_pair_that_turns(yarn.beta_slow, rope, yarn)))
    ramp = (np.arange(rope.dims // 2, dtype=np.float64) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)


def _pair_that_turns(times: float, rope: RopeSpec, yarn: YarnScaling) -> float:
    """The (fractional) number of the pair that turns ``times`` times over the original context."""
    return rope.dims * math.log(yarn.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.base))
