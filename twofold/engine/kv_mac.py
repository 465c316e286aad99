"""The MAC of a segment's blocks, which costs a few percent of reading them.

Chunks are hashed by a keyed universal hash, and their sums, 3 % of the bytes, by keyed BLAKE3: a universal hash before
a pseudorandom function, as in UMAC. Without the keys, a try at other blocks with the same MAC succeeds with a
probability of 2⁻¹²⁸. Each group of each segment has keys of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from twofold.engine.kv.segments import StoreKeys
from twofold.host.digest import CHUNK, KEY_BYTES, UniversalHash

DIRECT_BYTES: Final = 1 << 16
"""Smallest piece that is hashed where it is."""


class PayloadMac:
    """Computes the MAC of group number ``group`` of the segment ``name`` from pieces of any sizes."""

    def __init__(self, keys: StoreKeys, name: bytes, group: int, universal_hash: UniversalHash) -> None:
        self._hash = universal_hash
        self._key = np.frombuffer(keys.hash_key(name, group, KEY_BYTES), np.uint8)
        self._mac = keys.payload_mac(name, group)
        self._rest = bytearray()
        self._size = 0

    def update(self, piece: memoryview) -> None:
        """Adds contiguous bytes. Small pieces are joined, because a call takes as long as hashing 16 KiB."""
        self._size += piece.nbytes
        if self._rest or piece.nbytes < DIRECT_BYTES:
            self._rest += piece
            if len(self._rest) < DIRECT_BYTES:
                return
            piece, self._rest = memoryview(self._rest), bytearray()
        whole = piece.nbytes - piece.nbytes % CHUNK
        self._add(piece[:whole])
        self._rest += piece[whole:]

    def digest(self) -> bytes:
        """The MAC of all bytes; nothing may be added afterwards."""
        if self._rest:
            self._add(self._rest + bytes(-len(self._rest) % CHUNK))
        self._mac.update(self._size.to_bytes(8, "little"))
        return self._mac.digest()

    def _add(self, chunks: bytearray | memoryview) -> None:
        self._mac.update(self._hash(np.frombuffer(chunks, np.uint8), self._key).data)
