"""The operations on rows of logits that sampling is made of. NumPy implements them for any machine, kernels for speed.

Each result depends on its own row alone, never on the number of rows, and sums are taken in an order that is fixed by
the vocabulary size: a sample is the same in any batch.
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
MIN_TEMPERATURE: Final = 1e-30
"""Lower temperatures count as this one: their reciprocals exceed float32, and the sample is the argmax long before."""
Argmax: TypeAlias = Callable[[F32, Sequence[int]], tuple[NDArray[np.int32], F32]]
"""(logits [rows, vocab], ascending rows) → ids and values of the largest logits of these rows; among equals the lowest
id. A backend whose forward pass has found them gives this to its sampler."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Everything that a sample depends on beside the logits.

    position     index in the sequence that the sampled token will have
    prompt       tokens of the prompt, empty unless penalties need them
    answer       tokens generated before ``position``, empty unless penalties need them
    suppressed   tokens that cannot be sampled
    mask         as ``TokenConstraint.mask``: tokens whose bit is 0 cannot be sampled; None: no mask
    candidates   for beam search: the number of most likely tokens to return instead of a sample; penalties, bias and
                 filters do not apply to them
    """

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
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

    def draw(self, logits: F32, at: I64, maxima: F32, temperatures: F64, uniforms: F64) -> I64:
        """For each row the first id, in ascending order, where the running weight sum exceeds uniform · total.

        Weights are exp((logit − maximum) / temperature); uniforms are in [0, 1). An id of weight 0 is never drawn.
        """
        ...

    def mask(self, logits: F32, at: I64, words: NDArray[np.uint32]) -> F32:
        """A copy of the rows, [len(at), vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t of row i has bit t % 32 of ``words[i, t // 32]``; tokens past the last word are not allowed.
        """
        ...
