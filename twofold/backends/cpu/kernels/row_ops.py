"""The operations on rows of logits that sampling needs, by kernels, for NumPy arrays.

Implements ``twofold.backends.sampling.base.RowOps``. An object keeps the records that its kernels read, so it belongs
to one thread. Arrays are float32, contiguous, of at most 2³¹ − 1 logits a row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels import logits as kernels
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.kernels.logits import BLOCK, LANES

F32 = NDArray[np.float32]

MIN_TEMPERATURE: Final = 1e-30
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
        rows = np.array([_at(row)], np.int64)
        return float(
            self._running_sums(rows, len(row), np.array([maximum], np.float32), _inverses([temperature]))[0, -1]
        )

    def draw(
        self, logits: F32, at: Sequence[int], maxima: F32, temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> NDArray[np.int64]:
        """``RowOps.draw``."""
        rows = _at(logits) + logits.strides[0] * np.asarray(at, np.int64)
        vocab, inverses, every = logits.shape[1], _inverses(temperatures), np.arange(len(rows))
        maxima = np.ascontiguousarray(maxima, np.float32)
        ends = self._running_sums(rows, vocab, maxima, inverses)
        targets = np.asarray(uniforms) * ends[:, -1]
        last = np.count_nonzero(ends < ends[:, -1:], axis=1)
        blocks = np.minimum(np.count_nonzero(ends <= targets[:, None], axis=1), last)
        before = np.where(blocks > 0, ends[every, blocks - 1], 0.0)
        counts = np.minimum(vocab - blocks * BLOCK, BLOCK)
        weights = np.zeros((len(rows), BLOCK), np.float32)
        starts = rows + 4 * BLOCK * blocks
        self._weights(len(rows), _at(starts), _at(counts), _at(maxima), _at(inverses), _at(weights), 4 * BLOCK)
        sums = weights.cumsum(axis=1, dtype=np.float64)
        places = np.count_nonzero(sums <= (targets - before)[:, None], axis=1)
        # The float32 sum of a block may be a little more than its weights: then the last id of any weight is drawn.
        places = np.where(places < counts, places, BLOCK - 1 - (weights[:, ::-1] != 0).argmax(axis=1))
        ids: NDArray[np.int64] = blocks * BLOCK + places
        return ids

    def mask(self, row: F32, words: NDArray[np.uint32], out: F32) -> None:
        """[vocab] → ``out`` [vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t has bit t % 32 of word t // 32; tokens past the last word are not allowed. ``out`` may be ``row``.
        """
        covered = min(len(row), 32 * len(words))
        self._mask(1, _at(row), _at(words), covered, _at(out))
        out[covered:] = -np.inf

    def _running_sums(self, rows: NDArray[np.int64], vocab: int, maxima: F32, inverses: F32) -> NDArray[np.float64]:
        """The sum of all weights up to the end of each block: float64 [rows, blocks], in ascending order."""
        sums, counts = np.empty((len(rows), _blocks(vocab)), np.float32), np.full(len(rows), vocab, np.int64)
        self._weight_sums(len(rows), _at(rows), _at(counts), _at(maxima), _at(inverses), _at(sums), sums.strides[0])
        return sums.cumsum(axis=1, dtype=np.float64)


def _at(array: F32 | NDArray[np.int32] | NDArray[np.int64] | NDArray[np.uint32]) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _inverses(temperatures: Sequence[float]) -> F32:
    """1 / temperature of each, rounded once."""
    return (1.0 / np.maximum(np.asarray(temperatures, np.float64), MIN_TEMPERATURE)).astype(np.float32)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)
