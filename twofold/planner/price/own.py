"""A workload on own hardware: the seconds that a replica spends on it, and their price.

    prefill of a request    seconds of a step with its new tokens after the cached ones
    decode of a request     (output − 1) · seconds of a step of B sequences / B, at the mean context
    of a million tokens     10⁶ · seconds a token · price of an hour / (3600 · busy share)

Prompt tokens pay for prefill, output tokens for decode, as in ``observe.billing``. The prefix stays in the cache, so
only the first request of a session computes it. Prefill and decode count as separate steps, which approximates chunked
prefill."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.model import ModelSpec
from twofold.observe.billing import MachinePrices
from twofold.planner.count.memory import ReplicaMemory
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.steps import Demand, StepPredictor
from twofold.planner.price.workload import DAY_S, MONTH_DAYS, Workload

HOUR_S: Final = 3600
YEAR_HOURS: Final = 8766
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class OwnMachines:
    """A model on ``setup.tp`` machines, paid by the hour; ``batch`` sequences in a decode step (None: all that fit)."""

    shape: ModelSpec
    machine: Machine
    prices: MachinePrices
    setup: Setting = PLAIN
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class OwnCost:
    """A workload on own hardware; a replica is ``devices`` machines with one copy of the model.

    sequences             number that fits in memory
    per_hour              dollars of a replica
    busy_share            share of the time in which a replica runs requests
    batch, step_s         sequences in a decode step, and its seconds
    prefill_s, decode_s   seconds of a replica for each request
    """

    workload: Workload
    sequences: int
    devices: int
    per_hour: float
    busy_share: float
    batch: int
    step_s: float
    prefill_s: float
    decode_s: float

    @property
    def machine_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def per_second(self) -> float:
        """Dollars of a second in which a replica runs requests."""
        return self.per_hour / (HOUR_S * self.busy_share)

    @property
    def per_request(self) -> float:
        return self.machine_s * self.per_second

    @property
    def per_million_input(self) -> float:
        """Dollars of a million prompt tokens, including cached ones."""
        return MILLION * self.prefill_s * self.per_second / self.workload.input_tokens

    @property
    def per_million_output(self) -> float:
        return MILLION * self.decode_s * self.per_second / max(1, self.workload.output_tokens)

    @property
    def requests_per_day(self) -> float:
        """Requests that a replica serves in a day at its busy share."""
        return DAY_S * self.busy_share / self.machine_s

    @property
    def replicas(self) -> int:
        return math.ceil(self.workload.requests_per_day / self.requests_per_day)

    @property
    def per_month(self) -> float:
        """Dollars of whole replicas that run all day."""
        return self.replicas * self.per_hour * 24 * float(MONTH_DAYS)

    def cheaper_from(self, api_request: float) -> float | None:
        """Requests a day above which one replica costs less than an API at ``api_request`` dollars a request.

        None if even a fully used replica costs more.
        """
        if api_request <= 0:
            return None
        wanted = self.per_hour * 24 / api_request
        return wanted if wanted <= self.requests_per_day else None

    @property
    def half_output_saves(self) -> float:
        """Dollars that a request saves if its completion is half as long, with steps of the same length."""
        output = self.workload.output_tokens
        steps = max(0, output - 1)
        less = steps - max(0, output - output // 2 - 1)
        return self.decode_s / steps * less * self.per_second if steps else 0.0


def hourly(
    per_hour: Decimal | None = None,
    *,
    watts: Decimal | None = None,
    per_kwh: Decimal | None = None,
    capital: Decimal | None = None,
    years: Decimal = Decimal(4),
) -> Decimal:
    """Dollars of a machine's hour: rent, electricity, and its purchase price over the years of its use.

    Raises ParameterError for a negative value, if nothing is given, and for only one of ``watts`` and ``per_kwh``.
    """
    for name, given in (
        ("price_per_hour", per_hour),
        ("watts", watts),
        ("price_per_kwh", per_kwh),
        ("capital", capital),
    ):
        if given is not None and not (given.is_finite() and given >= 0):
            raise ParameterError(f"{name} must not be negative, and is {given}.", param=name)
    if not (years.is_finite() and years > 0):
        raise ParameterError(f"years must be above 0, not {years}.", param="years")
    if (watts is None) != (per_kwh is None):
        raise ParameterError(
            "Electricity needs both a power and a price.",
            param="watts" if watts is None else "price_per_kwh",
            hint="Give --watts and --price-per-kwh, or neither.",
        )
    if per_hour is None and capital is None and watts is None:
        raise ParameterError(
            "The cost of the machine is not known.",
            param="price_per_hour",
            hint="Give --price-per-hour, or --watts with --price-per-kwh, or --capital.",
        )
    power = None if watts is None or per_kwh is None else watts * per_kwh / 1000
    bought = None if capital is None else capital / (years * YEAR_HOURS)
    return sum((part for part in (per_hour, power, bought) if part is not None), Decimal(0))


def own_cost(own: OwnMachines, workload: Workload, seconds: Callable[[Demand], float] | None = None) -> OwnCost:
    """The cost of a workload on these machines. Raises ResourceError if the model and one sequence do not fit.

    ``seconds`` returns the seconds of a step; None predicts them.
    """
    by = constants_for(own.machine, own.shape)
    step_seconds = seconds or (lambda demand: demand.seconds(by))
    context = workload.input_tokens + workload.output_tokens
    memory = ReplicaMemory(own.shape, own.machine.memory, own.setup)
    sequences = memory.sequences(context)
    if not sequences:
        raise _too_large(own, memory, context)
    batch = min(own.batch or sequences, sequences)
    cached = min(workload.prefix_tokens, workload.input_tokens - 1)
    missed = 1 / workload.session if workload.session else 0.0
    steps = StepPredictor.of(own.shape, own.machine, own.setup)
    whole, rest = (step_seconds(steps.prefill(workload.input_tokens - kept, kept)) for kept in (0, cached))
    mean = workload.input_tokens + (workload.output_tokens + 1) // 2
    step_s = step_seconds(steps.decode(batch, mean))
    return OwnCost(
        workload=workload,
        sequences=sequences,
        devices=own.setup.tp,
        per_hour=float(own.prices.per_hour) * own.setup.tp,
        busy_share=float(own.prices.busy_share),
        batch=batch,
        step_s=step_s,
        prefill_s=missed * whole + (1 - missed) * rest,
        decode_s=max(0, workload.output_tokens - 1) * step_s / batch,
    )


def _too_large(own: OwnMachines, memory: ReplicaMemory, context: int) -> ResourceError:
    gib, room = 1 << 30, memory.room()
    need = (room.weights + memory.sequence_bytes(context)) / gib
    return ResourceError(
        f"{own.shape.name} does not fit into {own.setup.tp} × {own.machine.name}: each needs {need:.1f} GiB for "
        f"weights and one sequence of {context:,} tokens, and has {room.usable / gib:.1f} GiB for them.",
        hint="Use more devices (--tp), smaller weights (--weights fp8, int4) or a smaller context.",
    )
