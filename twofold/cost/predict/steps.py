"""The demand of any step of one model on one machine, from a few coefficients: for those who predict many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twofold.cost.count.linear import StepCost
from twofold.cost.count.setting import PLAIN, Setting
from twofold.cost.count.step import Span, read_positions, step, visible
from twofold.cost.hardware.machine import Machine
from twofold.cost.predict.demand import Demand, link_seconds, peak
from twofold.cost.shapes.model import ModelShape


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a model on a machine. ``row_s`` and ``logit_row_s`` are seconds of a row's matrices at peak.

    Equal to ``Demand.of`` the same step, but that latent attention is taken in its absorbed form, as decoding does.
    """

    cost: StepCost
    machine: Machine
    how: Setting
    layers: int
    row_s: float
    logit_row_s: float
    row_link_s: float

    @classmethod
    def of(cls, shape: ModelShape, machine: Machine, how: Setting = PLAIN) -> Steps:
        """Raises ParameterError where the devices cannot share the model, or have no link."""
        silent, loud = (
            Demand.of(step(shape, [span], how=how), machine, layers=shape.layer_count, sequences=1, how=how)
            for span in (Span(1, 0, 0), Span(1, 0, 1))
        )
        cost = StepCost.of(shape, how)
        link_s = link_seconds(cost.all_reduce_row_bytes, machine, how.tp)
        logit_row_s = loud.matrices - silent.matrices
        return cls(cost, machine, how, shape.layer_count, silent.matrices, logit_row_s, link_s)

    def demand(self, spans: Iterable[tuple[int, Span]]) -> Demand:
        """Of one step: so many equal sequences of each kind."""
        spans = tuple(spans)
        rows = sum(count * span.new for count, span in spans)
        logit_rows = sum(count * span.logits for count, span in spans)
        attention = moved = 0
        for window, each in self.cost.windows.items():
            attention += each.position_flops * sum(n * visible(s.cached, s.new, window) for n, s in spans)
            moved += each.token_bytes * sum(n * (read_positions(s.cached, s.new, window) + s.new) for n, s in spans)
        return Demand(
            weights=self.cost.weight_bytes(rows, logits=logit_rows > 0) / self.machine.bandwidth,
            matrices=self.row_s * rows + self.logit_row_s * logit_rows,
            kv=moved / self.machine.bandwidth,
            attention=attention / peak(self.machine, self.how.activations.arithmetic),
            messages=self.row_link_s * rows,
            all_reduces=self.cost.all_reduces,
            layers=self.layers,
            sequences=sum(count for count, _ in spans),
        )

    def decode(self, batch: int, context: int) -> Demand:
        """Of a step in which ``batch`` sequences get a token; a context counts the row itself."""
        return self.demand([(batch, Span(1, context - 1))])

    def prefill(self, new: int, cached: int = 0, batch: int = 1) -> Demand:
        """Of ``batch`` whole prompts of ``new`` tokens after ``cached`` ones in one step."""
        return self.demand([(batch, Span(new, cached))])
