"""A model's step as a few coefficients, for those who count millions of steps: simulators and planners.

    FLOPs       row · rows + logit_row · logit rows + Σ_windows position · attended positions
    weights     fixed + experts picked by so many rows, and head where any logits are wanted
    K and V     Σ_windows token · (read + written positions)

Equal to ``count.step`` for grouped attention. Latent attention is taken in its absorbed form, as decoding does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.cost.count.setting import PLAIN, Setting
from twofold.cost.count.step import Span, step
from twofold.cost.shapes.model import Experts, Grouped, ModelShape


@dataclass(frozen=True, slots=True)
class WindowCost:
    """Of all layers with one window: FLOPs a row and position that it attends to, bytes of a token's K and V."""

    position_flops: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """Of all layers with such experts: bytes of all of them on one device, and how many of how many a row picks."""

    nbytes: float
    count: int
    active: int

    def picked_bytes(self, rows: int) -> float:
        """Bytes of the experts that at least one of the rows is expected to pick."""
        return float(self.nbytes * (1 - (1 - self.active / self.count) ** rows))


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients of a device's steps: ``fixed_bytes`` of weights in each, ``head_bytes`` where logits are wanted.

    ``windows`` are by window, None for layers that see everything.
    """

    row_flops: int
    logit_row_flops: int
    fixed_bytes: float
    head_bytes: float
    experts: tuple[ExpertCost, ...]
    windows: Mapping[int | None, WindowCost]
    all_reduce_row_bytes: int
    all_reduces: int

    @classmethod
    def of(cls, shape: ModelShape, how: Setting = PLAIN) -> StepCost:
        """Counted from two small steps, one with logits and one without."""
        silent, loud = step(shape, [Span(1, 0, 0)], how=how), step(shape, [Span(1)], how=how)
        experts = _experts(shape, how)
        matrices = silent.flops - silent.named("attention").flops
        return cls(
            row_flops=matrices,
            logit_row_flops=loud.flops - silent.flops,
            fixed_bytes=silent.weight_bytes - sum(each.picked_bytes(1) for each in experts),
            head_bytes=loud.weight_bytes - silent.weight_bytes,
            experts=experts,
            windows=_windows(shape, how),
            all_reduce_row_bytes=silent.all_reduce_bytes,
            all_reduces=silent.all_reduces,
        )

    def weight_bytes(self, rows: int, *, logits: bool = True) -> float:
        """Bytes of weights that a step of so many rows reads."""
        picked = sum(each.picked_bytes(rows) for each in self.experts)
        return self.fixed_bytes + picked + (self.head_bytes if logits else 0)

    def flops(self, rows: int, logit_rows: int, attended: Mapping[int | None, int]) -> int:
        """FLOPs of a step; ``attended`` positions by window, summed over its rows."""
        attention = sum(cost.position_flops * attended[window] for window, cost in self.windows.items())
        return self.row_flops * rows + self.logit_row_flops * logit_rows + attention

    def kv_bytes(self, positions: Mapping[int | None, int]) -> int:
        """Bytes of K and V of so many positions, by window."""
        return sum(cost.token_bytes * positions[window] for window, cost in self.windows.items())


def _windows(shape: ModelShape, how: Setting) -> Mapping[int | None, WindowCost]:
    found: dict[int | None, WindowCost] = {}
    for count, layer in shape.layers:
        attention = layer.attention
        if isinstance(attention, Grouped):
            flops = 4 * (attention.query_size // how.tp)
        else:
            flops = 2 * (attention.heads // how.tp) * (2 * attention.kv_rank + attention.rope_dim)
        before = found.get(attention.window, WindowCost(0, 0))
        found[attention.window] = WindowCost(
            before.position_flops + count * flops, before.token_bytes + count * how.token_bytes(attention)
        )
    return found


def _experts(shape: ModelShape, how: Setting) -> tuple[ExpertCost, ...]:
    found: dict[tuple[int, int], float] = {}
    for count, layer in shape.layers:
        if isinstance(layer.ffn, Experts):
            key = (layer.ffn.count, layer.ffn.active)
            found[key] = found.get(key, 0.0) + count * how.expert_bytes(layer, shape.hidden)
    return tuple(ExpertCost(size, *key) for key, size in found.items())
