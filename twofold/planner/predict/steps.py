"""The demand of any step of one model on one machine, from a few coefficients: for those who predict many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twofold.core.model import ModelSpec, read_positions, visible
from twofold.planner.count.linear import StepCost
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows, step
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.demand import Demand, link_seconds, peak


@dataclass(frozen=True, slots=True)
class StepPredictor:
    """Steps of a model on a machine. ``row_s`` and ``logit_row_s`` are seconds of a row's matrices at peak;
    ``attention_peak`` are the FLOPs a second of its attention.

    Equal to ``Demand.of`` the same step.
    """

    cost: StepCost
    machine: Machine
    how: Setting
    layers: int
    row_s: float
    logit_row_s: float
    row_link_s: float
    attention_peak: float
    bandwidth: float

    @classmethod
    def of(cls, shape: ModelSpec, machine: Machine, how: Setting = PLAIN) -> StepPredictor:
        """Raises ParameterError where the devices cannot share the model, or have no link."""
        silent, loud = (
            Demand.of(step(shape, [span], how=how), machine, layers=len(shape.layers), sequences=1, how=how)
            for span in (SequenceRows(1, 0, 0), SequenceRows(1, 0, 1))
        )
        cost = StepCost.of(shape, how)
        link_s = link_seconds(cost.all_reduce_row_bytes, machine, how.tp)
        attention_peak = float(peak(machine, how.activations.arithmetic))
        row_s, logit_row_s, bandwidth = silent.matrices, loud.matrices - silent.matrices, float(machine.bandwidth)
        return cls(cost, machine, how, len(shape.layers), row_s, logit_row_s, link_s, attention_peak, bandwidth)

    def demand(self, spans: Iterable[tuple[int, SequenceRows]]) -> Demand:
        """Of one step: so many equal sequences of each kind."""
        spans = tuple(spans)
        windows = self.cost.windows
        return self.summed(
            sum(count * span.new for count, span in spans),
            sum(count * span.logits for count, span in spans),
            sum(count for count, _ in spans),
            [sum(n * visible(s.cached, s.new, window) for n, s in spans) for window in windows],
            [sum(n * read_positions(s.cached, s.new, window) for n, s in spans) for window in windows],
            spans,
        )

    def summed(
        self,
        rows: int,
        logit_rows: int,
        sequences: int,
        attended: Sequence[int],
        read: Sequence[int],
        prompts: Iterable[tuple[int, SequenceRows]] = (),
    ) -> Demand:
        """Of one step given as sums. By window, in the order of ``cost.windows``: positions that rows see, and those
        that sequences read, each once a step. ``prompts``: those of its spans that latent attention may expand."""
        attention = moved = 0
        matrices = self.row_s * rows + self.logit_row_s * logit_rows
        for each, pairs, positions in zip(self.cost.windows.values(), attended, read, strict=True):
            attention += each.position_flops * pairs
            moved += each.token_bytes * (positions + rows)
        for arithmetic, again, saved in self.cost.expanded(prompts):
            attention -= saved
            matrices += again / peak(self.machine, arithmetic)
        return Demand(
            weights=self.cost.weight_bytes(rows, logits=logit_rows > 0) / self.bandwidth,
            matrices=matrices,
            kv=moved / self.bandwidth,
            attention=attention / self.attention_peak,
            messages=self.row_link_s * rows,
            all_reduces=self.cost.all_reduces,
            layers=self.layers,
            sequences=sequences,
        )

    def decode(self, batch: int, context: int) -> Demand:
        """Of a step in which ``batch`` sequences get a token; a context counts the row itself."""
        return self.demand([(batch, SequenceRows(1, context - 1))])

    def prefill(self, new: int, cached: int = 0, batch: int = 1) -> Demand:
        """Of ``batch`` whole prompts of ``new`` tokens after ``cached`` ones in one step."""
        return self.demand([(batch, SequenceRows(new, cached))])
