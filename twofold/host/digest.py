"""A universal hash for keyed digests that are as fast as memory: NH of Black et al. (UMAC, CRYPTO 1999; RFC 4418).

A chunk of CHUNK bytes is 32-bit words m, a key is words k, and pass t of PASSES has a 64-bit sum:

    h[t] = Σ_i (m[2i] + k[2i + 2t] mod 2³²) · (m[2i+1] + k[2i+1 + 2t] mod 2³²)   mod 2⁶⁴

Two different sequences of chunks have the same sums for one key of 2¹²⁸. The sums of a chunk are 32 bytes; who needs a
digest gives them to a keyed hash of the usual kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 1024
PASSES: Final = 4
KEY_BYTES: Final = CHUNK + 8 * (PASSES - 1)
SUM_BYTES: Final = 8 * PASSES
"""Bytes of a chunk's sums."""
UniversalHash = Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.uint8]]
"""The sums of whole chunks under a key of KEY_BYTES, SUM_BYTES of each chunk in order."""


def universal_hash(data: NDArray[np.uint8], key: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``UniversalHash`` for any machine; a backend may have a faster one (``Backend.universal_hash``)."""
    words, keys = data.view("<u4").reshape(-1, CHUNK // 4), key.view("<u4")
    sums = np.empty((len(words), PASSES), np.uint64)
    for number in range(PASSES):
        mixed = words + keys[2 * number : 2 * number + CHUNK // 4]
        np.einsum("ij,ij->i", mixed[:, ::2].astype(np.uint64), mixed[:, 1::2].astype(np.uint64), out=sums[:, number])
    return sums.view(np.uint8).reshape(-1)
