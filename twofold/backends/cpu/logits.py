"""Rows of logits on the CPU: the operations that sampling needs, and the argmax that a step's program computes.

Arrays are float32, contiguous, with at most 2³¹ − 1 logits a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels import logits as kernels
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.kernels.logits import BLOCK, LANES
from twofold.backends.sampling.base import F32, F64, I64, MIN_TEMPERATURE

PARTS: Final = 8
"""Parts of a row whose largest logits a step's program finds."""


class _RowCall:
    """A kernel, and the record of its arguments, which all calls share."""

    def __init__(self, compiler: Compiler, name: str) -> None:
        make, fields = kernels.LOGIT_KERNELS[name]
        self._compiler = compiler  # owns the machine code
        self._function = as_function(compiler.named(name, make), 5)
        self._args = np.zeros(len(fields), np.int64)
        self._at = self._args.ctypes.data

    def __call__(self, units: int, *values: int) -> None:
        self._args[:] = values
        self._function(self._at, 0, 0, units, 0)


class KernelRowOps:
    """``sampling.RowOps`` by kernels. It owns the records that its kernels read: one thread may use it."""

    def __init__(self, compiler: Compiler) -> None:
        self._argmax = _RowCall(compiler, "argmax")
        self._log_sum_exp = _RowCall(compiler, "log_sum_exp")
        self._group_maxima = _RowCall(compiler, "group_maxima")
        self._at_least = _RowCall(compiler, "at_least")
        self._weight_sums = _RowCall(compiler, "weight_sums")
        self._weights = _RowCall(compiler, "weights")
        self._mask = _RowCall(compiler, "mask")

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """``RowOps.argmax``."""
        rows, vocab = logits.shape
        ids, values = np.empty(rows, np.int32), np.empty(rows, np.float32)
        self._argmax(rows, _at(logits), logits.strides[0], vocab, _at(ids), _at(values), 4)
        return ids, values

    def log_sum_exp(self, logits: F32) -> F64:
        """``RowOps.log_sum_exp``."""
        rows, vocab = logits.shape
        parts = np.empty((2, rows), np.float32)
        self._log_sum_exp(rows, _at(logits), logits.strides[0], vocab, _at(parts), _at(parts) + rows * 4)
        sums: F64 = parts[0].astype(np.float64) + parts[1]
        return sums

    def top(self, logits: F32, at: I64, count: int) -> tuple[NDArray[np.int32], F32]:
        """``RowOps.top``.

        At least ``count`` logits of a row reach the smallest of its ``count`` largest group maxima, so all results
        reach it; few others do.
        """
        rows, vocab = _pointers(logits, at), logits.shape[1]
        bounds = self._bounds(logits, at, rows, count)
        reaching, found = np.empty((len(at), vocab), np.int32), np.empty(len(at), np.int64)
        self._at_least(len(at), _at(rows), vocab, _at(bounds), _at(reaching), 4 * vocab, _at(found))
        inside = np.arange(found.max()) < found[:, None]
        ids = np.where(inside, reaching[:, : inside.shape[1]], 0)
        values = np.where(inside, logits[at[:, None], ids], np.float32(-np.inf))
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]  # stable: among equals the lower id comes first
        every = np.arange(len(at))[:, None]
        return ids[every, order], values[every, order]

    def _bounds(self, logits: F32, at: I64, rows: I64, count: int) -> F32:
        """A bound for each row that ``count`` or more of its logits reach; with few groups, the last of the results."""
        blocks = _blocks(logits.shape[1])
        if count <= blocks * LANES:
            groups = np.empty((len(at), blocks * LANES), np.float32)
            self._group_maxima(len(at), _at(rows), logits.shape[1], _at(groups))
        else:
            groups = logits[at]
        place = groups.shape[1] - count
        bounds: F32 = np.ascontiguousarray(np.partition(groups, place, axis=1)[:, place])
        return bounds

    def weight_sums(self, logits: F32, at: I64, maxima: F32, temperatures: F64) -> F64:
        """``RowOps.weight_sums``."""
        sums = self._running_sums(_pointers(logits, at), logits.shape[1], maxima, _inverses(temperatures))
        return sums[:, -1]

    def sample(self, logits: F32, at: I64, maxima: F32, temperatures: F64, uniforms: F64) -> I64:
        """``RowOps.sample``."""
        rows = _pointers(logits, at)
        vocab, inverses, every = logits.shape[1], _inverses(temperatures), np.arange(len(rows))
        ends = self._running_sums(rows, vocab, maxima, inverses)
        targets = uniforms * ends[:, -1]
        last = np.count_nonzero(ends < ends[:, -1:], axis=1)
        blocks = np.minimum(np.count_nonzero(ends <= targets[:, None], axis=1), last)
        before = np.where(blocks > 0, ends[every, blocks - 1], 0.0)
        counts = np.minimum(vocab - blocks * BLOCK, BLOCK)
        weights = np.zeros((len(rows), BLOCK), np.float32)
        starts = rows + 4 * BLOCK * blocks
        self._weights(len(rows), _at(starts), _at(counts), _at(maxima), _at(inverses), _at(weights), 4 * BLOCK)
        sums = weights.cumsum(axis=1, dtype=np.float64)
        places = np.count_nonzero(sums <= (targets - before)[:, None], axis=1)
        # Rounding may make a block's float32 sum larger than its weights; then its last id with a weight is sampled.
        places = np.where(places < counts, places, BLOCK - 1 - (weights[:, ::-1] != 0).argmax(axis=1))
        ids: I64 = blocks * BLOCK + places
        return ids

    def mask(self, logits: F32, at: I64, words: NDArray[np.uint32]) -> F32:
        """``RowOps.mask``."""
        out = np.empty((len(at), logits.shape[1]), np.float32)
        covered = min(out.shape[1], 32 * words.shape[1])
        rows = _pointers(logits, at)
        self._mask(len(at), _at(rows), _at(words), words.strides[0], covered, _at(out), out.strides[0])
        out[:, covered:] = -np.inf
        return out

    def _running_sums(self, rows: I64, vocab: int, maxima: F32, inverses: F32) -> F64:
        """Sums of all weights up to the end of each block: float64 [rows, blocks]."""
        sums, counts = np.empty((len(rows), _blocks(vocab)), np.float32), np.full(len(rows), vocab, np.int64)
        self._weight_sums(len(rows), _at(rows), _at(counts), _at(maxima), _at(inverses), _at(sums), sums.strides[0])
        return sums.cumsum(axis=1, dtype=np.float64)


def _pointers(logits: F32, at: I64) -> I64:
    """The addresses of the rows ``at``."""
    rows: I64 = _at(logits) + logits.strides[0] * at
    return rows


def _at(array: F32 | I64 | NDArray[np.int32] | NDArray[np.uint32]) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _inverses(temperatures: F64) -> F32:
    """1 / temperature of each, rounded once."""
    return (1.0 / np.maximum(temperatures, MIN_TEMPERATURE)).astype(np.float32)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


class StepArgmax:
    """The largest logit of every row, found by the step's own program on all threads.

    With a vocabulary of 262,144 a row has a megabyte, half of it in another core's cache: one thread alone would take a
    noticeable part of a decode step. Each part of a row is one operation; NumPy picks the best of the parts.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        self._vocab = vocab
        self._width = -(-vocab // (PARTS * BLOCK)) * BLOCK
        parts = -(-vocab // self._width)
        self._ids = np.zeros((rows, parts), np.int32)
        self._values = np.zeros((rows, parts), np.float32)

    def arguments(self, logits: int, stride: int) -> list[dict[str, int]]:
        """The fields of one argmax kernel for each part; units are logit rows, which begin at ``logits``."""
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
