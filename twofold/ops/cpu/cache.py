"""The memory of the paged KV cache, one area for each layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.kernels.cache import CacheShape
from twofold.ops.cpu.memory import aligned_zeros


class KVCache:
    """``blocks`` blocks in each of ``layers`` layers. Pages become real as positions are written."""

    def __init__(self, shape: CacheShape, layers: int, blocks: int) -> None:
        self.shape = shape
        self.layers = layers
        self.blocks = blocks
        self._layer_bytes = shape.block_bytes * blocks
        self._address, self._owner = aligned_zeros(self._layer_bytes * layers)

    @property
    def nbytes(self) -> int:
        """Bytes that a full cache takes."""
        return self._layer_bytes * self.layers

    def layer_address(self, layer: int) -> int:
        return self._address + layer * self._layer_bytes

    def block(self, layer: int, block: int) -> NDArray[np.uint8]:
        """The bytes of one block of one layer, for copying it elsewhere and back."""
        start = self.layer_address(layer) - self._owner.ctypes.data + block * self.shape.block_bytes
        return self._owner[start : start + self.shape.block_bytes]
