"""What the time of a step is linear in, on one machine for one model: a backend says it (``Backend.step_basis``)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from twofold.core.model import ExpertFFN, ModelSpec


@dataclass(frozen=True, slots=True)
class StepBasis:
    """The features of a step, and the weights of a step-time model before the first step.

        seconds = fixed + a · rows + b · min(rows, knee) + c · logit rows + d · attended + e · read [+ f · experts]

    ``fixed`` is the cost of every step, such as reading the weights once for any number of rows. A kernel works on
    tiles of rows, and the rows of a step that does not fill many tiles cost more: hence the ``knee``. Of ``prior``, the
    first six weights, only the ratios matter. ``experts`` are (layers, E, k) for each kind of layer of which k of E
    experts compute a row: n rows of independent choices read E · (1 − (1 − k/E)ⁿ) of them. The
    defaults are for machines of which nothing is known.

    Raises ValueError for values that are no basis, since one may come from another machine.
    """

    knee: int = 1
    prior: tuple[float, float, float, float, float, float] = (1e-2, 1e-4, 1e-4, 1e-4, 1e-7, 1e-7)
    experts: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        whole = all(layers > 0 and 0 < active <= count for layers, count, active in self.experts)
        if not (whole and self.knee > 0 and all(0 < weight < math.inf for weight in self.prior)):
            raise ValueError("no basis of step times")

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights before the first step: reading all experts takes as long as everything else of a small step."""
        stored = sum(layers * count for layers, count, _ in self.experts)
        return (*self.prior, self.prior[0] / stored) if stored else self.prior

    def features(self, rows: int, logit_rows: int, attended: int, read: int) -> tuple[float, ...]:
        """The features of a step of this shape (``StepShape``)."""
        known = 1.0, float(rows), float(min(rows, self.knee)), float(logit_rows), float(attended), float(read)
        return (*known, self.distinct(rows)) if self.experts else known

    def distinct(self, rows: int) -> float:
        """Experts of all layers that so many rows read."""
        return sum(layers * count * (1 - (1 - active / count) ** rows) for layers, count, active in self.experts)


PLAIN: Final = StepBasis()
"""For machines of which nothing is known."""


def experts_of(spec: ModelSpec) -> tuple[tuple[int, int, int], ...]:
    """``StepBasis.experts`` of a model."""
    kinds = Counter[tuple[int, int]]()
    for length, layer in spec.runs:
        if isinstance(layer.ffn, ExpertFFN):
            kinds[layer.ffn.count, layer.ffn.active] += length
    return tuple((layers, *kind) for kind, layers in kinds.items())
