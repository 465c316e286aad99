"""The MAC of a segment's blocks, which costs a few percent of reading them.

Chunks are hashed by a keyed universal hash, and their sums, 3 % of the bytes, by keyed BLAKE3: a universal hash before
a pseudorandom function, as in UMAC. Without the keys, a try at other blocks with the same MAC succeeds with a
probability of 2⁻¹²⁸. Each group of each segment has keys of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.digest import CHUNK, KEY_BYTES, SUM_BYTES, universal_hash
from twofold.engine.kv.segments import StoreKeys


class PayloadMac:
    """Computes the MAC of group number ``group`` of the segment ``name`` from pieces of any sizes."""

    def __init__(self, keys: StoreKeys, name: bytes, group: int) -> None:
        self._hash = universal_hash()
        self._key = np.frombuffer(keys.hash_key(name, group, KEY_BYTES), np.uint8)
        self._mac = keys.payload_mac(name, group)
        self._rest = bytearray()
        self._size = 0

    def update(self, piece: memoryview) -> None:
        """Adds contiguous bytes."""
        self._size += piece.nbytes
        if self._rest:
            missing = CHUNK - len(self._rest)
            self._rest += piece[:missing]
            piece = piece[missing:]
            if len(self._rest) < CHUNK:
                return
            self._add(np.frombuffer(self._rest, np.uint8))
        whole = piece.nbytes - piece.nbytes % CHUNK
        if whole:
            self._add(np.frombuffer(piece[:whole], np.uint8))
        self._rest = bytearray(piece[whole:])

    def digest(self) -> bytes:
        """The MAC of all bytes; nothing may be added afterwards."""
        if self._rest:
            self._add(np.frombuffer(self._rest.ljust(CHUNK, b"\0"), np.uint8))
        self._mac.update(self._size.to_bytes(8, "little"))
        return self._mac.digest()

    def _add(self, chunks: NDArray[np.uint8]) -> None:
        count = len(chunks) // CHUNK
        sums = np.empty(count * SUM_BYTES, np.uint8)
        self._hash(chunks.ctypes.data, count, self._key.ctypes.data, sums.ctypes.data)
        self._mac.update(sums.data)
