"""The operations on rows of logits that sampling needs, by kernels, for NumPy arrays.

Implements ``twofold.backends.sampling.base.RowOps``. An object keeps the records that its kernels read, so it belongs
to one thread. Arrays are float32, contiguous, of at most 2³¹ − 1 logits a row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels import logits as kernels
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.kernels.logits import BLOCK, LANES

F32 = NDArray[np.float32]

LEAST_TEMPERATURE: Final = 1e-30
"""Colder than this, 1 / temperature is no float32; the draw is the argmax long before."""


class _RowCall:
    """A kernel and the record of its arguments, reused by every call."""

    def __init__(self, compiler: Compiler, name: str, make: Callable[[], Kernel], fields: tuple[str, ...]) -> None:
        self._compiler = compiler  # owns the machine code
        self._function = as_function(compiler.named(name, make), 5)
        self._args = np.zeros(len(fields), np.int64)
        self._at = self._args.ctypes.data

    def __call__(self, units: int, *values: int) -> None:
        self._args[:] = values
        self._function(self._at, 0, 0, units, 0)


class KernelRowOps:
    """RowOps on the kernels of one instruction set."""

    def __init__(self, compiler: Compiler) -> None:
        self._argmax = _RowCall(compiler, "argmax", kernels.argmax_kernel, kernels.ARGMAX_FIELDS)
        self._log_sum_exp = _RowCall(compiler, "log_sum_exp", kernels.log_sum_exp_kernel, kernels.LOG_SUM_EXP_FIELDS)
        self._group_maxima = _RowCall(
            compiler, "group_maxima", kernels.group_maxima_kernel, kernels.GROUP_MAXIMA_FIELDS
        )
        self._at_least = _RowCall(compiler, "at_least", kernels.at_least_kernel, kernels.AT_LEAST_FIELDS)
        self._weight_sums = _RowCall(compiler, "weight_sums", kernels.weight_sums_kernel, kernels.WEIGHT_FIELDS)
        self._weights = _RowCall(compiler, "weights", kernels.weights_kernel, kernels.WEIGHT_FIELDS)
        self._mask = _RowCall(compiler, "mask", kernels.mask_kernel, kernels.MASK_FIELDS)

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """[rows, vocab] → ids [rows] and values [rows] of the largest logits; among equals the lowest id."""
        rows, vocab = logits.shape
        ids, values = np.empty(rows, np.int32), np.empty(rows, np.float32)
        self._argmax(rows, _at(logits), logits.strides[0], vocab, _at(ids), _at(values), 4)
        return ids, values

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        """[rows, vocab] → ln Σ exp(logit) [rows]."""
        rows, vocab = logits.shape
        parts = np.empty((2, rows), np.float32)
        self._log_sum_exp(rows, _at(logits), logits.strides[0], vocab, _at(parts), _at(parts) + rows * 4)
        sums: NDArray[np.float64] = parts[0].astype(np.float64) + parts[1]
        return sums

    def top(self, row: F32, count: int) -> tuple[NDArray[np.int32], F32]:
        """[vocab] → ids and values of the ``count`` largest logits, descending; among equals the lower id first.

        The smallest of the ``count`` largest group maxima is reached by ``count`` logits at least, so whatever is
        wanted reaches it too; few others do.
        """
        ids = self._reaching(row, self._bound(row, count))
        values = row[ids]
        order = np.lexsort((ids, -values))[:count]
        return ids[order], values[order]

    def _bound(self, row: F32, count: int) -> float:
        """A number that at least ``count`` logits reach. Where there are too few groups it is the last of them."""
        groups = np.empty(_blocks(len(row)) * LANES, np.float32)
        if count <= len(groups):
            self._group_maxima(1, _at(row), 0, len(row), _at(groups))
        else:
            groups = row
        place = max(0, len(groups) - count)
        return float(np.partition(groups, place)[place])

    def _reaching(self, row: F32, bound: float) -> NDArray[np.int32]:
        ids, found = np.empty(len(row), np.int32), np.zeros(1, np.int64)
        self._at_least(1, _at(row), len(row), _bits(bound), _at(ids), _at(found))
        return ids[: found[0]]

    def weight_sum(self, row: F32, maximum: float, temperature: float) -> float:
        """[vocab] → Σ exp((logit − maximum) / temperature)."""
        return float(self._running_sums(row, maximum, temperature)[-1])

    def draw(self, row: F32, maximum: float, temperature: float, uniform: float) -> int:
        """[vocab] → the first id, in ascending order, where the running weight sum exceeds uniform · total.

        Weights are exp((logit − maximum) / temperature); ``uniform`` is in [0, 1). An id of weight 0 is never drawn.
        """
        ends = self._running_sums(row, maximum, temperature)
        last = int(ends.searchsorted(ends[-1]))
        target = uniform * ends[-1]
        block = min(int(ends.searchsorted(target, side="right")), last)
        before = ends[block - 1] if block else 0.0
        weights = self._block_weights(row, block, maximum, temperature)
        place = int(weights.cumsum(dtype=np.float64).searchsorted(target - before, side="right"))
        if place == len(weights):  # the float32 sum of the block was a little more than its weights
            place = int(np.flatnonzero(weights)[-1])
        return block * BLOCK + place

    def mask(self, row: F32, words: NDArray[np.uint32], out: F32) -> None:
        """[vocab] → ``out`` [vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t has bit t % 32 of word t // 32; tokens past the last word are not allowed. ``out`` may be ``row``.
        """
        covered = min(len(row), 32 * len(words))
        self._mask(1, _at(row), _at(words), covered, _at(out))
        out[covered:] = -np.inf

    def _running_sums(self, row: F32, maximum: float, temperature: float) -> NDArray[np.float64]:
        """The sum of all weights up to the end of each block: float64, in ascending order."""
        sums = np.empty(_blocks(len(row)), np.float32)
        self._weight_sums(1, _at(row), len(row), _bits(maximum), _inverse(temperature), _at(sums))
        return sums.cumsum(dtype=np.float64)

    def _block_weights(self, row: F32, block: int, maximum: float, temperature: float) -> F32:
        inside = row[block * BLOCK : (block + 1) * BLOCK]
        weights = np.empty(BLOCK, np.float32)
        self._weights(1, _at(inside), len(inside), _bits(maximum), _inverse(temperature), _at(weights))
        return weights[: len(inside)]


def _at(array: F32 | NDArray[np.int32] | NDArray[np.int64] | NDArray[np.uint32]) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _inverse(temperature: float) -> int:
    return _bits(1.0 / max(temperature, LEAST_TEMPERATURE))


def _blocks(count: int) -> int:
    return -(-count // BLOCK)
