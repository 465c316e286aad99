"""What sampling asks of whole rows of logits. NumPy answers it everywhere, kernels answer it fast.

Every answer depends on the given row alone, never on how many rows came together, and sums are taken in an order that
is fixed by the vocabulary size: the draw is then the same in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Argmax: TypeAlias = Callable[[F32, Sequence[int]], tuple[NDArray[np.int32], F32]]
"""(logits [rows, vocab], ascending rows) → ids and values of the largest logits of these rows; among equals the lowest
id. A backend whose forward pass has found them gives this to its sampler."""


class RowOps(Protocol):
    """Operations over rows of logits: float32, without NaN, of a finite maximum.

    Each row is contiguous. Rows may lie apart: a model may pad them, and ``strides[0]`` says how far the next one is.
    """

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """[rows, vocab] → ids [rows] and values [rows] of the largest logits; among equals the lowest id."""
        ...

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        """[rows, vocab] → ln Σ exp(logit) [rows]."""
        ...

    def top(self, row: F32, count: int) -> tuple[NDArray[np.int32], F32]:
        """[vocab] → ids and values of the ``count`` largest logits, descending; among equals the lower id first."""
        ...

    def weight_sum(self, row: F32, maximum: float, temperature: float) -> float:
        """[vocab] → Σ exp((logit − maximum) / temperature)."""
        ...

    def draw(self, row: F32, maximum: float, temperature: float, uniform: float) -> int:
        """[vocab] → the first id, in ascending order, where the running weight sum exceeds uniform · total.

        Weights are exp((logit − maximum) / temperature); ``uniform`` is in [0, 1). An id of weight 0 is never drawn.
        """
        ...

    def mask(self, row: F32, words: NDArray[np.uint32], out: F32) -> None:
        """[vocab] → ``out`` [vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t has bit t % 32 of word t // 32; tokens past the last word are not allowed. ``out`` may be ``row``.
        """
        ...
