"""The work of a step as seconds at a device's peaks, and the seconds that it takes.

    seconds = join(weights / η_m, matrices / η_c) + join(kv / η_k, attention / η_c)
              + messages / η_l + all-reduces · t_AR + layers · t_layer + t_step + sequences · t_req

    join(a, b) = max(a, b) + (1 − overlap) · min(a, b)
    floor      = max(weights + kv, matrices + attention)

Reading weights and multiplying by them overlap inside each matrix, and so do reading keys and values and attending to
them: wholly on GPUs (a maximum), in part on processors, whose threads unpack and multiply what they read; a
layer's matrices and its attention follow each other. A ring of N devices sends 2 · (N − 1)/N of a message over each
link (Patarasuk and Yuan 2009). Shares are at most 1 and times not negative, so seconds ≥ floor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec, read_positions, visible
from twofold.core.values import Arithmetic
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows, StepCost, Work, step
from twofold.planner.machines.machine import INSTEAD, Machine
from twofold.planner.predict.constants import Constants

PART_WORDS: Final = {
    "weights": "reading weights",
    "arithmetic": "arithmetic",
    "kv": "reading keys and values",
    "links": "communication",
    "overhead": "overhead",
}
"""The fields of ``StepParts`` in words."""


class StepParts(NamedTuple):
    """Seconds of a step by cause. ``bound`` is the name of the largest part."""

    weights: float
    arithmetic: float
    kv: float
    links: float
    overhead: float

    @property
    def seconds(self) -> float:
        return self.weights + self.arithmetic + self.kv + self.links + self.overhead

    @property
    def bound(self) -> str:
        return max(self._fields, key=lambda name: float(getattr(self, name)))

    def times(self, steps: float) -> StepParts:
        """Returns the sum of the parts over such steps."""
        return StepParts(*(part * steps for part in self))

    @classmethod
    def total(cls, steps: Iterable[StepParts]) -> StepParts:
        """The parts of several steps together."""
        return cls(*map(sum, zip(*steps, strict=True)))


class Demand(NamedTuple):
    """Seconds at peak on one device, and counts that cost time each. A tuple, because simulations create millions.

    weights      bytes of weights / bandwidth
    matrices     FLOPs of all matrices / the peak of their arithmetic
    kv           bytes of keys and values read and written / bandwidth
    attention    FLOPs of attention / the peak of its arithmetic
    messages     bytes sent over each link / its bandwidth
    all_reduces  number of all-reduces
    """

    weights: float
    matrices: float
    kv: float
    attention: float
    messages: float
    all_reduces: int
    layers: int
    sequences: int

    @classmethod
    def of(cls, work: Work, machine: Machine, *, layers: int, sequences: int, setup: Setting = PLAIN) -> Demand:
        """Of a step that was counted with the same ``setup``. Raises ParameterError where devices have no link."""
        matrices = attention = 0.0
        for each in work.operators:
            seconds = each.flops / peak(machine, each.arithmetic) if each.flops else 0.0
            if each.name == "attention":
                attention += seconds
            else:
                matrices += seconds
        return cls(
            weights=work.weight_bytes / machine.bandwidth,
            matrices=matrices,
            kv=(work.kv_read + work.kv_written) / machine.bandwidth,
            attention=attention,
            messages=link_seconds(work.all_reduce_bytes, machine, setup.tp),
            all_reduces=work.all_reduces,
            layers=layers,
            sequences=sequences,
        )

    @property
    def floor(self) -> float:
        """The speed of light: all bytes at the peak bandwidth, or all products at the peak, whichever takes longer."""
        return max(self.weights + self.kv, self.matrices + self.attention)

    def parts(self, by: Constants) -> StepParts:
        """The seconds of the step by cause."""
        read, made = self.weights / by.eta_m, self.matrices / by.eta_c
        kept, attended = self.kv / by.eta_k, self.attention / by.eta_c
        left = 1.0 - by.overlap
        read, made = (read, left * made) if read >= made else (left * read, made)
        kept, attended = (kept, left * attended) if kept >= attended else (left * kept, attended)
        return StepParts(
            weights=read,
            arithmetic=made + attended,
            kv=kept,
            links=self.messages / by.eta_l + self.all_reduces * by.t_ar,
            overhead=self.layers * by.t_layer + by.t_step + self.sequences * by.t_req,
        )

    def seconds(self, by: Constants) -> float:
        """The seconds of the step: the sum of ``parts``, without making them."""
        read, made = self.weights / by.eta_m, self.matrices / by.eta_c
        kept, attended = self.kv / by.eta_k, self.attention / by.eta_c
        left = 1.0 - by.overlap
        work = read + left * made if read >= made else left * read + made
        work += kept + left * attended if kept >= attended else left * kept + attended
        links = self.messages / by.eta_l + self.all_reduces * by.t_ar
        return work + links + self.layers * by.t_layer + by.t_step + self.sequences * by.t_req


def peak(machine: Machine, arithmetic: Arithmetic) -> float:
    """FLOPs a second in that arithmetic; the slowest known if the data sheet has no figure for it."""
    wide = (arithmetic, *INSTEAD[arithmetic])
    return machine.peak(arithmetic) if any(each in machine.peaks for each in wide) else min(machine.peaks.values())


def link_seconds(nbytes: float, machine: Machine, devices: int) -> float:
    """Returns the seconds at peak of an all-reduce of this size between ``devices``."""
    if devices == 1 or not nbytes:
        return 0.0
    if machine.link is None:
        raise ParameterError(
            f"No link between several {machine.name} is known.",
            param="tp",
            hint="Use one device, or a machine of the table that has links.",
        )
    return 2 * (devices - 1) / devices * nbytes / machine.link


class StepSize(NamedTuple):
    """What a step's time depends on. ``sequences`` have rows in it.

    attended, read   positions that rows see, and that sequences read once a step, by window, in the order of
                     ``StepCost.windows``
    prompts          (number, rows) of the spans that latent attention may expand
    """

    rows: int
    logit_rows: int
    sequences: int
    attended: tuple[int, ...]
    read: tuple[int, ...]
    prompts: tuple[tuple[int, SequenceRows], ...] = ()


@dataclass(frozen=True, slots=True)
class StepPredictor:
    """Steps of a model on a machine, from the few coefficients of ``StepCost``: equal to ``Demand.of`` each step.

    ``row_s`` and ``logit_row_s`` are seconds of a row's matrices at peak, ``attention_peak`` FLOPs a second.
    """

    cost: StepCost
    machine: Machine
    setup: Setting
    layers: int
    row_s: float
    logit_row_s: float
    row_link_s: float
    attention_peak: float
    bandwidth: float

    @classmethod
    def of(cls, shape: ModelSpec, machine: Machine, setup: Setting = PLAIN) -> StepPredictor:
        """Raises ParameterError where the devices cannot share the model, or have no link."""
        silent, loud = (
            Demand.of(step(shape, [span], setup=setup), machine, layers=len(shape.layers), sequences=1, setup=setup)
            for span in (SequenceRows(1, 0, 0), SequenceRows(1, 0, 1))
        )
        cost = StepCost.of(shape, setup)
        link_s = link_seconds(cost.all_reduce_row_bytes, machine, setup.tp)
        attention_peak = float(peak(machine, setup.attention_arithmetic))
        row_s, logit_row_s, bandwidth = silent.matrices, loud.matrices - silent.matrices, float(machine.bandwidth)
        return cls(cost, machine, setup, len(shape.layers), row_s, logit_row_s, link_s, attention_peak, bandwidth)

    def demand(self, spans: Iterable[tuple[int, SequenceRows]]) -> Demand:
        """Of one step, given as (number of sequences, rows of each)."""
        spans = tuple(spans)
        windows = self.cost.windows
        return self.summed(
            StepSize(
                sum(count * span.new for count, span in spans),
                sum(count * span.logits for count, span in spans),
                sum(count for count, _ in spans),
                tuple(sum(n * visible(s.cached, s.new, window) for n, s in spans) for window in windows),
                tuple(sum(n * read_positions(s.cached, s.new, window) for n, s in spans) for window in windows),
                spans,
            )
        )

    def summed(self, size: StepSize) -> Demand:
        """Of one step, given as sums."""
        rows, attention = size.rows, 0
        moved = 2 * self.cost.state_bytes * size.sequences
        matrices = self.row_s * rows + self.logit_row_s * size.logit_rows
        for each, pairs, positions in zip(self.cost.windows.values(), size.attended, size.read, strict=True):
            attention += each.position_flops * pairs
            moved += each.token_bytes * (positions + rows)
        for arithmetic, again, saved in self.cost.expanded(size.prompts):
            attention -= saved
            matrices += again / peak(self.machine, arithmetic)
        return Demand(
            weights=self.cost.weight_bytes(rows, logits=size.logit_rows > 0) / self.bandwidth,
            matrices=matrices,
            kv=moved / self.bandwidth,
            attention=attention / self.attention_peak,
            messages=self.row_link_s * rows,
            all_reduces=self.cost.all_reduces,
            layers=self.layers,
            sequences=size.sequences,
        )

    def decode(self, batch: int, context: int) -> Demand:
        """Of a step with one row of each of ``batch`` sequences; a context includes the row."""
        return self.demand([(batch, SequenceRows(1, context - 1))])

    def prefill(self, new: int, cached: int = 0, batch: int = 1) -> Demand:
        """Of ``batch`` whole prompts of ``new`` tokens after ``cached`` ones in one step."""
        return self.demand([(batch, SequenceRows(new, cached))])
