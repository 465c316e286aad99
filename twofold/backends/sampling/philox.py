"""Philox4x32-10: random numbers as a function of (key, counter), with no state between calls.

Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Because a sample depends
only on the request's seed and the token's position, it is the same alone, in any batch, after a preemption and after a
restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10
WORD: Final = 0xFFFFFFFF

FEW: Final = 8
"""Fewer numbers than this are computed faster one by one."""
SAMPLE: Final = 0
DERIVE: Final = 1
"""The use of a number is the last word of its counter, so that two uses never share numbers."""


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words from a 128-bit counter and a 64-bit key, all given as 32-bit words, lowest first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = MULTIPLIERS
    for _ in range(ROUNDS):
        p0 = m0 * c0
        p1 = m1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0 = (k0 + WEYL[0]) & WORD
        k1 = (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2⁻⁵³, for the token at ``position`` of a request with this 64-bit seed."""
    high, low, _, _ = philox((position & WORD, position >> 32, 0, SAMPLE), (seed & WORD, seed >> 32))
    return ((high << 21) | (low >> 11)) * 2.0**-53


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> Sequence[float]:
    """``uniform`` of each pair; many at once cost little more than one."""
    if len(seeds) < FEW:
        return [uniform(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    key, place = np.array(seeds, np.uint64), np.array(positions, np.uint64)
    counter: Any = (place & WORD, place >> 32, np.zeros_like(place), np.full_like(place, SAMPLE))
    high, low, _, _ = philox(counter, cast(Any, (key & WORD, key >> 32)))
    found: Sequence[float] = (((high << 21) | (low >> 11)) * 2.0**-53).tolist()  # type: ignore[attr-defined]
    return found


def derive_seed(seed: int, index: int) -> int:
    """A 64-bit seed for part ``index`` of what ``seed`` belongs to; part 0 has the seed itself."""
    if index == 0:
        return seed
    high, low, _, _ = philox((index & WORD, index >> 32, 0, DERIVE), (seed & WORD, seed >> 32))
    return (high << 32) | low
