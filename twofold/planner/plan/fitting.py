"""Whether a model fits in the memory of some machines, with which context, and how many sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import BF16, ValueFormat
from twofold.planner.count.memory import DeviceMemory, ReplicaMemory
from twofold.planner.count.setting import Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.plan.plan import KV, TP, WEIGHTS, stored_as


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``concurrency`` sequences of ``context`` tokens on ``tp`` machines; ``weights`` None: in the model's own format.

    ``rows``: maximum in a step, for activations; ``share``: of the memory that may be used.
    """

    shape: ModelSpec
    machine: Machine
    context: int
    concurrency: int = 1
    tp: int = 1
    weights: ValueFormat | None = None
    kv: ValueFormat = BF16
    rows: int = 2048
    share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("context", "concurrency", "tp", "rows"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, not {getattr(self, name)}.", param=name)
        if not 0 < self.share <= 1:
            raise ParameterError(f"share must be above 0 and at most 1, not {self.share:g}.", param="share")


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a model fits; bytes are those of each device.

    weights    name of the format of most weights
    needed     bytes of keys and values of all sequences of the question
    sequences  number of sequences of the question's context that fit
    longest    longest context that fits at the question's concurrency, up to the larger of the model's context and the
               question's; 0 if none fits
    """

    question: Question
    weights: str
    room: DeviceMemory
    needed: int
    sequences: int
    longest: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.room.kv

    @property
    def missing(self) -> int:
        """Further bytes that each device would need."""
        return max(0, self.needed - self.room.kv)


def fit(question: Question) -> FitResult:
    """How the model of a question fits. Raises ParameterError if the devices cannot share it."""
    setup = Setting(tp=question.tp, kv=question.kv)
    setup.check(question.shape)
    shape = question.shape if question.weights is None else question.shape.stored_as(question.weights)
    memory = ReplicaMemory(
        shape, question.machine.memory, setup, question.rows, logit_rows=question.concurrency, share=question.share
    )
    return FitResult(
        question,
        main_format(shape).name,
        memory.room(),
        question.concurrency * memory.sequence_bytes(question.context),
        memory.sequences(question.context),
        memory.longest(question.concurrency, max(shape.context_length, question.context)),
    )


def ways(question: Question) -> Iterator[FitResult]:
    """Results for other numbers of devices and other formats of weights, keys and values, the fewest devices first."""
    shapes = tuple(stored_as(question.shape, WEIGHTS))
    for tp, shape, kv in product(sorted({question.tp, *TP}), shapes, KV):
        changed = replace(question, shape=shape, tp=tp, weights=None, kv=kv)
        if tp == 1 or question.machine.link is not None:
            try:
                yield fit(changed)
            except ParameterError:  # the heads do not divide among the devices
                continue
