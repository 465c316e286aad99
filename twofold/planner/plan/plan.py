"""The choices of a planner, one configuration of them, and plans: a configuration, its number of replicas and its
estimated times; or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final, Literal

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.units import count
from twofold.core.values import BF16, FP8, INT4, ValueFormat
from twofold.planner.count.memory import DeviceMemory, weight_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.speculation import tokens_a_turn

TP: Final = (1, 2, 4, 8)
WEIGHTS: Final[tuple[ValueFormat | None, ...]] = (None, FP8, INT4)
KV: Final = (BF16, FP8)
CHUNKS: Final = (512, 2048, 8192)
DRAFTS: Final = (1, 3, 5)
"""Default choices. In WEIGHTS, None means the weight format of the model's file."""
MAX_KEPT: Final = 0.98
"""Share of the stored bytes below which another format is a choice."""
RefusalBound = Literal["shape", "floor", "memory", "alone", "devices"]
"""Why a configuration is refused, the hardest reason first: the devices cannot share the model, a limit is below the
machine's floor, the model does not fit, an idle replica is too slow, too many devices are needed."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """``drafts`` draft tokens in each step, each accepted with probability ``acceptance`` if those before it were.

    ``draft``: the draft model; None if drafts cost nothing, for example by a lookup in the prompt.
    """

    drafts: int
    acceptance: float
    draft: ModelSpec | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise ParameterError(
                f"The acceptance rate must be from 0 to 1, not {self.acceptance:g}.", param="speculate"
            )
        if not 1 <= self.drafts <= 16:
            raise ParameterError(f"Draft tokens per step must be from 1 to 16, not {self.drafts}.", param="drafts")

    @property
    def tokens(self) -> float:
        """Mean tokens of a step."""
        return tokens_a_turn(self.acceptance, self.drafts)


@dataclass(frozen=True)
class Configuration:
    """A replica of a plan.

    shape        the model, with its weights in the format that is served
    weights      name of the format of most weights
    stored       whether that is the model's own format
    chunk        maximum rows of a step
    split        whether prefill and decode run on separate replicas
    """

    shape: ModelSpec
    machine: Machine
    weights: str
    setup: Setting
    chunk: int
    split: bool = False
    speculation: Speculation | None = None
    stored: bool = True

    @property
    def tp(self) -> int:
        return self.setup.tp

    @property
    def drafts(self) -> int:
        """Draft tokens of each sequence in a step."""
        return self.speculation.drafts if self.speculation else 0

    @cached_property
    def name(self) -> str:
        """A short description."""
        parts = [self.shape.name, f"{self.tp}×{self.machine.name}", self.weights, f"kv {self.setup.kv.name}"]
        parts.append("split" if self.split else f"chunk {self.chunk}")
        if self.speculation:
            parts.append(count(self.speculation.drafts, "draft"))
        return " · ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Every combination of these is tried.

    weights   formats; None is the model's own. A format that makes the model no smaller is skipped
    drafts    draft tokens of a step, with the ``acceptance`` rate of each; without a rate none are tried
    split     whether prefill and decode may run on separate replicas
    devices   maximum devices of all replicas together
    """

    models: tuple[ModelSpec, ...]
    machines: tuple[Machine, ...]
    tp: tuple[int, ...] = TP
    weights: tuple[ValueFormat | None, ...] = WEIGHTS
    kv: tuple[ValueFormat, ...] = KV
    chunks: tuple[int, ...] = CHUNKS
    split: bool = True
    acceptance: float | None = None
    drafts: tuple[int, ...] = DRAFTS
    draft: ModelSpec | None = None
    devices: int = 4096

    def __post_init__(self) -> None:
        for name in ("models", "machines", "tp", "weights", "kv", "chunks", "drafts"):
            if not getattr(self, name):
                raise ParameterError(f"{name} must not be empty.", param=name)
        for name in ("tp", "chunks"):
            if min(getattr(self, name)) < 1:
                raise ParameterError(f"{name} must be at least 1.", param=name)
        if self.devices < 1:
            raise ParameterError("A plan needs at least one device.", param="max-devices")

    def configurations(self) -> Iterator[Configuration]:
        """All configurations, by model and machine. Split ones have no choice of chunks: their prompts run whole."""
        for model, machine, tp in product(self.models, self.machines, self.tp):
            for shape, kv in product(stored_as(model, self.weights), self.kv):
                setup, name = Setting(tp=tp, kv=kv), main_format(shape).name
                for speculation in self._speculations():
                    each = Configuration(
                        shape, machine, name, setup, max(self.chunks), False, speculation, shape is model
                    )
                    yield from (replace(each, chunk=chunk) for chunk in self.chunks)
                    if self.split:
                        yield replace(each, split=True)

    def _speculations(self) -> Iterator[Speculation | None]:
        yield None
        if self.acceptance is not None:
            for drafts in self.drafts:
                yield Speculation(drafts, self.acceptance, self.draft)


def stored_as(model: ModelSpec, formats: Iterable[ValueFormat | None]) -> Iterator[ModelSpec]:
    """Yields the model in its own format, if listed, and in each that makes it smaller; in its own if none is left."""
    own, limit = main_format(model), MAX_KEPT * weight_bytes(model)
    found = []
    for form in formats:
        if form is None or form == own:
            found.append(model)
        elif weight_bytes(smaller := model.stored_as(form)) < limit:
            found.append(smaller)
    yield from dict.fromkeys(found or [model])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a measure.

    mean   over requests
    at     percentile of the attainment
    floor  minimum on this machine
    error  mean relative error of predictions of this measure; None: unknown
    """

    mean: float
    at: float
    floor: float
    error: float | None

    @property
    def band(self) -> tuple[float, float] | None:
        """``at`` ± error, not below the floor."""
        if self.error is None:
            return None
        return max(self.floor, self.at * (1 - self.error)), self.at * (1 + self.error)


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of replicas that run both phases, or of prefill and decode replicas."""

    both: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def replicas(self) -> int:
        return self.both + self.prefill + self.decode

    def __str__(self) -> str:
        return str(self.both) if self.both else f"{self.prefill}:{self.decode}"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A configuration with a number of replicas. ``source`` of its times: formulas (``evaluate``), or a simulation.

    batch            mean sequences that decode together on a replica
    batch_limit      maximum of concurrent sequences to set
    room             memory of each device
    token_bytes      bytes of keys and values of a token
    sequences        sequences of mean length that fit on a replica
    prompt_share     share of a replica's time in prefill; with a split, of a prefill replica's time
    cost             dollars an hour; None if the machine has no price
    cost_per_million dollars of a million output tokens, or None
    sure             whether limits are met at the upper ends of the error bands; None if these are unknown
    reasons          explanations, in sentences
    attained         share of the requests that met all limits in a simulation
    """

    configuration: Configuration
    count: Count
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate
    batch: float
    batch_limit: int
    room: DeviceMemory
    token_bytes: int
    sequences: int
    prompt_share: float
    cost: float | None
    cost_per_million: float | None
    sure: bool | None
    reasons: tuple[str, ...] = ()
    source: Literal["estimate", "simulation"] = "estimate"
    attained: float | None = None

    @property
    def devices(self) -> int:
        return self.count.replicas * self.configuration.tp

    def estimates(self) -> dict[str, Estimate]:
        """By the measure's name."""
        return {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A refused configuration, with the bound that it exceeds; ``value`` and ``limit`` are seconds of ``measure``."""

    configuration: Configuration
    bound: RefusalBound
    why: str
    measure: str = ""
    value: float = 0.0
    limit: float = 0.0
