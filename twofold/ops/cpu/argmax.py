"""The largest logit of every row, found by the step's own program while all threads are at it.

With a vocabulary of 262,144 a row is a megabyte, half of it in another core's cache: one thread alone would take a
noticeable part of a decode step. A row is cut into parts, one operation each; Python only picks the best of a few.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.kernels.jit import Compiler
from twofold.kernels.logits import BLOCK
from twofold.kernels.row_ops import KernelRowOps

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

    def best(self, first: int, count: int) -> tuple[NDArray[np.int32], F32]:
        """Ids and values of ``count`` rows from ``first`` on; among equals the lowest id."""
        rows = slice(first, first + count)
        ids, best = [], []
        for values, candidates in zip(self._values[rows].tolist(), self._ids[rows].tolist(), strict=True):
            largest = max(values)
            part = values.index(largest)
            best.append(largest)
            ids.append(candidates[part] + part * self._width)
        return np.array(ids, np.int32), np.array(best, np.float32)


class StepRowOps(KernelRowOps):
    """Operations over rows of logits for one model: what its step has found already is not looked for again."""

    def __init__(self, compiler: Compiler, logits: F32, best: StepArgmax) -> None:
        super().__init__(compiler)
        self._begin = int(logits.__array_interface__["data"][0])
        self._stride = logits.strides[0]
        self._rows, self._vocab = logits.shape
        self._best = best

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """[rows, vocab] → ids [rows] and values [rows] of the largest logits; among equals the lowest id."""
        row, rest = divmod(int(logits.__array_interface__["data"][0]) - self._begin, self._stride)
        ours = not rest and 0 <= row < self._rows and logits.shape[1] == self._vocab
        if ours and logits.strides[0] == self._stride:
            return self._best.best(row, len(logits))
        return super().argmax(logits)
