"""A model's step as a few coefficients, for those who count millions of steps: simulators and planners.

    FLOPs       row · rows + logit_row · logit rows + Σ_windows position · attended positions
    weights     fixed + experts picked by the rows, and the head if logits are computed
    K and V     Σ_windows token · (read + written positions)

Equal to ``count.step``. Coefficients of latent attention are those of its absorbed form, which decoding takes;
``expanded`` gives the difference for spans, such as prompts, that the expanded form computes at lower cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from twofold.core.model import (
    ExpertFFN,
    GroupedAttention,
    LatentAttention,
    ModelSpec,
    RecurrentAttention,
    read_positions,
    visible,
)
from twofold.core.values import Arithmetic
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows, step


@dataclass(frozen=True, slots=True)
class WindowCost:
    """Of all layers with one window: FLOPs a row and position that it attends to, bytes of a token's K and V."""

    position_flops: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class LatentCost:
    """The expanded form against the absorbed one, of all layers with latent attention in one window.

    saved_flops   fewer a pair of row and seen position
    again_flops   more a cached token, whose keys and values are made again, in ``arithmetic``
    """

    window: int | None
    saved_flops: int
    again_flops: int
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """Of all layers with such experts: bytes of all of them on one device, and how many of how many a row picks."""

    nbytes: float
    count: int
    active: int

    def picked_bytes(self, rows: float) -> float:
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
    latent: tuple[LatentCost, ...]
    all_reduce_row_bytes: int
    all_reduces: int
    state_bytes: int = 0

    @classmethod
    def of(cls, shape: ModelSpec, how: Setting = PLAIN) -> StepCost:
        """Counted from two small steps, one with logits and one without."""
        silent, loud = step(shape, [SequenceRows(1, 0, 0)], how=how), step(shape, [SequenceRows(1)], how=how)
        experts = _experts(shape, how)
        matrices = silent.flops - silent.named("attention").flops
        return cls(
            row_flops=matrices,
            logit_row_flops=loud.flops - silent.flops,
            fixed_bytes=silent.weight_bytes - sum(each.picked_bytes(1) for each in experts),
            head_bytes=loud.weight_bytes - silent.weight_bytes,
            experts=experts,
            windows=_windows(shape, how),
            latent=_latent(shape, how),
            all_reduce_row_bytes=silent.all_reduce_bytes,
            all_reduces=silent.all_reduces,
            state_bytes=sum(count * how.state_bytes(layer.attention) for count, layer in shape.runs),
        )

    def weight_bytes(self, rows: float = 1, *, logits: bool = True) -> float:
        """Returns the bytes of weights that a step of ``rows`` rows reads: a mean over different picks of experts."""
        picked = sum(each.picked_bytes(rows) for each in self.experts)
        return self.fixed_bytes + picked + (self.head_bytes if logits else 0)

    def flops(
        self, rows: int, logit_rows: int, attended: Mapping[int | None, int], spans: Iterable[SequenceRows] = ()
    ) -> int:
        """FLOPs of a step; ``attended`` positions by window, summed over its rows.

        ``spans`` are those that may be cheaper expanded; rows that decode never are.
        """
        attention = sum(cost.position_flops * attended[window] for window, cost in self.windows.items())
        changed = sum(again - saved for _, again, saved in self.expanded((1, span) for span in spans))
        return self.row_flops * rows + self.logit_row_flops * logit_rows + attention + changed

    def expanded(self, spans: Iterable[tuple[int, SequenceRows]]) -> Iterator[tuple[Arithmetic, int, int]]:
        """Yields for each kind of span that is cheaper expanded, given with its number: the arithmetic, the additional
        FLOPs of the matrices, and the FLOPs that attention saves."""
        if not self.latent:
            return
        for count, span in spans:
            for each in self.latent:
                saved = each.saved_flops * visible(span.cached, span.new, each.window)
                again = each.again_flops * span.cached
                if saved > again:
                    yield each.arithmetic, count * again, count * saved

    def read_bytes(self, spans: Sequence[tuple[int, SequenceRows]]) -> int:
        """Returns the bytes of K and V that the sequences read, and of the states that they read and write."""
        return self.kv_bytes(
            {window: sum(n * read_positions(s.cached, s.new, window) for n, s in spans) for window in self.windows}
        ) + 2 * self.state_bytes * sum(n for n, _ in spans)

    def kv_bytes(self, positions: Mapping[int | None, int]) -> int:
        """Returns the bytes of K and V of these positions, given by window."""
        return sum(cost.token_bytes * positions[window] for window, cost in self.windows.items())


def _windows(shape: ModelSpec, how: Setting) -> Mapping[int | None, WindowCost]:
    found: dict[int | None, WindowCost] = {}
    for count, layer in shape.runs:
        attention = layer.attention
        if isinstance(attention, RecurrentAttention):
            continue
        if isinstance(attention, GroupedAttention):
            flops = 4 * (attention.query_size // how.tp)
        else:
            flops = 2 * (attention.heads // how.tp) * (2 * attention.kv_rank + attention.rope_dim)
        before = found.get(attention.window, WindowCost(0, 0))
        found[attention.window] = WindowCost(
            before.position_flops + count * flops, before.token_bytes + count * how.token_bytes(attention)
        )
    return found


def _latent(shape: ModelSpec, how: Setting) -> tuple[LatentCost, ...]:
    found: dict[tuple[int | None, Arithmetic], tuple[int, int]] = {}
    for count, layer in shape.runs:
        attention = layer.attention
        if not isinstance(attention, LatentAttention):
            continue
        values, heads = attention.nope_dim + attention.v_dim, count * (attention.heads // how.tp)
        key = attention.window, layer.formats.of("k_b").arithmetic
        saved, again = found.get(key, (0, 0))
        found[key] = (
            saved + 2 * heads * (2 * attention.kv_rank - values),
            again + 2 * heads * attention.kv_rank * values,
        )
    return tuple(LatentCost(window, *flops, arithmetic) for (window, arithmetic), flops in found.items())


def _experts(shape: ModelSpec, how: Setting) -> tuple[ExpertCost, ...]:
    found: dict[tuple[int, int], float] = {}
    for count, layer in shape.runs:
        if isinstance(layer.ffn, ExpertFFN):
            key = (layer.ffn.count, layer.ffn.active)
            found[key] = found.get(key, 0.0) + count * how.expert_bytes(layer, shape.hidden_size)
    return tuple(ExpertCost(size, *key) for key, size in found.items())
