"""The operations on rows of logits that sampling needs, by kernels, for NumPy arrays.

Implements ``twofold.backends.sampling.base.RowOps``. An object keeps the records that its kernels read, so it belongs
to one thread. Arrays are float32, contiguous, of at most 2³¹ − 1 logits a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels import logits as kernels
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.kernels.logits import BLOCK, LANES

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

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

        The smallest of a row's ``count`` largest group maxima is reached by ``count`` of its logits at least, so all
        results reach it; few others do.
        """
        rows, vocab = _pointers(logits, at), logits.shape[1]
        bounds = self._bounds(logits, at, rows, count)
        reaching, found = np.empty((len(at), vocab), np.int32), np.empty(len(at), np.int64)
        self._at_least(len(at), _at(rows), vocab, _at(bounds), _at(reaching), 4 * vocab, _at(found))
        inside = np.arange(found.max()) < found[:, None]
        ids = np.where(inside, reaching[:, : inside.shape[1]], 0)
        values = np.where(inside, logits[at[:, None], ids], np.float32(-np.inf))
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]  # stable: among equals the lower id is first
        every = np.arange(len(at))[:, None]
        return ids[every, order], values[every, order]

    def _bounds(self, logits: F32, at: I64, rows: I64, count: int) -> F32:
        """A number for each row that at least ``count`` of its logits reach; the last of them if groups are few."""
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

    def draw(self, logits: F32, at: I64, maxima: F32, temperatures: F64, uniforms: F64) -> I64:
        """``RowOps.draw``."""
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
        # The float32 sum of a block may be a little more than its weights: then the last id of any weight is drawn.
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
        """The sum of all weights up to the end of each block: float64 [rows, blocks], in ascending order."""
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
