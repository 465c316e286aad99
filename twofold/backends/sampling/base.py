"""What sampling asks of whole rows of logits. NumPy answers it everywhere, kernels answer it fast.

Every answer depends on the given row alone, never on how many rows came together, and sums are taken in an order that
is fixed by the vocabulary size: the draw is then the same in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.core.params import SamplingParams

F32 = NDArray[np.float32]
Argmax: TypeAlias = Callable[[F32, Sequence[int]], tuple[NDArray[np.int32], F32]]
"""(logits [rows, vocab], ascending rows) → ids and values of the largest logits of these rows; among equals the lowest
id. A backend whose forward pass has found them gives this to its sampler."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Everything that a sample depends on beside the logits.

    ``position`` is the index in the sequence that the sampled token will have. ``prompt`` and ``answer`` are the tokens
    before it, empty unless penalties need them. ``suppressed`` tokens cannot be sampled, nor those whose bit is 0 in
    ``mask`` (as ``TokenConstraint.mask``; None rules nothing out). ``candidates`` asks for that many most likely tokens
    instead of a sample, for beam search; penalties, bias and filters do not apply to them.
    ``plain`` says that nothing but the temperature applies, so that such requests are sampled together.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    suppressed: Sequence[int] = ()
    mask: bytes | memoryview | None = None
    candidates: int = 0
    plain: bool = False


GREEDY: Final = SampleRequest(SamplingParams(temperature=0), 0, 0)
"""What all requests for the largest of the logits as they are may share: a sampler knows it by identity."""


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

    def draw(
        self, logits: F32, at: Sequence[int], maxima: F32, temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> NDArray[np.int64]:
        """For each of the rows ``at`` of [rows, vocab] the first id, in ascending order, where the running weight sum
        exceeds uniform · total.

        Weights are exp((logit − maximum) / temperature); uniforms are in [0, 1). An id of weight 0 is never drawn.
        """
        ...

    def mask(self, row: F32, words: NDArray[np.uint32], out: F32) -> None:
        """[vocab] → ``out`` [vocab]: the logit of each token whose bit is set, −inf for the others.

        Token t has bit t % 32 of word t // 32; tokens past the last word are not allowed. ``out`` may be ``row``.
        """
        ...
