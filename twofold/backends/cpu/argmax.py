"""The largest logit of every row, found by the step's own program while all threads are at it.

With a vocabulary of 262,144 a row is a megabyte, half of it in another core's cache: one thread alone would take a
noticeable part of a decode step. A row is cut into parts, one operation each; NumPy picks the best of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.logits import BLOCK

F32 = NDArray[np.float32]
PARTS: Final = 8


class StepArgmax:
    """Where a step's program leaves the best id of each part of each row."""

    def __init__(self, rows: int, vocab: int) -> None:
        self._vocab = vocab
        self._width = -(-vocab // (PARTS * BLOCK)) * BLOCK
        parts = -(-vocab // self._width)
        self._ids = np.zeros((rows, parts), np.int32)
        self._values = np.zeros((rows, parts), np.float32)

    def arguments(self, logits: int, stride: int) -> list[dict[str, int]]:
        """For each part the fields of an argmax kernel over logits at that address. Units are logit rows."""
        firsts = range(0, self._vocab, self._width)
        return [
            {
                "logits": logits + 4 * first,
                "stride": stride,
                "count": min(self._width, self._vocab - first),
                "ids": self._ids.ctypes.data + 4 * part,
                "values": self._values.ctypes.data + 4 * part,
                "out_stride": self._ids.strides[0],
            }
            for part, first in enumerate(firsts)
        ]

    def of(self, rows: Sequence[int]) -> tuple[NDArray[np.int32], F32]:
        """Ids and values of these rows; among equals the lowest id."""
        values = self._values[rows]
        parts = values.argmax(axis=1)
        places = np.arange(len(parts))
        return self._ids[rows, parts] + parts.astype(np.int32) * np.int32(self._width), values[places, parts]
