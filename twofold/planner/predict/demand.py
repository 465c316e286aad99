"""What a step asks of a device, as seconds at the machine's peaks, and the seconds that it will take.

    seconds = max(weights / η_m, matrices / η_c) + max(kv / η_k, attention / η_c)
              + messages / η_l + all-reduces · t_AR + layers · t_layer + t_step + sequences · t_req

with sums in place of the maxima where a machine does not read while it multiplies;

    floor   = max(weights + kv, matrices + attention)

Reading weights and multiplying by them overlap inside each matrix, and so do reading keys and values and attending to
them; a layer's matrices and its attention follow each other. A ring of N devices sends 2 · (N − 1)/N of a message over
each link (Patarasuk and Yuan 2009). Every share is at most 1 and every time at least 0, so seconds ≥ floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from twofold.core.errors import ParameterError
from twofold.core.values import Arithmetic
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import Work
from twofold.planner.machines.machine import INSTEAD, Machine
from twofold.planner.predict.constants import Constants

Bound = Literal["weights", "arithmetic", "kv", "links", "overhead"]


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a step by what they go to: the parts of its sum. ``bound`` is the largest of them."""

    weights: float
    arithmetic: float
    kv: float
    links: float
    overhead: float

    @property
    def seconds(self) -> float:
        return self.weights + self.arithmetic + self.kv + self.links + self.overhead

    @property
    def bound(self) -> Bound:
        names: tuple[Bound, ...] = ("weights", "arithmetic", "kv", "links", "overhead")
        return max(names, key=lambda name: float(getattr(self, name)))


class Demand(NamedTuple):
    """Seconds at peak on one device, and what costs time by the piece. A tuple, for simulations make millions.

    weights      bytes of weights / bandwidth
    matrices     FLOPs of all matrices / the peak of their arithmetic
    kv           bytes of keys and values read and written / bandwidth
    attention    FLOPs of attention / the peak of its arithmetic
    messages     bytes that pass each link / its bandwidth
    all_reduces  how many times the devices sum something up
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
    def of(cls, work: Work, machine: Machine, *, layers: int, sequences: int, how: Setting = PLAIN) -> Demand:
        """Of a step that was counted with the same ``how``. ParameterError where devices have no link between them."""
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
            messages=link_seconds(work.all_reduce_bytes, machine, how.tp),
            all_reduces=work.all_reduces,
            layers=layers,
            sequences=sequences,
        )

    @property
    def floor(self) -> float:
        """The speed of light: all bytes at the peak bandwidth, or all products at the peak, whichever takes longer."""
        return max(self.weights + self.kv, self.matrices + self.attention)

    def parts(self, by: Constants) -> StepParts:
        """The seconds it takes, by what they go to."""
        read, made = self.weights / by.eta_m, self.matrices / by.eta_c
        kept, attended = self.kv / by.eta_k, self.attention / by.eta_c
        if by.overlap:
            read, made = (read, 0.0) if read >= made else (0.0, made)
            kept, attended = (kept, 0.0) if kept >= attended else (0.0, attended)
        return StepParts(
            weights=read,
            arithmetic=made + attended,
            kv=kept,
            links=self.messages / by.eta_l + self.all_reduces * by.t_ar,
            overhead=self.layers * by.t_layer + by.t_step + self.sequences * by.t_req,
        )

    def seconds(self, by: Constants) -> float:
        """The seconds it takes: those of ``parts`` together."""
        read, made = self.weights / by.eta_m, self.matrices / by.eta_c
        kept, attended = self.kv / by.eta_k, self.attention / by.eta_c
        if by.overlap:
            work = (read if read >= made else made) + (kept if kept >= attended else attended)
        else:
            work = read + made + kept + attended
        links = self.messages / by.eta_l + self.all_reduces * by.t_ar
        return work + links + self.layers * by.t_layer + by.t_step + self.sequences * by.t_req


def peak(machine: Machine, arithmetic: Arithmetic) -> float:
    """FLOPs a second in that arithmetic; the slowest known where the machine's data sheet says nothing of it."""
    wide = (arithmetic, *INSTEAD[arithmetic])
    return machine.peak(arithmetic) if any(each in machine.peaks for each in wide) else min(machine.peaks.values())


def link_seconds(nbytes: float, machine: Machine, devices: int) -> float:
    """Seconds at peak for so many bytes of messages that ``devices`` sum up."""
    if devices == 1 or not nbytes:
        return 0.0
    if machine.link is None:
        raise ParameterError(
            f"No link between several {machine.name} is known.",
            param="tp",
            hint="Use one device, or a machine of the table that has links.",
        )
    return 2 * (devices - 1) / devices * nbytes / machine.link
