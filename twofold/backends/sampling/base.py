"""The operations on rows of logits that sampling consists of, and their implementation in NumPy for any machine.

Each result depends on its own row alone, and the vocabulary size alone decides the order of sums: a sample is the same
in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.core.params import SamplingParams

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
RUN: Final = 512
"""Ids whose weights are summed first; then these sums are accumulated."""
GROUPS_PER_TOP: Final = 8
"""Groups per wanted value in the search for the largest values: with more groups, fewer candidates remain."""
MIN_TEMPERATURE: Final = 1e-30
"""Lower temperatures count as this one: their reciprocals exceed float32, and the sample is the argmax long before."""
Argmax: TypeAlias = Callable[[F32, Sequence[int]], tuple[NDArray[np.int32], F32]]
"""(logits [rows, vocab], ascending rows) → ids and values of the largest logits of these rows; among equals the lowest
id. For a backend whose forward pass has found them."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Everything that a sample depends on, except the logits.

    position     index in the sequence that the sampled token will have
    prompt       tokens of the prompt, empty unless penalties need them
    completion   tokens generated before ``position``, empty unless penalties need them
    suppressed   tokens that cannot be sampled
    mask         as ``TokenConstraint.mask``: tokens whose bit is 0 cannot be sampled; None: no mask
    candidates   for beam search: the number of most likely tokens to return instead of a sample; penalties, bias and
                 filters do not apply to them
    """

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = ()
    completion: Sequence[int] = ()
    suppressed: Sequence[int] = ()
    mask: bytes | memoryview | None = None
    candidates: int = 0


GREEDY: Final = SampleRequest(SamplingParams(temperature=0), 0, 0)
"""Shared by all requests for the largest of the model's own logits; a sampler recognises it by identity."""


class RowOps(Protocol):
    """Operations over rows of logits [rows, vocab]: float32, without NaN, of a finite maximum.

    Each row is contiguous. Rows may lie apart: a model may pad them, and ``strides[0]`` is the distance between them.
    ``at`` selects rows; maxima (float32), temperatures (float64) and uniforms (float64) belong to the selected rows.
    """

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """Ids [rows] and values [rows] of the largest logits of all rows; among equals the lowest id."""
        ...

    def log_sum_exp(self, logits: F32) -> F64:
        """ln Σ exp(logit) of all rows: [rows]."""
        ...

    def top(self, logits: F32, at: I64, count: int) -> tuple[NDArray[np.int32], F32]:
        """Ids and values of the ``count`` largest logits of each row, descending; among equals the lower id first.

        Both [len(at), count]; ``count`` is at most the vocabulary size.
        """
        ...

    def weight_sums(self, logits: F32, at: I64, maxima: F32, temperatures: F64) -> F64:
        """Σ exp((logit − maximum) / temperature) of each row: [len(at)]."""
        ...

    def sample(self, logits: F32, at: I64, maxima: F32, temperatures: F64, uniforms: F64) -> I64:
        """For each row the first id, in ascending order, where the running weight sum exceeds uniform · total.

        Weights are exp((logit − maximum) / temperature); uniforms are in [0, 1). An id of weight 0 is never sampled.
        """
        ...

    def mask(self, logits: F32, at: I64, words: NDArray[np.uint32]) -> F32:
        """A copy of the rows, [len(at), vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t of row i has bit t % 32 of ``words[i, t // 32]``; tokens past the last word are not allowed.
        """
        ...


class NumpyRows:
    """``RowOps`` in NumPy: weights in float32, sums in float64."""

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        ids = logits.argmax(axis=1)
        return ids.astype(np.int32), logits[np.arange(len(ids)), ids]

    def log_sum_exp(self, logits: F32) -> F64:
        maxima = logits.max(axis=1)
        sums = self.weight_sums(logits, np.arange(len(logits)), maxima, np.ones(len(logits)))
        logs: F64 = maxima + np.log(sums)
        return logs

    def top(self, logits: F32, at: I64, count: int) -> tuple[NDArray[np.int32], F32]:
        ids = np.stack([_top(row, count) for row in logits[at]])
        return ids, logits[at[:, None], ids]

    def weight_sums(self, logits: F32, at: I64, maxima: F32, temperatures: F64) -> F64:
        each = zip(logits[at], maxima.tolist(), temperatures.tolist(), strict=True)
        return np.array([_run_sums(_weights(*one)).cumsum()[-1] for one in each])

    def sample(self, logits: F32, at: I64, maxima: F32, temperatures: F64, uniforms: F64) -> I64:
        each = zip(logits[at], maxima.tolist(), temperatures.tolist(), uniforms.tolist(), strict=True)
        return np.array([self._sample(*one) for one in each], np.int64)

    def _sample(self, row: F32, maximum: float, temperature: float, uniform: float) -> int:
        weights = _weights(row, maximum, temperature)
        ends = _run_sums(weights).cumsum()
        target = uniform * ends[-1]
        run = min(int(ends.searchsorted(target, side="right")), len(ends) - 1)
        before = float(ends[run - 1]) if run else 0.0
        inside = weights[run * RUN : (run + 1) * RUN]
        found = int(inside.cumsum(dtype=np.float64).searchsorted(target - before, side="right"))
        if found < len(inside):
            return run * RUN + found
        return int(np.flatnonzero(weights[: (run + 1) * RUN])[-1])  # rounding moved the target past the run's end

    def mask(self, logits: F32, at: I64, words: NDArray[np.uint32]) -> F32:
        bits = np.unpackbits(words.astype("<u4", copy=False).view(np.uint8), axis=1, bitorder="little")
        bits = bits[:, : logits.shape[1]]
        out = np.full((len(at), logits.shape[1]), -np.inf, np.float32)
        out[:, : bits.shape[1]][bits > 0] = logits[at, : bits.shape[1]][bits > 0]
        return out


def _top(row: F32, count: int) -> NDArray[np.int32]:
    """Ids of the ``count`` largest values, descending; among equals the lower id first."""
    enough = _at_least_top(row, count)
    keys = _descending_keys(row[enough], enough)
    keys.sort()
    return keys[:count].astype(np.uint32).view(np.int32)


def _weights(row: F32, maximum: float, temperature: float) -> F32:
    """exp((row − maximum) / temperature); 0 below float32's smallest number."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = row - np.float32(maximum)
        if temperature != 1:
            scaled /= np.float32(max(temperature, MIN_TEMPERATURE))
        np.exp(scaled, out=scaled)
    return scaled


def _run_sums(weights: F32) -> F64:
    """Sums of RUN weights each; the last of the rest."""
    whole = len(weights) // RUN * RUN
    sums: F64 = weights[:whole].reshape(-1, RUN).sum(axis=1, dtype=np.float64)
    if whole == len(weights):
        return sums
    return np.append(sums, weights[whole:].sum(dtype=np.float64))


def _at_least_top(row: F32, count: int) -> NDArray[np.intp]:
    """Ascending ids of a set that contains the ``count`` largest values and everything equal to the last of them.

    The values are divided into groups. Each of the ``count`` largest group maxima is a value of the row, so the
    smallest of these maxima is no larger than the wanted values.
    """
    groups = count * GROUPS_PER_TOP
    depth = len(row) // groups
    if depth < 2:
        return np.arange(len(row))
    maxima = row[: depth * groups].reshape(depth, groups).max(axis=0)
    bound = np.partition(maxima, groups - count)[groups - count]
    return np.flatnonzero(row >= bound)


def _descending_keys(values: F32, ids: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Integers that order by descending value and, among equal values, by ascending id: they are fast to sort.

    The bits of float32 numbers order like integers after the sign bit of positive numbers and all bits of negative
    ones are flipped. The low half of a key is the id.
    """
    bits = (values + np.float32(0)).view(np.uint32)  # −0 becomes +0: they are equal values
    ascending = bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    return (~ascending).astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
