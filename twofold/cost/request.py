"""What a request cost by phase, counted from its record: bytes, multiply-adds, and the least time for them.

With W bytes of weights, m multiply-adds of the layers a row and h of the head, and the counts of ``PhaseWork``:

    bytes of weights       share · W                 the request's part of steps that it ran in with others
    bytes of K and V       Σ_layers read · 2 · n_k · d · bytes, and rows · bytes of a token written
    multiply-adds          rows · m + logit rows · h + Σ_layers attended · 2 · n_q · d
    floor                  the limit of those multiply-adds, and of reading W once a step with the request's K and V

In layers with a window, read and attended are the record's counts for that window. The floor takes the whole weights,
for a step reads all of them whoever runs in it: nothing on this machine could have made these tokens, one after the
other, in less time. Answers of one request run in the same steps, so those are counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.record import PhaseWork, SequenceRecord
from twofold.cost.machine import MachineLimits
from twofold.cost.model import ModelCost, MultiplyAdds
from twofold.cost.roofline import PhaseLimit, phase_limit


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Bytes moved and multiply-adds made for a request in one phase."""

    weight_bytes: float
    kv_read_bytes: int
    kv_written_bytes: int
    macs: MultiplyAdds

    @classmethod
    def of(cls, work: PhaseWork, cost: ModelCost, value_bytes: int) -> PhaseCost:
        """Counted for a cache whose values take ``value_bytes``."""
        matrices = cost.layers.times(work.rows) + cost.head.times(work.logit_rows)
        attention = cost.seen_macs(lambda window: _attended(work, window))
        return cls(
            work.share * cost.weight_bytes,
            cost.read_bytes(lambda window: _read(work, window), value_bytes),
            work.rows * cost.read_bytes(lambda _: 1, value_bytes),
            matrices + MultiplyAdds(0, attention),
        )

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes

    @property
    def flops(self) -> int:
        return 2 * self.macs.total


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Both phases of a request."""

    prefill: PhaseCost
    decode: PhaseCost

    @classmethod
    def of(cls, record: SequenceRecord, cost: ModelCost, value_bytes: int) -> RequestCost:
        return cls(
            PhaseCost.of(record.prefill, cost, value_bytes),
            PhaseCost.of(record.decode, cost, value_bytes),
        )


def phase_floor(
    work: PhaseWork, cost: ModelCost, machine: MachineLimits, value_bytes: int, answers: int = 1
) -> PhaseLimit:
    """The least seconds for the work of a phase, as if nobody else had been there; ``work`` sums that of ``answers``.

    Several answers took part in at least steps / answers steps, and in no fewer than their shares add up to.
    """
    own = PhaseCost.of(work, cost, value_bytes)
    steps = max(work.steps / answers, work.share)
    return phase_limit(cost, machine, steps * cost.weight_bytes + own.kv_read_bytes, own.macs)


def _attended(work: PhaseWork, window: int | None) -> int:
    return work.attended if window is None or window not in work.windowed else work.windowed[window].attended


def _read(work: PhaseWork, window: int | None) -> int:
    return work.read if window is None or window not in work.windowed else work.windowed[window].read
